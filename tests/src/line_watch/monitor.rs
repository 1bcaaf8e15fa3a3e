//! The lines of `MONITOR`.

/// A command that a server executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Command {
    /// Microseconds since 1970, by the server's clock.
    pub(super) at: u64,
    /// Whether a script called it.
    pub(super) is_scripted: bool,
    pub(super) args: Vec<String>,
}

impl Command {
    /// Reads `+1700000000.123456 [0 127.0.0.1:1234] "SET" "key" "value"`; in place of the address
    /// stands `lua` for commands of scripts.
    pub(super) fn parse(line: &str) -> Option<Self> {
        let (time, rest) = line.trim_start_matches('+').split_once(" [")?;
        let (source, args) = rest.split_once("] ")?;
        let (seconds, fraction) = time.split_once('.')?;
        let at = seconds.parse::<u64>().ok()? * 1_000_000 + fraction.parse::<u64>().ok()?;
        Some(Self {
            at,
            is_scripted: source.ends_with(" lua"),
            args: words(args),
        })
    }

    /// The name of the command, in capitals.
    pub(super) fn name(&self) -> String {
        let name = self.args.first().map(|name| name.to_uppercase());
        name.unwrap_or_default()
    }
}

/// Arguments in quotes, in which backslashes escape. Bytes that are no ASCII become a character each.
fn words(text: &str) -> Vec<String> {
    let (mut words, mut chars) = (Vec::new(), text.chars());
    while chars.by_ref().any(|c| c == '"') {
        let mut word = String::new();
        while let Some(c) = chars.next().filter(|c| *c != '"') {
            if c != '\\' {
                word.push(c);
                continue;
            }
            match chars.next() {
                Some('x') => {
                    let digits: String = chars.by_ref().take(2).collect();
                    word.push(u8::from_str_radix(&digits, 16).map_or('?', char::from));
                }
                Some('n') => word.push('\n'),
                Some('r') => word.push('\r'),
                Some('t') => word.push('\t'),
                Some(other) => word.push(other),
                None => {}
            }
        }
        words.push(word);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_command_with_its_time_and_origin() {
        let line = r#"+1795326443.005838 [0 lua] "ZADD" "a b" "NX" "5" "a\"b\\c:1" "" "\x00\n""#;
        assert_eq!(
            Command::parse(line).unwrap(),
            Command {
                at: 1_795_326_443_005_838,
                is_scripted: true,
                args: ["ZADD", "a b", "NX", "5", "a\"b\\c:1", "", "\0\n"]
                    .map(String::from)
                    .into(),
            }
        );
        let line = r#"1795326443.605723 [0 127.0.0.1:56786] "get" "lua] \"x""#;
        let command = Command::parse(line).unwrap();
        assert!(!command.is_scripted && command.name() == "GET");
        assert_eq!(command.args[1], "lua] \"x");
    }

    #[test]
    fn what_is_no_command_is_left_out() {
        for line in ["+OK", "", "+1.2", "+1.2 [0 lua]", "-ERR no [x] \"y\""] {
            assert_eq!(Command::parse(line), None, "{line:?}");
        }
    }
}
