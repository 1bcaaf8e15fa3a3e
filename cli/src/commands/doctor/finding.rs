//! Findings of checks, and the report of all of them. Pure.

use std::fmt::Write;
use std::io::IsTerminal;

use serde::Serialize;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Level {
    /// As it should be.
    Ok,
    /// Worth knowing.
    Note,
    /// Locks do not keep what they promise, or will not.
    Fault,
}

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    pub(crate) level: Level,
    pub(crate) check: &'static str,
    /// The server, where it is of one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) node: Option<String>,
    pub(crate) what: String,
    /// The change to make.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fix: Option<String>,
}

/// All findings, in the order of the checks.
#[derive(Debug, Default)]
pub(crate) struct Report {
    findings: Vec<Finding>,
}

/// Columns of the level and the check.
const LEVEL: usize = 6;
const CHECK: usize = 12;

impl Finding {
    pub(crate) fn new(level: Level, check: &'static str, what: impl Into<String>) -> Self {
        Self {
            level,
            check,
            node: None,
            what: what.into(),
            fix: None,
        }
    }

    pub(crate) fn at(mut self, node: impl Into<String>) -> Self {
        self.node = Some(node.into());
        self
    }

    pub(crate) fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }
}

impl Report {
    pub(crate) fn add(&mut self, finding: Finding) {
        self.findings.push(finding);
    }

    pub(crate) fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// For people: a line for each finding, its fix below it, and the count of faults at the end.
    pub(crate) fn render(&self, width: usize, coloured: bool) -> String {
        let mut out = String::new();
        let indent = LEVEL + CHECK;
        for finding in &self.findings {
            let node = finding
                .node
                .as_deref()
                .map_or_else(String::new, |node| format!("{node}: "));
            let mut lines = wrapped(
                &format!("{node}{}", finding.what),
                width.saturating_sub(indent),
            );
            if let Some(fix) = &finding.fix {
                lines.extend(wrapped(&format!("→ {fix}"), width.saturating_sub(indent)));
            }
            let (mark, colour) = match finding.level {
                Level::Ok => ("ok", "32"),
                Level::Note => ("note", "33"),
                Level::Fault => ("FAULT", "1;31"),
            };
            let level = if coloured {
                format!("\x1b[{colour}m{mark:<LEVEL$}\x1b[0m")
            } else {
                format!("{mark:<LEVEL$}")
            };
            for (at, line) in lines.iter().enumerate() {
                let _ = match at {
                    0 => writeln!(out, "{level}{:<CHECK$}{line}", finding.check),
                    _ => writeln!(out, "{:indent$}{line}", ""),
                };
            }
        }
        let faults = self
            .findings
            .iter()
            .filter(|it| it.level == Level::Fault)
            .count();
        let _ = match faults {
            0 => writeln!(out, "\nno faults"),
            1 => writeln!(out, "\n1 fault"),
            n => writeln!(out, "\n{n} faults"),
        };
        out
    }
}

/// Whether the output is a screen that wants colours.
pub(crate) fn is_coloured() -> bool {
    std::io::stdout().is_terminal() && wants_colours()
}

/// <https://no-color.org>: unless `NO_COLOR` is set and not empty.
pub(crate) fn wants_colours() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// The words of a text in lines of at most `width` columns; a longer word has a line of its own.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().map_or(0, |line| line.chars().count());
        if line > 0 && line + 1 + word.chars().count() > width {
            lines.push(word.to_owned());
        } else if let Some(last) = lines.last_mut() {
            if line > 0 {
                last.push(' ');
            }
            last.push_str(word);
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_fits_the_screen_and_counts_faults() {
        let mut report = Report::default();
        report.add(Finding::new(Level::Ok, "eviction", "noeviction").at("127.0.0.1:6379"));
        let fault = Finding::new(Level::Fault, "persistence", "none: ".repeat(20));
        report.add(fault.at("127.0.0.1:6379").fix("set `appendonly yes`"));
        let text = report.render(60, false);
        assert!(
            text.lines().all(|line| line.chars().count() <= 60),
            "{text}"
        );
        assert!(
            text.ends_with("\n1 fault\n") && text.contains("→ set `appendonly yes`"),
            "{text}"
        );
        assert!(!text.contains('\x1b') && report.render(60, true).contains("\x1b[1;31m"));
    }
}
