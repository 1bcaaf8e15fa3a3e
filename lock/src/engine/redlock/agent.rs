//! The agent of one hold at one node: asks for it, renews it, and releases it until the node has answered.
//!
//! It lives longer than the attempt and the guard: a grant that comes late is released by the one who asked for it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::release::is_retryable;
use super::attempt::patience;
use super::hold::{NodeEnd, QuorumHold};
use super::node::{Left, Node};
use crate::error::{Error, ErrorKind};
use crate::protocol::call::Call;
use crate::protocol::permits::Permits;
use crate::protocol::redlock::{NODE, fence, read_fence};
use crate::protocol::{Announced, End, Ended, Renewal, Renewed};

/// A renewal takes this part of the lease at most, so that several fit between the first and the end.
const RENEWAL_PART: u32 = 6;
/// A renewal that failed is repeated after this part of the lease.
const RETRY_PART: u32 = 20;
/// The shortest bound on a renewal, and pause behind one.
const SHORTEST: Duration = Duration::from_millis(10);
/// Pauses between attempts at a release grow from this up to the next.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const MAX_PAUSE: Duration = Duration::from_millis(500);
/// How long a release goes on beyond the lease: the last request that could set it may run a little later.
const BEYOND_LEASE: Duration = Duration::from_secs(1);

/// The agent.
struct Agent {
    hold: Arc<QuorumHold>,
    /// The index of its node.
    index: usize,
    node: Arc<Node>,
    /// Leftovers that its requests may have at the node.
    left: Left,
    /// When the latest lease there began, at the latest.
    since: Instant,
    /// Of the node's map and connections, when it was granted or renewed last.
    changes: u64,
}

/// Does all that is to be done for `hold` at the node with this index.
pub(super) async fn run(hold: Arc<QuorumHold>, index: usize) {
    let node = Arc::clone(&hold.core.nodes[index]);
    let mut agent = Agent {
        hold: Arc::clone(&hold),
        index,
        node,
        left: Left::default(),
        since: hold.core.clock.now(),
        changes: 0,
    };
    let end = hold.end();
    // Whatever is under way then is given up: its connection is noted, and the release runs behind it or kills it.
    end.run_until_cancelled(agent.hold_on()).await;
    end.cancelled().await;
    agent.release().await;
}

impl Agent {
    /// Asks, and renews for as long as there is anything to renew.
    async fn hold_on(&mut self) {
        self.acquire().await;
        if self.left.hold && self.hold.is_fenced {
            self.fence().await;
        }
        loop {
            let clock = &self.hold.core.clock;
            let next_lease = || {
                let now = clock.read();
                self.hold.state(|state| state.quorum.next_lease(now))
            };
            let Some(lease) = next_lease() else { return };
            let due = self.since + self.hold.terms.lease / 3;
            clock.sleep_until(due).await;
            let lease = next_lease().map(|latest| latest.min(lease));
            let Some(lease) = lease else { return };
            match self.renew(lease).await {
                Some(Renewed::Held | Renewed::Contended) => {}
                Some(Renewed::Gone) => self.take_again().await,
                Some(Renewed::Unclear) | None => {
                    let telemetry = &self.hold.core.telemetry;
                    telemetry.renewal_failed(self.hold.subject(), self.hold.left());
                    let pause = (self.hold.terms.lease / RETRY_PART).max(SHORTEST);
                    self.hold.core.clock.sleep(pause).await;
                }
            }
        }
    }

    /// The first request, whose answer counts.
    async fn acquire(&mut self) {
        let deadline = Instant::now() + patience(&self.hold.terms);
        let acquired = self.node.acquire(&self.hold, deadline, &mut self.left);
        let acquired = acquired.await;
        let index = self.index;
        match acquired {
            Ok(grant) => {
                self.since = grant.sent.monotonic;
                self.changes = self.node.client().map_or(0, |client| client.changes());
                self.hold.answered(|state| {
                    let quorum = &mut state.quorum;
                    quorum.granted(index, grant.sent, grant.lease, grant.counter);
                });
            }
            Err(refusal) => self.hold.answered(|state| {
                state.quorum.refused(index);
                state.refusals.push(refusal);
            }),
        }
    }

    /// Writes the token once it is known.
    async fn fence(&mut self) {
        let mut token = self.hold.fence().subscribe();
        let Ok(token) = token
            .wait_for(Option::is_some)
            .await
            .map(|token| token.unwrap_or(0))
        else {
            return;
        };
        let Some(client) = self.node.client() else {
            return;
        };
        let hold = &self.hold;
        let counter_ttl = hold.core.config.interop.counter_ttl(hold.terms.lease);
        let call = fence(&hold.name, &hold.id, token, counter_ttl);
        let deadline = Instant::now() + hold.left();
        let reply = client.eval(&call.slices().call(), deadline).await;
        let index = self.index;
        match reply.map(|evaluated| read_fence(&evaluated.value)) {
            Ok(Some(true)) => hold.answered(|state| state.quorum.fenced(index)),
            Ok(Some(false)) => hold.answered(|state| state.quorum.forgot(index)),
            Ok(None) | Err(_) => {}
        }
    }

