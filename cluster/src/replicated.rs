//! Scripts whose effect replicas must confirm before it counts.
//!
//! `WAIT` confirms what was written *on its own connection*, so the script and its `WAIT` share an exclusive one. Newer
//! servers confirm at once what wrote nothing, so every script that is run here writes, also when it is repeated.
//!
//! Which replicas must confirm is decided in [`expectation`](crate::expectation). `INFO replication` behind the script
//! says how far the data have got, the one behind the `WAIT` how far each replica has, and whether the server is still
//! the master of the same data.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use leasehold_resp::{Command, Encode, Error, ServerErrorKind, Value};

use crate::client::{Client, Evaluated};
use crate::expectation::{Expectation, Quorum, Refusal, Verdict};
use crate::listing::{DROP_VALID, Listing};
use crate::master_link::{MasterLink, Replies, info_replication, nothing_written};
use crate::node::Node;
use crate::redirect::{RetryState, Step};
use crate::replication_info::ReplicationInfo;
use crate::script::{OwnedCall, ScriptCall};
use crate::submitted::note;
use crate::unanswered::Unanswered;

/// Upper bound on one wait for replicas.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// How much longer than it was told to a `WAIT` may take before its server is given up.
const WAIT_GRACE: Duration = Duration::from_millis(500);

/// Pause before the next question if replicas have what was written, but not yet all that their master had behind it.
const BEHIND_PAUSE: Duration = Duration::from_millis(2);

/// The confirmation required of replicas.
#[derive(Clone, Copy, Debug)]
pub struct Demand {
    /// How many must confirm.
    pub quorum: Quorum,
    /// The lease that the script gives; a wait for replicas takes a sixth of it at most.
    pub lease: Duration,
    /// The longest lease that anybody uses there: a master whose data are younger grants nothing.
    pub guard: Duration,
}

/// What the reply of a script says that it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It wrote, which replicas must confirm.
    Wrote,
    /// It had nothing to write.
    Nothing,
    /// It found nothing there. A master that lost its data finds nothing either, so that counts only if its data are older than
    /// this.
    Missed(Duration),
}

/// The outcome of a script that was to be confirmed.
#[derive(Debug)]
pub enum Replicated {
    /// The data of the master are too young to grant anything, or to show that something is not there.
    Untrusted {
        /// For how long they will be.
        left: Duration,
        /// Whether the script ran before that was known.
        ran: bool,
        /// Whether an earlier attempt had no answer, and may have run elsewhere.
        repeated: bool,
    },
    /// It ran.
    Ran(Confirmed),
}

/// A script that ran.
#[derive(Debug)]
pub struct Confirmed {
    /// Its reply.
    pub evaluated: Evaluated,
    /// How many replicas have what it wrote, if that is enough; 0 if it wrote nothing.
    pub confirmation: Result<usize, Unconfirmed>,
}

/// Why what a script wrote does not count.
#[derive(Debug)]
pub enum Unconfirmed {
    /// Not all replicas that must have confirmed it.
    Refused(Refusal),
    /// They could not be asked.
    Failed(Error),
}

/// Several scripts that ran together at one master.
#[derive(Debug)]
pub struct Round {
    /// When they were submitted, by the monotonic clock.
    pub sent: Instant,
    /// The same instant by the wall clock.
    pub sent_wall: SystemTime,
    /// Their replies, in order.
    pub replies: Vec<Result<Value, Error>>,
    /// Whether all replicas that must have confirmed all of them.
    pub confirmation: Result<usize, Unconfirmed>,
}

/// One script on its way, and where its attempts are noted.
struct Attempt<'a> {
    demand: &'a Demand,
    deadline: Instant,
    needs_source: bool,
    repeated: bool,
    unanswered: &'a mut Unanswered,
}

/// The replies to the write of a script.
struct Written {
    value: Value,
    info: ReplicationInfo,
    listing: Option<Result<Listing, Refusal>>,
}

