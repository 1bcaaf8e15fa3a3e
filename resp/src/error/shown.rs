//! Texts of others in messages: names, hosts, a server's words. None of them may end a line of a log or colour a terminal.

use std::fmt::{self, Write};

/// The most characters of a name that are shown at its beginning, and at its end.
const BEGIN: usize = 80;
const END: usize = 24;

/// A writer that escapes control characters, and others that are not seen.
pub struct Escaping<'a, W: ?Sized>(pub &'a mut W);

impl<W: Write + ?Sized> Write for Escaping<'_, W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut plain = 0;
        for (at, c) in text.char_indices() {
            // Quotes are no danger, and messages quote with them.
            if c.is_ascii_graphic()
                || c == ' '
                || matches!(c, '\u{a1}'..='\u{24f}') && c != '\u{ad}'
            {
                continue;
            }
            self.0.write_str(&text[plain..at])?;
            plain = at + c.len_utf8();
            for escaped in c.escape_debug() {
                self.0.write_char(escaped)?;
            }
        }
        self.0.write_str(&text[plain..])
    }
}

impl<W: fmt::Debug + ?Sized> fmt::Debug for Escaping<'_, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Escaping").field(&&self.0).finish()
    }
}

/// A name that may be long: of one with more than about a hundred characters the beginning, the end and its length.
#[derive(Clone, Copy, Debug)]
pub struct Shortened<'a>(pub &'a str);

impl fmt::Display for Shortened<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.0;
        let bound = |nth: usize| {
            name.char_indices()
                .nth(nth)
                .map_or(name.len(), |(at, _)| at)
        };
        let length = name.chars().count();
        if length <= BEGIN + END {
            return f.write_str(name);
        }
        let (begin, end) = (&name[..bound(BEGIN)], &name[bound(length - END)..]);
        write!(f, "{begin}...{end}, {} bytes", name.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn escaped(text: &str) -> String {
        let mut shown = String::new();
        Escaping(&mut shown).write_str(text).unwrap();
        shown
    }

    #[test]
    fn what_is_seen_stays_and_nothing_else_does() {
        for (text, shown) in [
            ("order:42 'a' \"b\" `c` \\", "order:42 'a' \"b\" `c` \\"),
            ("Größe 中文", "Größe 中文"),
            ("a\nERROR forged", "a\\nERROR forged"),
            ("\u{1b}[2J\r\t\0", "\\u{1b}[2J\\r\\t\\0"),
            (
                "\u{202e}txt\u{2028}\u{85}\u{ad}\u{feff}",
                "\\u{202e}txt\\u{2028}\\u{85}\\u{ad}\\u{feff}",
            ),
        ] {
            assert_eq!(escaped(text), shown);
        }
    }

    #[test]
    fn a_long_name_shows_both_ends_and_its_length() {
        assert_eq!(Shortened("short").to_string(), "short");
        let name = format!("{}{}", "ä".repeat(2_000), "end");
        let shown = Shortened(&name).to_string();
        assert!(
            shown.starts_with('ä') && shown.ends_with("äend, 4003 bytes"),
            "{shown}"
        );
        assert_eq!(
            shown.chars().count(),
            BEGIN + 3 + END + ", 4003 bytes".len()
        );
        let fits = "x".repeat(BEGIN + END);
        assert_eq!(Shortened(&fits).to_string(), fits);
    }
}