    /// One renewal. Returns the node's answer, if there is one.
    async fn renew(&mut self, lease: Duration) -> Option<Renewed> {
        let bound = (self.hold.terms.lease / RENEWAL_PART).max(SHORTEST);
        let deadline = Instant::now() + bound;
        let client = self.node.connected(deadline).await.ok()?;
        let hold = &self.hold;
        let mut call = Call::new(NODE.renew_one);
        let renewal = Renewal {
            name: &hold.name,
            id: &hold.id,
            permits: Permits::NONE,
            lease,
        };
        (NODE.add_renewal)(&renewal, &mut call);
        let reply = client.eval(&call.slices().call(), deadline).await.ok()?;
        let answer = (NODE.read_renewals)(&reply.value, 1)?.pop()?;
        let clock = &hold.core.clock;
        let (index, now) = (self.index, clock.read());
        let sent = clock.at(reply.sent, reply.sent_wall);
        match answer {
            Renewed::Held | Renewed::Contended => {
                self.since = sent.monotonic;
                let changes = client.changes();
                let is_other = std::mem::replace(&mut self.changes, changes) != changes;
                let lease = hold.terms.lease;
                self.node
                    .keep_registered(&hold.core, &client, lease, is_other);
                let mut renewed = None;
                hold.answered(|state| {
                    renewed = state.quorum.renewed(index, sent, lease, now);
                });
                if let Some(late) = renewed {
                    hold.core.telemetry.renewed(hold.subject(), lease, late);
                }
            }
            Renewed::Gone => {
                self.since = sent.monotonic;
                hold.answered(|state| state.quorum.forgot(index));
            }
            Renewed::Unclear => {}
        }
        Some(answer)
    }

    /// The node does not have it: it is asked to take it again. That counts from the next renewal on.
    async fn take_again(&mut self) {
        let deadline = Instant::now() + patience(&self.hold.terms);
        let taken = self.node.acquire(&self.hold, deadline, &mut self.left);
        // Why not, if not, the next renewal shows.
        drop(taken.await);
    }

    /// Releases it until the node has answered, or it is over in any case.
    async fn release(&mut self) {
        if !self.left.hold && self.left.unanswered.is_empty() {
            return self.hold.answered(|state| state.ended(NodeEnd::Gone));
        }
        let hold = Arc::clone(&self.hold);
        let clock = &hold.core.clock;
        let until = clock.now() + hold.terms.lease + BEYOND_LEASE;
        let mut pause = FIRST_PAUSE;
        let mut is_told = false;
        while clock.now() < until {
            let end = self.try_release(until).await;
            let (is_done, is_final) = match &end {
                Ok(_) => (self.left.unanswered.is_empty(), true),
                Err(Stuck { is_final, .. }) => (*is_final, *is_final),
            };
            if is_final && !is_told {
                is_told = true;
                self.hold.answered(|state| {
                    state.ended(end.unwrap_or_else(|stuck| NodeEnd::Failed(stuck.error)));
                });
            }
            if is_done {
                return;
            }
            clock.sleep(pause).await;
            pause = (pause * 2).min(MAX_PAUSE);
        }
        if !is_told {
            let error = Error::new(
                ErrorKind::Unavailable,
                "the node did not answer the release",
            );
            self.hold
                .answered(|state| state.ended(NodeEnd::Failed(error)));
        }
    }

    async fn try_release(&mut self, until: Instant) -> Result<NodeEnd, Stuck> {
        let stuck = |error, is_final| Stuck { error, is_final };
        let core = &self.hold.core;
        let left = until.saturating_duration_since(core.clock.now());
        let deadline = Instant::now() + core.config.command_timeout.min(left);
        #[cfg(feature = "testing")]
        crate::testing::hooks::fail_at(&core.clock, self.index)
            .map_err(|error| stuck(error, false))?;
        let client = self.node.connected(deadline).await;
        let client = client.map_err(|error| stuck(error, false))?;
        let hold = &self.hold;
        let end = End {
            name: &hold.name,
            id: &hold.id,
            permits: Permits::NONE,
            kept: None,
            ticket: None,
            counter_ttl: hold.core.config.interop.counter_ttl(hold.terms.lease),
            channels: client.channels(),
            // Waiters at this node listen there.
            redisson: Some(Announced::IfFree),
        };
        let call = (NODE.release)(&end);
        let call = call.slices();
        let alone = || (NODE.release_single_key)(&end).to_owned();
        let call = call.call().with_fallback(&alone);
        match client.end(&call, &mut self.left.unanswered, deadline).await {
            Ok(evaluated) => match (NODE.read_release)(&evaluated.value) {
                Some(Ended::Released | Ended::Kept(_)) => Ok(NodeEnd::Released),
                // An earlier attempt of this release may have been the one.
                Some(Ended::AlreadyGone) if evaluated.repeated => Ok(NodeEnd::Released),
                Some(Ended::AlreadyGone) => Ok(NodeEnd::Gone),
                None => Err(stuck(Error::unexpected(&evaluated.value), true)),
            },
            Err(error) => {
                let is_final = !is_retryable(&error);
                Err(stuck(Error::from_client(error), is_final))
            }
        }
    }
}

/// A release that failed.
struct Stuck {
    error: Error,
    /// Whether it makes no sense to try again.
    is_final: bool,
}