impl Effect {
    /// Whether it wrote, where nothing else matters.
    #[must_use]
    pub const fn of_write(wrote: bool) -> Self {
        if wrote { Self::Wrote } else { Self::Nothing }
    }
}

impl Client {
    /// Runs a script and waits until replicas have what it wrote, if `effect` says of the reply that it wrote; and again on
    /// transient failures until `deadline`. The script is idempotent, and writes whenever one that wrote is repeated.
    ///
    /// Connections over which an attempt without an answer was sent are noted in `unanswered`, also if the future is
    /// dropped.
    ///
    /// # Errors
    ///
    /// As of [`eval`](Self::eval). Fewer confirmations than required are no error: see [`Confirmed`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not take back what was sent, and closes the connection it was sent on.
    pub async fn eval_replicated(
        &self,
        call: &ScriptCall<'_>,
        demand: &Demand,
        deadline: Instant,
        effect: impl Fn(&Value) -> Effect,
        unanswered: &mut Unanswered,
    ) -> Result<Replicated, Error> {
        let mut fallback: Option<Box<OwnedCall>> = None;
        let mut retry = RetryState::new(deadline, true);
        let mut asked: Option<Arc<Node>> = None;
        loop {
            let call = fallback.as_ref().map_or(*call, |owned| owned.as_call());
            let (node, asking) = match asked.take() {
                Some(node) => (node, true),
                None => (self.node_for(call.key(), &retry).await?, false),
            };
            let attempt = Attempt {
                demand,
                deadline,
                needs_source: retry.needs_source(),
                repeated: retry.repeated(),
                unanswered,
            };
            let error = match self.attempt(&node, asking, &call, attempt, &effect).await {
                Ok(replicated) => return Ok(replicated),
                Err(error) => error,
            };
            if let Some(single) = call.fallback_after(&error) {
                fallback = Some(Box::new(single));
                continue;
            }
            node.note(&error, call.script().bit());
            match retry.failed(error, &node.address.host, Instant::now())? {
                Step::Ask(address) => asked = Some(self.router().node_at(&address)),
                step => self.take(step, call.key(), &node).await,
            }
        }
    }

    async fn attempt(
        &self,
        node: &Arc<Node>,
        asking: bool,
        call: &ScriptCall<'_>,
        attempt: Attempt<'_>,
        effect: &impl Fn(&Value) -> Effect,
    ) -> Result<Replicated, Error> {
        let Attempt {
            demand,
            deadline,
            needs_source,
            repeated,
            unanswered,
        } = attempt;
        let mut link = MasterLink::open(self.router(), node, call.key(), asking, deadline).await?;
        let untrusted = |left, ran| Replicated::Untrusted {
            left,
            ran,
            repeated,
        };
        let left = link.untrusted_for(demand.guard).await;
        let left = left.map_err(nothing_written)?;
        if !left.is_zero() {
            return Ok(untrusted(left, false));
        }
        let listing = self.service_listing(&link).await.map_err(nothing_written)?;
        let (sent, sent_wall) = (Instant::now(), SystemTime::now());
        let written = link.write(call, needs_source, unanswered).await?;
        let evaluated = Evaluated {
            value: written.value,
            sent,
            sent_wall,
            repeated,
            source: None,
            migrating: asking,
        };
        let effect = effect(&evaluated.value);
        let guard = match effect {
            Effect::Wrote => Some(demand.guard),
            Effect::Missed(_) if !written.info.is_master => return Err(no_master(&link)),
            Effect::Missed(guard) => Some(guard),
            Effect::Nothing => None,
        };
        if let Some(guard) = guard {
            let left = link.check(&written.info, guard).await;
            let left = left.map_err(unconfirmed)?;
            if !left.is_zero() {
                return Ok(untrusted(left, true));
            }
        }
        if effect != Effect::Wrote {
            return Ok(Replicated::Ran(Confirmed {
                evaluated,
                confirmation: Ok(0),
            }));
        }
        let listing = written.listing.or_else(|| listing.map(Ok));
        let confirmation = self
            .confirm(&mut link, &written.info, listing, demand)
            .await
            .map_err(unconfirmed)?;
        Ok(Replicated::Ran(Confirmed {
            evaluated,
            confirmation,
        }))
    }

