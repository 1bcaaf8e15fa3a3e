//! Printing: results go to the standard output, everything else to the standard error.

use std::fmt::Display;
use std::io::{self, Write};

use serde::Serialize;

use crate::args::Global;
use crate::exit::Failure;

/// How to print, and how much.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    json: bool,
    level: Level,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    /// Errors only.
    Quiet,
    /// Warnings too.
    Usual,
    /// Events, too.
    Verbose,
}

/// A failure as JSON.
#[derive(Serialize)]
struct Told<'a> {
    reason: &'a str,
    message: &'a str,
    code: u8,
}

impl Output {
    pub(crate) const fn new(global: &Global) -> Self {
        let level = match (global.quiet, global.verbose) {
            (true, _) => Level::Quiet,
            (false, false) => Level::Usual,
            (false, true) => Level::Verbose,
        };
        Self {
            json: global.json,
            level,
        }
    }

    /// Whether programs read it.
    pub(crate) const fn is_json(&self) -> bool {
        self.json
    }

    /// The result on the standard output: `text` for people and scripts, or `value` as a line of JSON.
    ///
    /// # Errors
    ///
    /// Those of writing. A reader that has gone is one: the result did not arrive.
    pub(crate) fn result(&self, text: impl Display, value: &impl Serialize) -> io::Result<()> {
        let mut out = io::stdout().lock();
        if self.json {
            serde_json::to_writer(&mut out, value)?;
            writeln!(out)?;
        } else {
            writeln!(out, "{text}")?;
        }
        out.flush()
    }

    /// A result that is told to programs only.
    pub(crate) fn told(&self, value: &impl Serialize) -> Result<(), Failure> {
        self.result("", value).map_err(Failure::of_output)
    }

    /// Says what happens, for those who asked for it.
    pub(crate) fn note(&self, text: &str) {
        self.say(Level::Verbose, text);
    }

    /// Warns, unless only errors are wanted.
    pub(crate) fn warn(&self, text: &str) {
        self.say(Level::Usual, text);
    }

    /// Tells why it failed.
    pub(crate) fn failure(&self, failure: &Failure) {
        if self.json {
            self.last_line(&Told {
                reason: failure.reason,
                message: &failure.message,
                code: failure.code,
            });
        } else {
            self.say(Level::Quiet, &failure.message);
        }
    }

    /// A line of JSON on the standard error, where the standard output is a command's.
    pub(crate) fn last_line(&self, value: &impl Serialize) {
        if let Ok(text) = serde_json::to_string(value) {
            let _ = writeln!(io::stderr().lock(), "{text}");
        }
    }

    fn say(&self, level: Level, text: &str) {
        if level <= self.level {
            // A standard error that is closed is no reason to stop.
            let _ = writeln!(io::stderr().lock(), "leasehold: {text}");
        }
    }
}

/// `text` without control characters, which would move a terminal's cursor.
pub(crate) fn shown(text: &str) -> String {
    text.escape_debug().to_string()
}
