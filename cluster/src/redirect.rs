//! Retry decisions after a failed attempt: the next node, the pause before it, and when to give up. Pure: the client acts on
//! them.
//!
//! The rules are those of the cluster specification; the classifier of errors knows which mean "not executed".

use std::time::{Duration, Instant};

use leasehold_resp::{Error, ErrorKind, ServerErrorKind};

use crate::topology::NodeAddress;

/// Redirects of one call. Two nodes that point at each other (normal for half a second after a migration) or a node
/// that points at itself would otherwise keep a caller for its whole deadline, sending all the time.
const MAX_REDIRECTS: u8 = 16;

/// The first pause at a node that is up but not able (LOADING, BUSY, TRYAGAIN, CLUSTERDOWN); each further one is twice as
/// long.
const FIRST_PAUSE: Duration = Duration::from_millis(10);

/// The longest of these pauses.
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// Retry state of one call.
#[derive(Debug)]
pub(crate) struct RetryState {
    deadline: Instant,
    /// Whether the call may be sent again after an attempt that may have run.
    idempotent: bool,
    /// Whether an attempt without an answer may have run.
    repeated: bool,
    redirects: u8,
    pause: Duration,
    /// Whether the server answered `NOSCRIPT` once. A script may return that error itself, so it is acted on only once.
    forgotten: bool,
}

/// The next step of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Send it again at once, to the node that the map names.
    Again,
    /// The slot belongs to this node now: note it, and send it there.
    Moved(u16, NodeAddress),
    /// Send it to this node behind an `ASKING`, this once; the map stays as it is.
    Ask(NodeAddress),
    /// Pause, then send it again to the node that the map names then; learn the map anew, if `refresh`.
    Pause {
        /// How long.
        pause: Duration,
        /// Whether the map is doubtful.
        refresh: bool,
    },
}

impl RetryState {
    pub(crate) const fn new(deadline: Instant, idempotent: bool) -> Self {
        Self {
            deadline,
            idempotent,
            repeated: false,
            redirects: 0,
            pause: FIRST_PAUSE,
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

    /// Whether the server said that it does not know the script: then the source is sent along, whatever other calls
    /// have learned since.
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
            // The connection is gone or was never up; the slot may have another owner by now.
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
            // The node knows its own role better than the map does.
            ServerErrorKind::ReadOnly
            | ServerErrorKind::MasterDown
            | ServerErrorKind::ClusterDown
            | ServerErrorKind::NonLocalKey
            | ServerErrorKind::Unblocked => self.pause_or_end(error, now, true),
            _ if error.is_transient() => self.pause_or_end(error, now, false),
            _ => Err(self.verdict(error)),
        }
    }

