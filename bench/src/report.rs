//! Tables, for the terminal and for RESULTS.md alike.

use std::fmt::Write;

/// The results of one work.
#[derive(Debug)]
pub struct Section {
    /// The figures' heading.
    pub title: &'static str,
    /// How they were measured, in a sentence or two.
    pub how: String,
    /// Names of the columns behind the candidate's.
    pub columns: Vec<String>,
    /// A line a candidate.
    pub rows: Vec<Row>,
    /// Aims for our figures.
    pub aims: Vec<Aim>,
}

/// A candidate's figures, in the order of the columns; `None` prints as a dash.
#[derive(Debug)]
pub struct Row {
    /// Its name.
    pub candidate: String,
    /// Figures.
    pub cells: Vec<Option<f64>>,
}

/// A figure of ours beside the floor's and the best peer's.
#[derive(Debug)]
pub struct Aim {
    /// The name of the figure.
    pub what: String,
    /// The floor's figure.
    pub floor: Option<f64>,
    /// The best peer's figure.
    pub peer: Option<f64>,
    /// Our figure.
    pub ours: Option<f64>,
    /// The aim.
    pub bound: Bound,
}

/// The side of a figure on which an aim is met.
#[derive(Clone, Copy, Debug)]
pub enum Bound {
    /// This or less.
    AtMost(f64),
    /// This or more.
    AtLeast(f64),
}

impl Bound {
    /// Whether `figure` meets it.
    pub fn holds(self, figure: f64) -> bool {
        match self {
            Self::AtMost(bound) => figure <= bound,
            Self::AtLeast(bound) => figure >= bound,
        }
    }

    /// The better one of some figures, if there are any.
    pub fn best(self, figures: impl IntoIterator<Item = Option<f64>>) -> Option<f64> {
        let figures = figures.into_iter().flatten();
        match self {
            Self::AtMost(_) => figures.min_by(f64::total_cmp),
            Self::AtLeast(_) => figures.max_by(f64::total_cmp),
        }
    }
}

impl Section {
    /// The heading, the table and how it was measured.
    pub fn to_markdown(&self) -> String {
        let header = std::iter::once(String::new())
            .chain(self.columns.iter().cloned())
            .collect();
        let rows = self.rows.iter().map(|row| {
            std::iter::once(row.candidate.clone())
                .chain(row.cells.iter().map(|cell| number(*cell)))
                .collect()
        });
        let table = match self.rows.len() {
            0 => String::new(),
            _ => table(std::iter::once(header).chain(rows).collect()) + "\n",
        };
        format!("## {}\n\n{table}{}\n", self.title, self.how)
    }
}

/// The aims of all sections in one table.
pub fn aims(sections: &[Section]) -> String {
    let mut rows = vec![
        ["", "floor", "best peer", "ours", "aim", ""]
            .map(str::to_owned)
            .to_vec(),
    ];
    for aim in sections.iter().flat_map(|section| &section.aims) {
        let bound = match aim.bound {
            Bound::AtMost(bound) => format!("<= {}", number(Some(bound))),
            Bound::AtLeast(bound) => format!(">= {}", number(Some(bound))),
        };
        let verdict = match aim.ours {
            Some(ours) if aim.bound.holds(ours) => "met",
            Some(_) => "missed",
            None => "",
        };
        let [floor, peer, ours] = [aim.floor, aim.peer, aim.ours].map(number);
        rows.push(vec![
            aim.what.clone(),
            floor,
            peer,
            ours,
            bound,
            verdict.to_owned(),
        ]);
    }
    table(rows)
}

/// Comments around the figures in RESULTS.md. The text outside of them is written by hand, the
/// reasons for missed aims among it.
const BEGIN: &str = "<!-- figures: written by `make bench ARGS=--write` -->\n";
const END: &str = "<!-- end of the figures -->\n";

/// `text` with other figures between the marks, or `None` if it has no marks.
pub fn with_figures(text: &str, figures: &str) -> Option<String> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!(
        "{before}{BEGIN}\n{}\n\n{END}{after}",
        figures.trim()
    ))
}

/// Three significant digits at least, none lost in large figures.
fn number(figure: Option<f64>) -> String {
    match figure {
        None => "-".into(),
        Some(figure) if figure.abs() >= 100.0 || figure == figure.trunc() => {
            grouped(figure.round() as i64)
        }
        Some(figure) if figure.abs() >= 10.0 => format!("{figure:.1}"),
        Some(figure) => format!("{figure:.2}"),
    }
}

/// Groups of three digits, for reading.
fn grouped(n: i64) -> String {
    let digits = n.abs().to_string();
    let mut text = if n < 0 { "-".to_owned() } else { String::new() };
    for (i, digit) in digits.char_indices() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// A Markdown table whose columns line up; the first is text, the others are figures.
fn table(rows: Vec<Vec<String>>) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| {
        rows.iter()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or(0)
            .max(3)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for (i, row) in rows.iter().enumerate() {
        text.push('|');
        for (column, cell) in row.iter().enumerate() {
            let width = widths[column];
            let _ = if column == 0 {
                write!(text, " {cell:<width$} |")
            } else {
                write!(text, " {cell:>width$} |")
            };
        }
        text.push('\n');
        if i == 0 {
            text.push('|');
            for (column, width) in widths.iter().enumerate() {
                let dashes = "-".repeat(width + 1);
                text.push_str(&if column == 0 {
                    format!("-{dashes}|")
                } else {
                    format!("{dashes}:|")
                });
            }
            text.push('\n');
        }
    }
    text
}
