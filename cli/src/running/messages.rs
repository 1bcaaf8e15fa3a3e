//! Messages between the supervisor and its watchdog: lines of JSON over a socket.

use std::time::Duration;

use rustix::process::WaitIdStatus;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::limits::Limits;

/// From the supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum ToWatchdog {
    /// The first one.
    Begin {
        limits: Limits,
        deadline: Duration,
        /// Whether the command waits until it has the terminal.
        foreground: bool,
    },
    /// Until when the lock is held, by the clock since the machine was started. Also a sign of life.
    Deadline(Duration),
}

/// From the watchdog.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum FromWatchdog {
    /// The command runs, with this process and group.
    Started(i32),
    /// It could not be started.
    NotStarted(String),
    /// It was not started: the lock had ended, or was about to.
    TooLate,
    /// It was stopped by this signal.
    Stopped(i32),
    /// It was sent a signal because of the deadline.
    Ending,
    /// It ended like this. Its process id stays taken until the supervisor closes the socket.
    Ended(Ended),
    /// Nothing of its process group is left.
    Clean,
    /// The answer to each deadline.
    Alive,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Ended {
    Exited(i32),
    Killed(i32),
}

impl Ended {
    pub(super) fn of(status: &WaitIdStatus) -> Self {
        match status.terminating_signal() {
            Some(signal) => Self::Killed(signal),
            None => Self::Exited(status.exit_status().unwrap_or_default()),
        }
    }
}

/// A message as a line.
pub(super) fn line(message: &impl Serialize) -> Vec<u8> {
    // These types have no maps with keys that are no text, the only thing that fails.
    let mut line = serde_json::to_vec(message).unwrap_or_default();
    line.push(b'\n');
    line
}

/// Bytes that arrive, cut into messages.
#[derive(Debug, Default)]
pub(super) struct Lines {
    bytes: Vec<u8>,
}

impl Lines {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next message that is complete. What is none is passed over: the other side is the same program.
    pub(super) fn next<T: DeserializeOwned>(&mut self) -> Option<T> {
        while let Some(end) = self.bytes.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = self.bytes.drain(..=end).collect();
            if let Ok(message) = serde_json::from_slice(&line) {
                return Some(message);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_in_any_pieces() {
        let sent = [
            FromWatchdog::Started(7),
            FromWatchdog::Alive,
            FromWatchdog::Clean,
        ];
        let bytes: Vec<u8> = sent.iter().flat_map(line).collect();
        let (mut lines, mut got) = (Lines::default(), Vec::new());
        for byte in bytes {
            lines.push(&[byte]);
            while let Some(message) = lines.next::<FromWatchdog>() {
                got.push(message);
            }
        }
        assert_eq!(got, sent);
    }
}