    /// The error that the call ends with: `error`, unless it means "not executed" while an earlier attempt may have run.
    pub(crate) fn verdict(&self, error: Error) -> Error {
        if self.repeated && !error.may_have_executed() {
            let detail = format!("{}; an earlier attempt may have run", error.detail());
            return Error::unknown(&error.node().into(), detail);
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
        let is_final = error.is_closed() || error.kind() == ErrorKind::Config;
        if now + pause >= self.deadline || is_final {
            return Err(self.verdict(error));
        }
        self.pause = (pause * 2).min(LONGEST_PAUSE);
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// The host of the node that answers.
    const HERE: &str = "10.0.0.1";

    fn said(line: &str) -> Error {
        Error::server(&Arc::from("10.0.0.1:6379"), line.as_bytes())
    }

    fn lost() -> Error {
        Error::unknown(&Arc::from("10.0.0.1:6379"), "the connection broke")
    }

    fn not_sent() -> Error {
        Error::not_sent(&Arc::from("10.0.0.1:6379"), "not connected yet")
    }

    fn node(host: &str, port: u16) -> NodeAddress {
        NodeAddress {
            host: host.to_owned(),
            port,
        }
    }

    /// A call that has ten seconds left, and the present instant.
    fn call(idempotent: bool) -> (RetryState, Instant) {
        let now = Instant::now();
        let deadline = now + Duration::from_secs(10);
        (RetryState::new(deadline, idempotent), now)
    }

    fn pause_of(step: Result<Step, Error>) -> (Duration, bool) {
        match step {
            Ok(Step::Pause { pause, refresh }) => (pause, refresh),
            other => panic!("no pause: {other:?}"),
        }
    }

    #[test]
    fn moved_changes_the_map_and_ask_does_not() {
        let (mut retry, now) = call(false);
        let step = retry.failed(said("MOVED 5 10.0.0.2:7000"), HERE, now);
        assert_eq!(step.unwrap(), Step::Moved(5, node("10.0.0.2", 7000)));
        let step = retry.failed(said("ASK 5 10.0.0.3:7001"), HERE, now);
        assert_eq!(step.unwrap(), Step::Ask(node("10.0.0.3", 7001)));
        assert!(!retry.repeated(), "a redirected attempt did not run");
    }

    #[test]
    fn a_redirect_without_a_host_means_the_host_that_answered() {
        let (mut retry, now) = call(false);
        let step = retry.failed(said("MOVED 8579 :22021"), HERE, now);
        assert_eq!(step.unwrap(), Step::Moved(8579, node(HERE, 22021)));
    }

    #[test]
    fn a_redirect_to_an_unknown_host_asks_for_the_map() {
        for line in ["MOVED 5 ?:7000", "ASK 5 ?:7000"] {
            let (mut retry, now) = call(false);
            let step = retry.failed(said(line), HERE, now);
            assert_eq!(pause_of(step), (FIRST_PAUSE, true), "{line}");
        }
    }

    #[test]
    fn redirects_have_a_limit_of_their_own() {
        let (mut retry, now) = call(true);
        for _ in 0..MAX_REDIRECTS {
            retry
                .failed(said("MOVED 5 10.0.0.2:7000"), HERE, now)
                .unwrap();
        }
        let end = retry.failed(said("MOVED 5 10.0.0.2:7000"), HERE, now);
        assert_eq!(end.unwrap_err().kind(), ErrorKind::Server);
    }

    #[test]
    fn noscript_is_answered_with_the_source_once() {
        let (mut retry, now) = call(true);
        assert!(!retry.needs_source());
        let noscript = || said("NOSCRIPT No matching script. Please use EVAL.");
        let step = retry.failed(noscript(), HERE, now);
        assert_eq!(step.unwrap(), Step::Again);
        assert!(retry.needs_source());
        let end = retry.failed(noscript(), HERE, now).unwrap_err();
        assert_eq!(end.kind(), ErrorKind::Server, "a script may return it");
    }

    #[test]
    fn pauses_double_up_to_a_limit_and_end_with_the_deadline() {
        let now = Instant::now();
        let mut retry = RetryState::new(now + Duration::from_millis(400), true);
        let busy = || said("LOADING Redis is loading the dataset in memory");
        let expected = [10, 20, 40, 80, 160, 200, 200];
        for ms in expected {
            let step = retry.failed(busy(), HERE, now);
            assert_eq!(pause_of(step), (Duration::from_millis(ms), false));
        }
        let late = now + Duration::from_millis(200);
        let end = retry.failed(busy(), HERE, late).unwrap_err();
        assert!(!end.may_have_executed());
    }

    #[test]
    fn what_a_node_says_of_its_own_role_puts_the_map_in_doubt() {
        for line in [
            "READONLY You can't write against a read only replica.",
            "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
            "CLUSTERDOWN The cluster is down",
        ] {
            let (mut retry, now) = call(true);
            assert!(pause_of(retry.failed(said(line), HERE, now)).1, "{line}");
        }
        for line in [
            "TRYAGAIN Multiple keys request during rehashing of slot",
            "BUSY Redis is busy running a script.",
        ] {
            let (mut retry, now) = call(true);
            assert!(!pause_of(retry.failed(said(line), HERE, now)).1, "{line}");
        }
    }

    #[test]
    fn only_an_idempotent_call_is_sent_again_after_it_may_have_run() {
        let (mut retry, now) = call(false);
        let end = retry.failed(lost(), HERE, now).unwrap_err();
        assert!(end.may_have_executed());

        let (mut retry, now) = call(true);
        assert!(pause_of(retry.failed(lost(), HERE, now)).1);
        assert!(retry.repeated());
    }

    #[test]
    fn what_was_not_sent_may_be_sent_again_by_any_call() {
        let (mut retry, now) = call(false);
        assert!(pause_of(retry.failed(not_sent(), HERE, now)).1);
        assert!(!retry.repeated());
    }

    #[test]
    fn a_final_refusal_after_a_lost_reply_is_an_unknown_outcome() {
        let (mut retry, now) = call(true);
        retry.failed(lost(), HERE, now).unwrap();
        let end = retry.failed(said("OOM command not allowed"), HERE, now);
        let end = end.unwrap_err();
        assert_eq!(end.kind(), ErrorKind::Unknown);
        assert!(end.detail().contains("an earlier attempt may have run"));

        let (mut retry, now) = call(true);
        let end = retry.failed(said("OOM command not allowed"), HERE, now);
        assert_eq!(end.unwrap_err().kind(), ErrorKind::Server);
    }

    #[test]
    fn nothing_is_retried_on_a_closed_client_or_with_settings_that_cannot_work() {
        for kind in [ErrorKind::Closed, ErrorKind::Config] {
            let (mut retry, now) = call(true);
            let error = Error::new(kind, &Arc::from(""), "closed here");
            let end = retry.failed(error, HERE, now).unwrap_err();
            assert_eq!(end.kind(), kind);
        }
    }
}
