//! Removes secrets from the text of an error line, because servers and proxies echo what they were sent.
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]

/// Stands for what was removed.
const REDACTED: &str = "***";

/// The end of an echo that was cut off counts as part of a secret from this length on.
const SHORTEST_PREFIX: usize = 3;

/// Closing quotes, dots and the like that may follow an echo that was cut off.
const LONGEST_TAIL: usize = 8;

/// `message` without the arguments of an unknown command, which Redis and Valkey echo, whole or cut off.
pub(super) fn without_arguments(message: &str) -> &str {
    message
        .split_once("with args beginning with")
        .map_or(message, |(before, _)| before.trim_end_matches([' ', ',']))
}

/// `text` without `secret`, plain or escaped, and without a beginning of it at the end of the text.
pub(super) fn without_secret(text: &str, secret: &str) -> String {
    let plain = without(text, secret);
    let escaped: String = secret.escape_debug().collect();
    if escaped == secret {
        plain
    } else {
        without(&plain, &escaped)
    }
}

fn without(text: &str, secret: &str) -> String {
    // Servers replace line ends by spaces.
    let normal = |c: char| if c.is_control() { ' ' } else { c };
    let secret: Vec<char> = secret.chars().map(normal).collect();
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let common = rest
            .chars()
            .map(normal)
            .zip(&secret)
            .take_while(|(c, expected)| c == *expected)
            .count();
        let mut behind = rest.chars();
        let matched: usize = behind.by_ref().take(common).map(char::len_utf8).sum();
        let is_whole = common == secret.len() && common > 0;
        let is_cut = common >= SHORTEST_PREFIX && is_tail(behind.as_str());
        if is_whole || is_cut {
            clean.push_str(REDACTED);
            rest = rest.get(matched..).unwrap_or_default();
        } else {
            clean.push(first);
            rest = rest.get(first.len_utf8()..).unwrap_or_default();
        }
    }
    clean
}

/// Whether nothing but punctuation is left of the text.
fn is_tail(rest: &str) -> bool {
    rest.len() <= LONGEST_TAIL && !rest.chars().any(char::is_alphanumeric)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_replaced_wherever_it_stands_plain_escaped_or_cut_off() {
        for (text, secret, clean) in [
            ("no s3cret here: s3cret", "s3cret", "no *** here: ***"),
            ("AUTH default s3cre", "s3cret", "AUTH default ***"),
            ("AUTH 's3cre...'", "s3cret", "AUTH '***...'"),
            ("a s3c in the middle", "s3cret", "a s3c in the middle"),
            ("'a b\\\"c'", "a\nb\"c", "'a b\\\"c'"),
            ("'a b\"c'", "a\nb\"c", "'***'"),
            ("'a\\nb\\\"c'", "a\nb\"c", "'***'"),
            ("pä€sswört", "ä€s", "p***swört"),
            ("aaaa", "aa", "******"),
            ("nothing", "", "nothing"),
        ] {
            assert_eq!(without_secret(text, secret), clean, "{text} {secret}");
        }
    }

    #[test]
    fn the_arguments_of_an_unknown_command_are_left_out() {
        for (message, clean) in [
            (
                "unknown command 'HELLO', with args beginning with: '3' 'AUTH' 'default' 'x' ",
                "unknown command 'HELLO'",
            ),
            (
                "unknown command `HELLO`, with args beginning with: `3`, `AUTH`, `x`, ",
                "unknown command `HELLO`",
            ),
            ("unknown command 'HELLO'", "unknown command 'HELLO'"),
        ] {
            assert_eq!(without_arguments(message), clean);
        }
    }
}
