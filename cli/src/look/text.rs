//! Keys, durations and tables as people read them. Pure.

use std::fmt::Write;
use std::time::Duration;

/// A key of which every byte can be seen: `\n`, `\xff` and a backslash are escaped, and so is what would move the cursor.
pub(crate) fn escaped(key: &[u8]) -> String {
    let mut out = String::with_capacity(key.len());
    for chunk in key.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                c if c.is_control() || is_invisible(c) => {
                    let mut bytes = [0; 4];
                    for byte in c.encode_utf8(&mut bytes).bytes() {
                        let _ = write!(out, "\\x{byte:02x}");
                    }
                }
                c => out.push(c),
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(out, "\\x{byte:02x}");
        }
    }
    out
}

/// Marks of direction and characters without width: two names with and without one look the same.
const fn is_invisible(c: char) -> bool {
    matches!(
        c,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{feff}' | '\u{e0000}'..='\u{e007f}'
    )
}

/// The bytes of what [`escaped`] shows, so that a key can be copied from a table; `None` if an escape is none.
pub(crate) fn unescaped(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        out.push(match rest.next()? {
            b'\\' => b'\\',
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'x' => {
                let digits = [rest.next()?, rest.next()?];
                let digits = std::str::from_utf8(&digits).ok()?;
                u8::from_str_radix(digits, 16).ok()?
            }
            _ => return None,
        });
    }
    Some(out)
}

/// The text in at most `width` columns: its middle is left out, since keys often differ in their ends.
pub(crate) fn shortened(text: &str, width: usize) -> String {
    let length = text.chars().count();
    if length <= width {
        return text.to_owned();
    }
    let Some(room) = width.checked_sub(1) else {
        return String::new();
    };
    let head = room.div_ceil(2);
    let mut short: String = text.chars().take(head).collect();
    short.push('…');
    short.extend(text.chars().skip(length - (room - head)));
    short
}

/// A duration in one or two units: `250ms`, `4.2s`, `3m07s`, `5h02m`, `12d03h`.
pub(crate) fn duration(time: Duration) -> String {
    let (ms, s) = (time.as_millis(), time.as_secs());
    match s {
        0 => format!("{ms}ms"),
        1..10 => format!("{}.{}s", s, (ms % 1000) / 100),
        10..60 => format!("{s}s"),
        60..3600 => format!("{}m{:02}s", s / 60, s % 60),
        3600..86400 => format!("{}h{:02}m", s / 3600, s / 60 % 60),
        _ => format!("{}d{:02}h", s / 86400, s / 3600 % 24),
    }
}

/// A table whose columns are as wide as they need to be, in `width` columns of the screen: one of them is shortened if they are
/// too wide together.
#[derive(Debug)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
    /// Index of the column that gives way.
    elastic: usize,
}

/// Between two columns.
const GAP: usize = 2;
/// The elastic column is not made narrower.
const NARROWEST: usize = 8;

impl Table {
    pub(crate) fn new(titles: &[&str], elastic: usize) -> Self {
        Self {
            rows: vec![titles.iter().map(|title| (*title).to_owned()).collect()],
            elastic,
        }
    }

    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    pub(crate) fn render(&self, width: usize) -> String {
        let columns = self.rows.first().map_or(0, Vec::len);
        let mut widths = vec![0; columns];
        for row in &self.rows {
            for (at, cell) in row.iter().enumerate() {
                widths[at] = widths[at].max(cell.chars().count());
            }
        }
        let all: usize = widths.iter().sum::<usize>() + GAP * columns.saturating_sub(1);
        let elastic = &mut widths[self.elastic];
        *elastic = elastic
            .saturating_sub(all.saturating_sub(width))
            .max(NARROWEST.min(*elastic));
        let mut out = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                if !line.is_empty() {
                    line.push_str("  ");
                }
                let _ = write!(line, "{:<width$}", shortened(cell, *width), width = *width);
            }
            out.push_str(line.trim_end());
            out.push('\n');
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_bytes_are_seen_and_can_be_copied() {
        for (key, shown) in [
            (&b"order:42"[..], "order:42"),
            (b"a\nb\x1b[2J\xff\\", "a\\nb\\x1b[2J\\xff\\\\"),
            ("ä\u{202e}b".as_bytes(), "ä\\xe2\\x80\\xaeb"),
            (
                "a\u{ad}\u{e0041}".as_bytes(),
                "a\\xc2\\xad\\xf3\\xa0\\x81\\x81",
            ),
        ] {
            assert_eq!(escaped(key), shown);
            assert_eq!(unescaped(shown).as_deref(), Some(key));
        }
        assert_eq!(unescaped("\\q"), None);
        assert_eq!(unescaped("\\x4"), None);
    }

    #[test]
    fn long_texts_keep_both_ends() {
        assert_eq!(shortened("abcdef", 6), "abcdef");
        assert_eq!(shortened("abcdefg", 6), "abc…fg");
        assert_eq!(shortened("äöü", 1), "…");
        assert_eq!(shortened("äöü", 0), "");
    }

    #[test]
    fn durations_have_two_units_at_most() {
        for (ms, shown) in [
            (250, "250ms"),
            (1_500, "1.5s"),
            (59_999, "59s"),
            (187_000, "3m07s"),
            (7_320_000, "2h02m"),
            (270_000_000, "3d03h"),
        ] {
            assert_eq!(duration(Duration::from_millis(ms)), shown);
        }
    }

    #[test]
    fn a_table_fits_the_screen() {
        let mut table = Table::new(&["KEY", "HOLDER"], 0);
        table.row(vec!["order:".repeat(20), "host-1".into()]);
        let shown = table.render(40);
        assert!(
            shown.lines().all(|line| line.chars().count() <= 40),
            "{shown}"
        );
        assert!(shown.contains("host-1") && shown.contains('…'), "{shown}");
    }
}
