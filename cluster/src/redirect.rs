//! What to do after a failure: where to go, how long to wait, when to give up. Pure: it decides, others act.
//!
//! The rules are those of the cluster specification; which failures say "not executed" is the classifier's knowledge.

use std::time::{Duration, Instant};

use leasehold_resp::{Error, ServerErrorKind};

use crate::topology::NodeAddress;

/// Redirects of one call. Two nodes that point at each other (normal for half a second after a migration) or a node
/// that points at itself would otherwise keep a caller for its whole deadline, sending all the time.
const MAX_REDIRECTS: u8 = 16;

/// Pauses at a node that is up but not able (LOADING, BUSY, TRYAGAIN, CLUSTERDOWN): the first and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(200));

/// One call on its way.
#[derive(Debug)]
pub(crate) struct Journey {
    deadline: Instant,
    /// Whether the call may be sent again after an attempt that may have run.
    idempotent: bool,
    /// Whether an attempt without an answer may have run.
    repeated: bool,
    redirects: u8,
    pause: Duration,
    /// The server forgot the script once; a script may itself answer `NOSCRIPT`, so not again.
    forgotten: bool,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Send it again at once, to whoever the map names.
    Again,
    /// The slot belongs to this node now: note it, and send it there.
    Moved(u16, NodeAddress),
    /// Send it to this node behind an `ASKING`, this once; the map stays as it is.
    Ask(NodeAddress),
    /// Pause, then send it again to whoever the map names then; learn anew who that is, if `refresh`.
    Pause {
        /// How long.
        pause: Duration,
        /// Whether the map is doubtful.
        refresh: bool,
    },
}

impl Journey {
    pub(crate) const fn new(deadline: Instant, idempotent: bool) -> Self {
        Self {
            deadline,
            idempotent,
            repeated: false,
            redirects: 0,
            pause: PAUSE.0,
            forgotten: false,
        }
    }

    pub(crate) const fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Whether an earlier attempt may have run.
    pub(crate) const fn repeated(&self) -> bool {
        self.repeated
    }

    /// Whether the server said that it does not know the script: then the source goes along, whatever other calls have
    /// seen since.
    pub(crate) const fn needs_source(&self) -> bool {
        self.forgotten
    }

    /// Decides after `error` from the node that listens at `host`.
    ///
    /// # Errors
    ///
    /// The call ends with this.
    pub(crate) fn failed(&mut self, error: Error, host: &str, now: Instant) -> Result<Step, Error> {
        let may_have_run = error.may_have_executed();
        self.repeated |= may_have_run;
        if may_have_run && !self.idempotent {
            return Err(error);
        }
        let Some(server) = error.as_server() else {
            // The connection is gone, or was never there; who serves the slot may have changed with it.
            return self.pause_or_end(error, now, true);
        };
        match server.kind() {
            ServerErrorKind::NoScript if !self.forgotten => {
                self.forgotten = true;
                Ok(Step::Again)
            }
            ServerErrorKind::Moved {
                slot,
                host: target,
                port,
            } => {
                let (slot, target, port) = (*slot, target.clone(), *port);
                self.redirect(error, now, target.as_deref(), host, port, |target| {
                    Step::Moved(slot, target)
                })
            }
            ServerErrorKind::Ask {
                host: target, port, ..
            } => {
                let (target, port) = (target.clone(), *port);
                self.redirect(error, now, target.as_deref(), host, port, Step::Ask)
            }
            // What it says of itself is newer than what we believe of it.
            ServerErrorKind::ReadOnly
            | ServerErrorKind::MasterDown
            | ServerErrorKind::ClusterDown
            | ServerErrorKind::NonLocalKey
            | ServerErrorKind::Unblocked => self.pause_or_end(error, now, true),
            _ if error.is_transient() => self.pause_or_end(error, now, false),
            _ => Err(self.verdict(error)),
        }
    }

    /// `error`, unless it says "not executed" of an attempt while an earlier one may have run.
    pub(crate) fn verdict(&self, error: Error) -> Error {
        if self.repeated && !error.may_have_executed() {
            let detail = format!("{}; an earlier attempt may have run", error.detail());
            return Error::unknown(&error.node().into(), detail).with_source(error);
        }
        error
    }

    fn redirect(
        &mut self,
        error: Error,
        now: Instant,
        target: Option<&str>,
        answered: &str,
        port: u16,
        step: impl FnOnce(NodeAddress) -> Step,
    ) -> Result<Step, Error> {
        self.redirects += 1;
        if self.redirects > MAX_REDIRECTS {
            return Err(self.verdict(error));
        }
        match target_of(target, port, answered) {
            Some(target) => Ok(step(target)),
            None => self.pause_or_end(error, now, true),
        }
    }

    fn pause_or_end(&mut self, error: Error, now: Instant, refresh: bool) -> Result<Step, Error> {
        let pause = self.pause;
        if now + pause >= self.deadline || error.is_closed() {
            return Err(self.verdict(error));
        }
        self.pause = (pause * 2).min(PAUSE.1);
        Ok(Step::Pause { pause, refresh })
    }
}

/// The node that a redirect from the one at `answered` names: no host means the same host, `?` that the node knows
/// neither a name nor an address for the one it means.
pub(crate) fn target_of(host: Option<&str>, port: u16, answered: &str) -> Option<NodeAddress> {
    let host = host.unwrap_or(answered);
    (host != "?").then(|| NodeAddress {
        host: host.to_owned(),
        port,
    })
}
