//! One party at a barrier: from its arrival until its generation passes or breaks, or it withdraws.
//!
//! While it waits it is a hold: the renewal worker renews it, so a runtime that is blocked breaks no generation, and a wait that
//! is dropped withdraws it as a guard that is dropped releases a lock.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use leasehold_cluster::Unanswered;

use super::context::Context;
use super::hold::{Granted, Hold};
use super::operation::ask;
use super::release::{self, Release, Withdrawn};
use super::signal::{self, Watcher};
use super::work_queue::Unfinished;
use crate::error::{Error, ErrorKind, LostReason};
use crate::observer::Way;
use crate::options::{Replicas, Terms};
use crate::protocol::barrier::{self, Arrived, PARTY, read_arrive, read_look};
use crate::protocol::permits::Permits;
use crate::state::barrier::{Fate, View};
use crate::state::deadline::Now;
use crate::state::id::HoldId;
use crate::state::names::Name;

/// The request of a party.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Party<'a> {
    pub(crate) context: &'a Arc<Context>,
    pub(crate) name: &'a Arc<Name>,
    /// How many pass together.
    pub(crate) parties: u32,
    pub(crate) lease: Duration,
}

/// A generation that has passed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Passed {
    pub(crate) generation: u64,
    pub(crate) is_leader: bool,
}

/// An arrival without an answer yet. Dropping it withdraws the party: the request may run later.
struct Arriving<'a> {
    party: Party<'a>,
    id: HoldId,
    unanswered: Unanswered,
    unfinished: Option<Unfinished>,
}

/// A party that has arrived and waits. Dropping it withdraws the party.
struct Waiting<'a> {
    party: Party<'a>,
    generation: u64,
    hold: Arc<Hold>,
    /// Whether it was told how its generation ended, or was withdrawn.
    is_over: bool,
}

impl Party<'_> {
    /// Arrives, and waits until the generation has passed; `None` if it had to withdraw at `until`.
    pub(crate) async fn wait(self, until: Option<Instant>) -> Result<Option<Passed>, Error> {
        let Self { context, name, .. } = self;
        context.registry.start_worker()?;
        // Before it arrives, so that no message is missed that the others here hear.
        let mut watcher = Watcher::join(context, |context| &context.barriers, name)?;
        let sent = context.clock().read();
        let (id, arrived) = self.arrive().await?;
        let (generation, first_end) = match arrived {
            Arrived::Passed {
                generation,
                is_leader,
            } => {
                return Ok(Some(Passed {
                    generation,
                    is_leader,
                }));
            }
            Arrived::Waits {
                generation,
                first_end,
            } => (generation, first_end),
            Arrived::Broken => return Err(broken()),
            Arrived::Disagrees { parties } => return Err(self.disagrees(parties)),
        };
        let waiting = Waiting::begin(self, id, generation, sent);
        watcher.keep(&waiting.hold)?;
        watcher.skip();
        watcher.look_by(context.clock().now() + first_end);
        watcher.listen(&[barrier::channel(name)]);
        waiting.wait(&mut watcher, until).await
    }

    async fn arrive(self) -> Result<(HoldId, Arrived), Error> {
        let Self {
            context,
            name,
            parties,
            lease,
        } = self;
        let mut arriving = Arriving {
            party: self,
            id: context.next_hold(None),
            unanswered: Unanswered::default(),
            unfinished: Some(context.registry.work.unfinished()),
        };
        let id = arriving.id;
        let call = barrier::arrive(name, &id, parties, lease, context.client.channels());
        let call = call.slices();
        let call = call.call();
        let deadline = Instant::now() + context.config.command_timeout;
        let unanswered = &mut arriving.unanswered;
        let evaluated = context.client.eval_tracked(&call, deadline, unanswered);
        let evaluated = match evaluated.await {
            Ok(evaluated) => evaluated,
            Err(error) => {
                if !error.may_have_executed() {
                    arriving.unfinished = None;
                }
                return Err(Error::from_client(error));
            }
        };
        let arrived =
            read_arrive(&evaluated.value).ok_or_else(|| Error::unexpected(&evaluated.value))?;
        // A copy that runs later finds that it has arrived.
        arriving.unfinished = None;
        Ok((id, arrived))
    }

    fn disagrees(self, parties: u64) -> Error {
        Error::new(
            ErrorKind::PartiesDisagree,
            format!(
                "{} are to pass together here, and {parties} for those that have arrived",
                self.parties
            ),
        )
    }
}

