//! Patterns as `SCAN … MATCH` has them, for the names that only the client can put together. Pure.

/// Whether the whole of `text` matches `pattern`: `*`, `?`, `[abc]`, `[^a-c]` and `\` before a character that stands for itself.
pub(crate) fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut from) = (0, 0);
    // Behind the latest star, and where the text that it covers ends for now.
    let mut star: Option<(usize, usize)> = None;
    loop {
        if pattern.get(at) == Some(&b'*') {
            star = Some((at + 1, from));
            at += 1;
            continue;
        }
        if from == text.len() && at == pattern.len() {
            return true;
        }
        match text.get(from).and_then(|byte| one(&pattern[at..], *byte)) {
            Some(length) => {
                at += length;
                from += 1;
            }
            None => match star {
                Some((behind, covered)) if covered < text.len() => {
                    star = Some((behind, covered + 1));
                    (at, from) = (behind, covered + 1);
                }
                _ => return false,
            },
        }
    }
}

/// The length of the first element of `pattern` if it matches `byte`.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [b'?', ..] => Some(1),
        [b'\\', literal, ..] => (*literal == byte).then_some(2),
        [b'[', class @ ..] => {
            let end = class
                .iter()
                .skip(1)
                .position(|c| *c == b']')
                .map(|at| at + 1);
            let Some(end) = end else {
                return (byte == b'[').then_some(1);
            };
            let (negated, members) = match &class[..end] {
                [b'^', members @ ..] => (true, members),
                members => (false, members),
            };
            (in_class(members, byte) != negated).then_some(end + 2)
        }
        [literal, ..] => (*literal == byte).then_some(1),
        [] => None,
    }
}

fn in_class(mut members: &[u8], byte: u8) -> bool {
    loop {
        members = match members {
            [] => return false,
            [from, b'-', to, rest @ ..] => {
                if (*from.min(to)..=*from.max(to)).contains(&byte) {
                    return true;
                }
                rest
            }
            [one, rest @ ..] => {
                if *one == byte {
                    return true;
                }
                rest
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns_are_the_servers() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("shop:*", "shop:a", true),
            ("shop:*", "shop", false),
            ("*:a*b", "x:a:a--b", true),
            ("*:a*b", "x:a:a--bc", false),
            ("h?llo", "hello", true),
            ("h?llo", "hllo", false),
            ("h[ae]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[a-c]llo", "hbllo", true),
            ("a\\*", "a*", true),
            ("a\\*", "ab", false),
            ("a**b", "ab", true),
            ("", "", true),
            ("", "a", false),
        ] {
            assert_eq!(
                matches(pattern.as_bytes(), text.as_bytes()),
                expected,
                "{pattern} {text}"
            );
        }
        // No time that grows with the power of the stars.
        assert!(!matches(
            "*a".repeat(30).as_bytes(),
            "a".repeat(29).as_bytes()
        ));
        assert!(!matches(
            format!("{}b", "*a".repeat(30)).as_bytes(),
            "a".repeat(2_000).as_bytes()
        ));
    }
}