    /// Runs the calls, whose keys all belong to the node of the first one, and has replicas confirm all of them: at one
    /// attempt, by `deadline`. An error that the server answered a call with is among the replies.
    ///
    /// # Errors
    ///
    /// Nothing is known of any of the calls.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not take back what was sent, and closes the connection it was sent on.
    pub async fn eval_round(
        &self,
        calls: &[ScriptCall<'_>],
        demand: &Demand,
        deadline: Instant,
    ) -> Result<Round, Error> {
        let key = calls.first().map(ScriptCall::key).unwrap_or_default();
        let retry = RetryState::new(deadline, false);
        let node = self.node_for(key, &retry).await?;
        let mut link = MasterLink::open(self.router(), &node, key, false, deadline).await?;
        // The guard is for grants: a hold that is still there was not forgotten.
        if link.replicas_question().is_none() && self.router().is_cluster() {
            link.untrusted_for(Duration::ZERO).await?;
        }
        let listing = self.service_listing(&link).await?;
        let (sent, sent_wall) = (Instant::now(), SystemTime::now());
        let (replies, written) = link.write_all(calls).await?;
        for (call, reply) in calls.iter().zip(&replies) {
            note(self.router(), &node, call.script().bit(), reply);
        }
        let confirmation = match written {
            Ok(written) => {
                let listing = written.listing.or_else(|| listing.map(Ok));
                self.confirm(&mut link, &written.info, listing, demand)
                    .await
            }
            Err(error) => Err(error),
        };
        Ok(Round {
            sent,
            sent_wall,
            replies,
            confirmation: confirmation.unwrap_or_else(|error| Err(Unconfirmed::Failed(error))),
        })
    }

    /// The replicas that the sentinels list for the master at the other end; `None` where there are none.
    async fn service_listing(&self, link: &MasterLink<'_>) -> Result<Option<Listing>, Error> {
        let Some(service) = self.router().service(false).await else {
            return Ok(None);
        };
        let error = match service {
            Ok(service) if service.state.master == link.node().address => {
                return Ok(Some(service.listing()));
            }
            Ok(_) => {
                self.router().refresh();
                let detail = "the sentinels name another master than this one";
                return Err(Error::not_sent(link.node().connection().node(), detail));
            }
            Err(error) => error,
        };
        // Without sentinels what they listed before goes on, and none of it is left out.
        let listing = self.router().memory().full_listing(&link.node().address);
        listing.map_or(Err(error), |listing| Ok(Some(listing)))
    }

    /// Waits until all that must have confirmed what was written.
    async fn confirm(
        &self,
        link: &mut MasterLink<'_>,
        written: &ReplicationInfo,
        listing: Option<Result<Listing, Refusal>>,
        demand: &Demand,
    ) -> Result<Result<usize, Unconfirmed>, Error> {
        let refused = |refusal| Ok(Err(Unconfirmed::Refused(refusal)));
        if !written.is_master {
            return Err(no_master(link));
        }
        let listing = listing.unwrap_or_else(|| {
            Ok(Listing {
                replicas: self.router().memory().of_single(written),
                asked: Instant::now(),
            })
        });
        let listing = match listing {
            Ok(listing) => listing,
            Err(refusal) => return refused(refusal),
        };
        let expectation = match Expectation::new(demand.quorum, &listing.replicas, written) {
            Ok(expectation) => expectation,
            Err(refusal) => return refused(refusal),
        };
        // The answer is to be here before the time is over.
        let left = link.time_left();
        let time = (left - left / 5).min(demand.lease / 6).min(LONGEST_WAIT);
        let latest = match link
            .wait(&expectation, written, Instant::now() + time)
            .await?
        {
            Waited::Confirmed(latest) => latest,
            Waited::TooFew(confirmed) => {
                return refused(Refusal::TooFew {
                    confirmed,
                    required: expectation.required(),
                });
            }
            Waited::Denied(error) => return Ok(Err(Unconfirmed::Failed(error))),
        };
        let count = |expectation: &Expectation| match expectation.judge(written.offset, &latest) {
            Verdict::Confirmed(count) => Some(count),
            Verdict::Missing { .. } => None,
        };
        if !expectation.used_drop || listing.asked.elapsed() <= DROP_VALID {
            return Ok(Ok(count(&expectation).unwrap_or_default()));
        }
        // Those that were left out must be down still.
        let again = match self.listed_again(link).await? {
            Ok(listing) => Expectation::new(demand.quorum, &listing.replicas, written),
            Err(refusal) => Err(refusal),
        };
        Ok(match again.map(|again| count(&again)) {
            Ok(Some(count)) => Ok(count),
            Ok(None) => Err(Unconfirmed::Refused(Refusal::DownNoLonger)),
            Err(refusal) => Err(Unconfirmed::Refused(refusal)),
        })
    }

    /// The replicas of the master, asked now.
    async fn listed_again(
        &self,
        link: &mut MasterLink<'_>,
    ) -> Result<Result<Listing, Refusal>, Error> {
        if let Some(service) = self.router().service(true).await {
            let service = service?;
            return if service.state.master == link.node().address {
                Ok(Ok(service.listing()))
            } else {
                Err(no_master(link))
            };
        }
        let asked = Instant::now();
        match link.replicas_question() {
            Some(question) => {
                let reply = link.call_all(&[&question]).await?.next();
                let missing = || Err(Error::config("no reply"));
                link.cluster_listing(reply.unwrap_or_else(missing), asked)
                    .await
            }
            None => Ok(Err(Refusal::NoneListed)),
        }
    }
}

/// How a wait for replicas ended.
enum Waited {
    /// With this state of the master.
    Confirmed(ReplicationInfo),
    /// With so many confirmations.
    TooFew(usize),
    /// The user may not wait for them.
    Denied(Error),
}

impl MasterLink<'_> {
    /// Runs a script, and asks in the same write for what decides on it.
    async fn write(
        &mut self,
        call: &ScriptCall<'_>,
        needs_source: bool,
        unanswered: &mut Unanswered,
    ) -> Result<Written, Error> {
        let known = self.node().known.has(call.script().bit()) && !needs_source;
        let source = call.with_source();
        let script: &(dyn Encode + Sync) = if known { call } else { &source };
        let (asking, info, question) = (
            Command::new("ASKING"),
            info_replication(),
            self.replicas_question(),
        );
        let mut commands: Vec<&(dyn Encode + Sync)> = Vec::with_capacity(4);
        if self.is_asking() {
            commands.push(&asking);
        }
        commands.extend([script, &info]);
        if let Some(question) = &question {
            commands.push(question);
        }
        unanswered.note(self.node(), self.id(), self.is_asking());
        let asked = Instant::now();
        let mut replies = self.call_all(&commands).await?;
        unanswered.answered();
        if self.is_asking()
            && let Some(reply) = replies.next()
        {
            reply?;
        }
        let missing = || Err(Error::unknown(self.node().connection().node(), "no reply"));
        let value = replies.next().unwrap_or_else(missing)?;
        self.node().known.learn(call.script().bit());
        let (info, listing) = self.aftermath(replies, asked).await.map_err(unconfirmed)?;
        Ok(Written {
            value,
            info,
            listing,
        })
    }