impl<'a> Waiting<'a> {
    /// The party has arrived, by a request that was sent after `sent`: it is renewed from now on.
    fn begin(party: Party<'a>, id: HoldId, generation: u64, sent: Now) -> Self {
        let hold = Hold::new(Granted {
            protocol: &PARTY,
            name: Arc::clone(party.name),
            id,
            permits: Permits::NONE,
            token: None,
            terms: Terms::renewed(party.lease, Replicas::None),
            owner: None,
            acknowledged: 0,
            way: Way::Opened,
            since: sent,
            lease: party.lease,
            lease_since: sent,
            chain: None,
            ticket: None,
            unanswered: Unanswered::default(),
            clock: party.context.clock().clone(),
        });
        party.context.registry.work.renew(&hold);
        Self {
            party,
            generation,
            hold,
            is_over: false,
        }
    }

    async fn wait(
        mut self,
        watcher: &mut Watcher<View>,
        until: Option<Instant>,
    ) -> Result<Option<Passed>, Error> {
        let Party { context, name, .. } = self.party;
        loop {
            let seen = {
                let mut news = pin!(watcher.next(|| look(context, name, None), until));
                let mut over = pin!(release::over(&context.registry, &self.hold));
                poll_fn(|cx| {
                    if let Poll::Ready(seen) = news.as_mut().poll(cx) {
                        return Poll::Ready(Ok(seen));
                    }
                    over.as_mut().poll(cx).map(Err)
                })
                .await
            };
            let view = match seen {
                Ok(seen) => match seen? {
                    Some(view) => view,
                    None => return self.withdraw().await,
                },
                Err(LostReason::Closed) => return Err(Error::closed()),
                Err(LostReason::Forked) => return Err(Error::new(ErrorKind::Forked, "")),
                // It has passed, or broke, or the server lost this party: then the others are told too.
                Err(_) => look(context, name, Some(self.generation)).await?,
            };
            if let Some(passed) = self.judge(&view)? {
                return Ok(Some(passed));
            }
        }
    }

    /// The end of the generation; `None` while it waits.
    fn judge(&mut self, view: &View) -> Result<Option<Passed>, Error> {
        let fate = view.fate(self.generation, self.hold.id.as_bytes());
        if fate == Fate::Waits {
            return Ok(None);
        }
        self.is_over = true;
        // The server has ended it.
        release::lose(
            &self.party.context.registry,
            &self.hold,
            LostReason::Released,
        );
        match fate {
            Fate::Waits => Ok(None),
            Fate::Passed { is_leader } => Ok(Some(Passed {
                generation: self.generation,
                is_leader,
            })),
            Fate::Broken => Err(broken()),
            Fate::Forgotten => Err(Error::new(
                ErrorKind::Unknown,
                "the generation is over, and how it ended is forgotten",
            )),
        }
    }

    /// Withdraws because the time to wait is over; if the generation has ended before, that counts.
    async fn withdraw(mut self) -> Result<Option<Passed>, Error> {
        let Party { context, name, .. } = self.party;
        self.is_over = true;
        match release::release(context, &self.hold, 0).await? {
            Release::AlreadyGone => {
                let view = look(context, name, None).await?;
                self.judge(&view)
            }
            Release::Released | Release::Kept { .. } | Release::StillHeld => Ok(None),
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            release::drop_guard(self.party.context, &self.hold, 0);
        }
    }
}

impl Drop for Arriving<'_> {
    fn drop(&mut self) {
        let Some(unfinished) = self.unfinished.take() else {
            return;
        };
        let Party {
            context,
            name,
            lease,
            ..
        } = self.party;
        let withdrawn = Withdrawn {
            protocol: &PARTY,
            name: Arc::clone(name),
            id: self.id,
            permits: Permits::NONE,
            ticket: None,
            lease,
        };
        let unanswered = std::mem::take(&mut self.unanswered);
        release::withdraw(context, withdrawn, unanswered, unfinished);
    }
}

impl signal::View for View {
    fn changes_within(&self, _: Option<&Self>) -> Option<Duration> {
        self.first_end
    }

    fn is_news_after(&self, _: &Self) -> bool {
        true
    }
}

/// Looks at the barrier; `gone` is a generation of which a party is gone.
async fn look(context: &Arc<Context>, name: &Name, gone: Option<u64>) -> Result<View, Error> {
    let call = barrier::look(name, context.client.channels(), gone);
    let call = call.slices();
    let reply = ask(context, name, &call.call()).await?;
    read_look(&reply).ok_or_else(|| Error::unexpected(&reply))
}

fn broken() -> Error {
    Error::new(
        ErrorKind::Broken,
        "a party of this generation died, or the server lost it",
    )
}
