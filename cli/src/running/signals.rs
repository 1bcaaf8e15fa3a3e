//! The signals that the supervisor takes for its command.

use std::fs;
use std::future::poll_fn;
use std::io;
use std::str::FromStr;
use std::task::Poll;

use nix::sys::signal::{SigSet, Signal as Named};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::limits::OnLost;

/// Signals that are passed on, and those that stop and continue a job.
const TAKEN: [Named; 9] = [
    Named::SIGHUP,
    Named::SIGINT,
    Named::SIGQUIT,
    Named::SIGTERM,
    Named::SIGUSR1,
    Named::SIGUSR2,
    Named::SIGWINCH,
    Named::SIGTSTP,
    Named::SIGCONT,
];

/// Signals that arrive, from the moment when this was made.
#[derive(Debug)]
pub(crate) struct Signals {
    taken: Vec<(i32, Signal)>,
    /// Nobody asks for it. If it was ignored when this process was started, children that end would leave no trace, here and in
    /// the watchdog; a handler changes that for both.
    _children: Signal,
}

impl Signals {
    /// Those that were ignored when this process was started stay so, for the command too: `nohup` sees to that. None stays blocked:
    /// that is what a starter with threads has forgotten.
    pub(crate) fn new() -> io::Result<Self> {
        SigSet::empty().thread_set_mask()?;
        let ignored = ignored();
        let taken = TAKEN
            .into_iter()
            .map(|signal| signal as i32)
            .filter(|number| ignored >> (number - 1) & 1 == 0)
            .map(|number| Ok((number, signal(SignalKind::from_raw(number))?)))
            .collect::<io::Result<_>>()?;
        let _children = signal(SignalKind::child())?;
        Ok(Self { taken, _children })
    }

    /// The next one.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: none is lost.
    pub(crate) async fn next(&mut self) -> i32 {
        poll_fn(|cx| {
            for (number, signal) in &mut self.taken {
                if signal.poll_recv(cx).is_ready() {
                    return Poll::Ready(*number);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// The next one that ends a process which does nothing about it.
    pub(crate) async fn next_end(&mut self) -> i32 {
        loop {
            let number = self.next().await;
            let goes_on = [Named::SIGWINCH, Named::SIGTSTP, Named::SIGCONT];
            if !goes_on.iter().any(|&signal| signal as i32 == number) {
                return number;
            }
        }
    }
}

/// The signals that this process ignores, as bits.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok())
        .unwrap_or_default()
}

/// Reads the argument of `--on-lost`.
pub(crate) fn on_lost(text: &str) -> Result<OnLost, String> {
    match text {
        "kill" | "KILL" | "SIGKILL" => return Ok(OnLost::Kill),
        "ignore" => return Ok(OnLost::Ignore),
        _ => {}
    }
    let name = text.to_ascii_uppercase();
    let name = name.strip_prefix("SIG").unwrap_or(&name);
    match Named::from_str(&format!("SIG{name}")) {
        Ok(Named::SIGSTOP | Named::SIGTSTP | Named::SIGCONT) | Err(_) => {
            Err("this is neither `kill`, `ignore`, nor a signal that ends a program, such as `term` or `int`".into())
        }
        Ok(signal) => Ok(OnLost::Signal(signal as i32)),
    }
}

/// The name of a signal.
pub(crate) fn name(number: i32) -> String {
    Named::try_from(number).map_or_else(|_| format!("signal {number}"), |signal| signal.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_argument_of_on_lost_is_a_signal_or_a_word() {
        for (text, expected) in [
            ("term", OnLost::Signal(15)),
            ("TERM", OnLost::Signal(15)),
            ("SIGUSR1", OnLost::Signal(10)),
            ("int", OnLost::Signal(2)),
            ("kill", OnLost::Kill),
            ("ignore", OnLost::Ignore),
        ] {
            assert_eq!(on_lost(text), Ok(expected), "{text}");
        }
        for bad in ["", "stop", "SIGSIGTERM", "15x", "cont"] {
            assert!(on_lost(bad).is_err(), "{bad}");
        }
    }
}