    /// Runs several scripts, each with its source where the server may not know it. The inner error says that nothing is
    /// known of the replicas.
    async fn write_all(
        &mut self,
        calls: &[ScriptCall<'_>],
    ) -> Result<(Vec<Result<Value, Error>>, Result<Written, Error>), Error> {
        let sources: Vec<_> = calls.iter().map(|call| call.with_source()).collect();
        let (info, question) = (info_replication(), self.replicas_question());
        let mut commands: Vec<&(dyn Encode + Sync)> = Vec::with_capacity(calls.len() + 2);
        for (index, (call, source)) in calls.iter().zip(&sources).enumerate() {
            let is_same = |earlier: &ScriptCall<'_>| std::ptr::eq(earlier.script(), call.script());
            let known =
                self.node().known.has(call.script().bit()) || calls[..index].iter().any(is_same);
            commands.push(if known { call } else { source });
        }
        commands.push(&info);
        if let Some(question) = &question {
            commands.push(question);
        }
        let asked = Instant::now();
        let mut all = self.call_all(&commands).await?;
        let replies: Vec<_> = all.by_ref().take(calls.len()).collect();
        let written = self.aftermath(all, asked).await;
        let written = written.map(|(info, listing)| Written {
            value: Value::Null,
            info,
            listing,
        });
        Ok((replies, written))
    }

    /// Reads what was asked behind scripts.
    async fn aftermath(
        &mut self,
        mut replies: Replies,
        asked: Instant,
    ) -> Result<(ReplicationInfo, Option<Result<Listing, Refusal>>), Error> {
        let info = self.info(replies.next())?;
        let listing = match replies.next() {
            Some(reply) => Some(self.cluster_listing(reply, asked).await?),
            None => None,
        };
        Ok((info, listing))
    }

    /// Waits until `until` for those that must confirm.
    async fn wait(
        &mut self,
        expectation: &Expectation,
        written: &ReplicationInfo,
        until: Instant,
    ) -> Result<Waited, Error> {
        let mut wait_for = match expectation.judge(written.offset, written) {
            Verdict::Confirmed(_) => return Ok(Waited::Confirmed(written.clone())),
            Verdict::Missing { .. } => expectation.required(),
        };
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let ms = i64::try_from(left.as_millis()).unwrap_or(i64::MAX).max(1);
            let count = i64::try_from(wait_for).unwrap_or(i64::MAX);
            let wait = Command::new("WAIT").arg_int(count).arg_int(ms);
            let info = info_replication();
            let commands: [&(dyn Encode + Sync); 2] = [&wait, &info];
            let answered = tokio::time::timeout(left + WAIT_GRACE, self.call_all(&commands)).await;
            let mut replies = match answered {
                Ok(replies) => replies?,
                Err(_) => return Err(Error::unknown(self.node().connection().node(), "no reply")),
            };
            match replies.next() {
                Some(Err(error)) if is_denied(&error) => return Ok(Waited::Denied(error)),
                Some(Err(error)) => return Err(error),
                _ => {}
            }
            let latest = self.info(replies.next())?;
            if !latest.is_master || latest.history != written.history {
                return Err(no_master(self));
            }
            match expectation.judge(written.offset, &latest) {
                Verdict::Confirmed(_) => return Ok(Waited::Confirmed(latest)),
                Verdict::Missing { confirmed, .. } if Instant::now() >= until => {
                    return Ok(Waited::TooFew(confirmed));
                }
                Verdict::Missing { wait_for: next, .. } => {
                    wait_for = next;
                    tokio::time::sleep(BEHIND_PAUSE).await;
                }
            }
        }
    }
}

/// The error of a write that a server made as a master and may lose as a replica.
fn no_master(link: &MasterLink<'_>) -> Error {
    Error::unknown(
        link.node().connection().node(),
        "the server stopped being the master before its replicas had confirmed the script",
    )
}

/// An error behind a script that ran.
fn unconfirmed(error: Error) -> Error {
    let detail = format!(
        "the script ran, but its replication could not be confirmed: {}",
        error.detail()
    );
    Error::unknown(&error.node().into(), detail)
}

fn is_denied(error: &Error) -> bool {
    error
        .as_server()
        .is_some_and(|server| *server.kind() == ServerErrorKind::NoPerm)
}
