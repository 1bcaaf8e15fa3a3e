//! One attempt at locks of one slot.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold_cluster::{ScriptCall, Unanswered};
use leasehold_resp::{ServerError, ServerErrorKind, Value};

use super::super::asking::{Asked, Reply, confirmed};
use super::super::attempt::restart_grace;
use super::super::context::Context;
use super::super::handle::Handle;
use super::super::hold::{Granted, Hold};
use super::super::queue::Place;
use super::super::release::{self, Withdrawn};
use super::super::together::together;
use super::super::work_queue::Unfinished;
use super::{AT_ONCE_CONFIRMED, MultiRequest};
use crate::error::{Error, ErrorKind};
use crate::observer::Way;
use crate::options::Interop;
use crate::protocol::multi::{self, Answers, PART, Together};
use crate::protocol::permits::Permits;
use crate::protocol::{Answer, Attempt};
use crate::state::id::HoldId;
use crate::state::names::Name;
use crate::state::token::FencingToken;

/// The outcome of an attempt.
pub(super) struct Tried {
    pub(super) taken: Taken,
    /// The first that others hold.
    pub(super) conflict: Option<usize>,
}

/// The locks that an attempt took, by their indices. Dropping them gives them back: the request may end while other attempts of
/// it are on their way.
pub(super) struct Taken {
    context: Arc<Handle>,
    holds: Vec<(usize, Arc<Hold>)>,
}

/// An attempt without an outcome yet: unless it has one, what it may have left on the server is taken back.
struct Open<'a> {
    request: &'a MultiRequest,
    id: HoldId,
    names: Vec<Arc<Name>>,
    unanswered: Unanswered,
    unfinished: Option<Unfinished>,
}

/// The index of a lock in the request, and its place in the queue here.
type Part = (usize, Place);

/// Tries the locks of one slot for the hold `id`.
pub(super) async fn take(
    request: &MultiRequest,
    id: HoldId,
    mut parts: Vec<Part>,
) -> Result<Tried, Error> {
    if let [part] = &mut *parts {
        return one(request, id, part).await;
    }
    let first = parts.first().map(|(at, _)| Arc::clone(&request.names[*at]));
    let tried = all(request, id, &mut parts).await;
    tried.map_err(|error| match first {
        Some(first) if error.key().is_empty() => request.context.about(&first, error),
        _ => error,
    })
}

/// Tries several locks by one script.
async fn all(request: &MultiRequest, id: HoldId, parts: &mut [Part]) -> Result<Tried, Error> {
    let MultiRequest { context, names, .. } = request;
    let indices: Vec<usize> = parts.iter().map(|(at, _)| *at).collect();
    let count = indices.len();
    // Dropped before the places: what ends it leaves before the next waiters here are woken.
    let mut open = Open::begin(
        request,
        id,
        indices.iter().map(|&at| Arc::clone(&names[at])),
    );
    let Some(reply) = ask_for_all(&mut open).await? else {
        return Ok(Tried::held(request, indices[0]));
    };
    match multi::read_answers(&reply.evaluated.value, count) {
        Some(Answers::Granted(granted)) => open.begin_holds(parts, granted, reply),
        Some(Answers::First(answer)) => {
            if reply.evaluated.repeated {
                // An attempt at all of them may still run: it is taken back.
                return Ok(Tried::held(request, indices[0]));
            }
            open.names.truncate(1);
            one_by_one(open, parts, answer, reply).await
        }
        Some(Answers::Held(at)) => {
            open.settle();
            Ok(Tried::held(request, indices[at.min(count - 1)]))
        }
        Some(Answers::NoExpiry(at)) => {
            open.settle();
            let name = &names[indices[at.min(count - 1)]];
            Err(context.about(name, Error::no_expiry()))
        }
        Some(Answers::Refused(at, error)) => {
            open.settle();
            let name = &names[indices[at.min(count - 1)]];
            Err(context.about(name, refused(error)))
        }
        None => Err(Error::unexpected(&reply.evaluated.value)),
    }
}

/// Asks for all locks of the attempt.
async fn ask_for_all(open: &mut Open<'_>) -> Result<Option<Reply>, Error> {
    let (id, names, context) = (open.id, open.names.clone(), &open.request.context);
    let lease = open.request.terms.first_lease();
    let alone = attempt(open.request, &id, &names[0]);
    let alone = || (PART.acquire_single_key)(&alone).to_owned();
    let call = |beside_redisson| {
        let together = Together {
            id: &id,
            lease,
            counter_ttl: context.config.interop.counter_ttl(lease),
            beside_redisson,
        };
        multi::acquire(names.iter().map(|name| &**name), &together)
    };
    let beside_redisson = context.config.interop == Interop::Redisson;
    let without_lines = || call(false).to_owned().while_migrating(alone());
    let first = call(beside_redisson);
    let first = first.slices();
    let call = if beside_redisson {
        first.call().with_fallback(&without_lines)
    } else {
        first.call().while_migrating(&alone)
    };
    let is_granted = |value: &Value| match multi::read_answers(value, names.len()) {
        Some(Answers::Granted(_)) => true,
        Some(Answers::First(answer)) => matches!(answer, Answer::Granted { .. }),
        _ => false,
    };
    open.ask(&call, is_granted).await
}

/// The slot is migrating, and the first lock was answered alone: tries the others like that.
async fn one_by_one(
    open: Open<'_>,
    parts: &mut [Part],
    answer: Answer,
    reply: Reply,
) -> Result<Tried, Error> {
    let (request, id) = (open.request, open.id);
    let Some((first, rest)) = parts.split_first_mut() else {
        return Ok(Tried::taken(Taken::none(request)));
    };
    let mut tried = open.answered(first, answer, reply)?;
    if tried.conflict.is_some() {
        return Ok(tried);
    }
    let mut failed = None;
    let mut tries = Vec::new();
    for part in rest {
        tries.push(one(request, id, part));
    }
    for one in together(tries, AT_ONCE_CONFIRMED).await {
        match one {
            Ok(one) => {
                tried.taken.holds.extend(one.taken.keep());
                tried.conflict = tried.conflict.into_iter().chain(one.conflict).min();
            }
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    failed.map_or(Ok(tried), Err)
}

/// Tries one lock.
async fn one(request: &MultiRequest, id: HoldId, part: &mut Part) -> Result<Tried, Error> {
    let name = Arc::clone(&request.names[part.0]);
    let mut open = Open::begin(request, id, [Arc::clone(&name)]);
    let tried = match ask_for_one(&mut open, &name).await {
        Ok(None) => Ok(Tried::held(request, part.0)),
        Ok(Some(reply)) => match (PART.read_answer)(&reply.evaluated.value) {
            Some(answer) => open.answered(part, answer, reply),
            None => Err(Error::unexpected(&reply.evaluated.value)),
        },
        Err(error) => Err(error),
    };
    tried.map_err(|error| request.context.about(&name, error))
}

/// Asks for the one lock of the attempt.
async fn ask_for_one(open: &mut Open<'_>, name: &Name) -> Result<Option<Reply>, Error> {
    let id = open.id;
    let lean = attempt(open.request, &id, name);
    let beside_redisson = Attempt {
        beside_redisson: lean.redisson,
        with_line: true,
        ..lean
    };
    let alone = || (PART.acquire_single_key)(&lean).to_owned();
    let without_line = || (PART.acquire)(&lean).to_owned().while_migrating(alone());
    let with_line = lean.redisson;
    let first = (PART.acquire)(if with_line { &beside_redisson } else { &lean });
    let first = first.slices();
    let call = if with_line {
        first.call().with_fallback(&without_line)
    } else {
        first.call().while_migrating(&alone)
    };
    let is_granted =
        |value: &Value| matches!((PART.read_answer)(value), Some(Answer::Granted { .. }));
    open.ask(&call, is_granted).await
}

/// The parameters of an attempt at one lock.
fn attempt<'a>(request: &MultiRequest, id: &'a HoldId, name: &'a Name) -> Attempt<'a> {
    let context = &request.context;
    let lease = request.terms.first_lease();
    Attempt {
        name,
        id,
        permits: Permits::NONE,
        lease,
        counter_ttl: context.config.interop.counter_ttl(lease),
        highest_token: context.highest_token(),
        block: None,
        beside_redisson: false,
        redisson: context.config.interop == Interop::Redisson,
        with_line: false,
        channels: context.client.channels(),
        ticket: None,
    }
}

/// The error that a script told in these words.
fn refused(error: String) -> Error {
    let kind = match ServerError::parse(error.as_bytes()).kind() {
        ServerErrorKind::WrongType => ErrorKind::WrongType,
        ServerErrorKind::NoPerm => ErrorKind::Denied,
        _ => ErrorKind::Server,
    };
    Error::new(kind, error)
}

impl Tried {
    const fn taken(taken: Taken) -> Self {
        Self {
            taken,
            conflict: None,
        }
    }

    fn held(request: &MultiRequest, at: usize) -> Self {
        Self {
            taken: Taken::none(request),
            conflict: Some(at),
        }
    }
}

impl Taken {
    fn none(request: &MultiRequest) -> Self {
        Self {
            context: Arc::clone(&request.context),
            holds: Vec::new(),
        }
    }

    /// The locks, for who gives them back in its turn.
    pub(super) fn keep(mut self) -> Vec<(usize, Arc<Hold>)> {
        std::mem::take(&mut self.holds)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        for (_, hold) in &self.holds {
            release::drop_guard(&self.context, hold, 0);
        }
    }
}

impl<'a> Open<'a> {
    fn begin(
        request: &'a MultiRequest,
        id: HoldId,
        names: impl IntoIterator<Item = Arc<Name>>,
    ) -> Self {
        Self {
            request,
            id,
            names: names.into_iter().collect(),
            unanswered: Unanswered::default(),
            unfinished: Some(request.context.registry.work.unfinished()),
        }
    }

    /// Makes the call. Returns `None` if the server is to grant nothing now.
    async fn ask(
        &mut self,
        call: &ScriptCall<'_>,
        is_granted: impl Fn(&Value) -> bool,
    ) -> Result<Option<Reply>, Error> {
        let MultiRequest { context, terms, .. } = self.request;
        let deadline = Instant::now() + context.config.command_timeout;
        let name = Arc::clone(&self.names[0]);
        if restart_grace(context, terms, &name, deadline)
            .await?
            .is_some()
        {
            self.settle();
            return Ok(None);
        }
        let unanswered = &mut self.unanswered;
        let asked = confirmed(context, terms, call, deadline, &is_granted, unanswered).await;
        let reply = match asked {
            Ok(Asked::Replied(reply)) => reply,
            Ok(Asked::Untrusted { ran, .. }) => {
                if !ran {
                    self.settle();
                }
                return Ok(None);
            }
            Err(error) => {
                if !error.may_have_executed() {
                    self.settle();
                }
                return Err(Error::from_client(error));
            }
        };
        context.note_round_trip(reply.evaluated.sent.elapsed());
        // The server may have been restarted between the question and the grant. The attempt is still open.
        if is_granted(&reply.evaluated.value)
            && restart_grace(context, terms, &name, deadline)
                .await?
                .is_some()
        {
            return Ok(None);
        }
        Ok(Some(reply))
    }

    /// Acts on the answer for one lock.
    fn answered(mut self, part: &mut Part, answer: Answer, reply: Reply) -> Result<Tried, Error> {
        let (token, left) = match answer {
            Answer::Granted { token, left, .. } => (token, left),
            Answer::NoExpiry => {
                self.settle();
                return Err(Error::no_expiry());
            }
            // No mutex counts anything.
            Answer::Held(_) | Answer::Placed(_) | Answer::CapacityDisagrees { .. } => {
                self.settle();
                return Ok(Tried::held(self.request, part.0));
            }
        };
        let token = token.unwrap_or(FencingToken::NONE);
        let left = left.unwrap_or_else(|| self.request.terms.first_lease());
        self.begin_holds(std::slice::from_mut(part), vec![(token, left)], reply)
    }

    /// The locks become holds, if there is anything left of them.
    fn begin_holds(
        mut self,
        parts: &mut [Part],
        granted: Vec<(FencingToken, Duration)>,
        reply: Reply,
    ) -> Result<Tried, Error> {
        let MultiRequest { context, terms, .. } = self.request;
        let sent = reply.sent;
        let acknowledged = reply.confirmed?;
        let hold = |(name, (token, lease)): (&Arc<Name>, (FencingToken, Duration))| {
            context.saw(token);
            Hold::new(Granted {
                protocol: &PART,
                name: Arc::clone(name),
                id: self.id,
                permits: Permits::NONE,
                token: Some(token),
                terms: *terms,
                owner: None,
                acknowledged,
                way: Way::AtOnce,
                since: sent,
                lease,
                lease_since: sent,
                chain: None,
                ticket: None,
                // Late requests of earlier attempts that could not be killed: they are outlived by the release.
                unanswered: self.unanswered.clone(),
                clock: context.clock().clone(),
            })
        };
        let holds: Vec<_> = self.names.iter().zip(granted).map(hold).collect();
        if !holds.iter().all(|hold| hold.is_live()) {
            let lease = terms.first_lease();
            let detail = format!("the answer took longer than the lease of {lease:?}");
            return Err(Error::new(ErrorKind::Lost, detail));
        }
        let mut taken = Taken::none(self.request);
        for ((at, place), hold) in parts.iter_mut().zip(holds) {
            hold.keep(Arc::<Context>::clone(context));
            if let Err(closed) = place.grant(&hold, false) {
                return Err(closed.into());
            }
            taken.holds.push((*at, hold));
        }
        self.settle();
        for (_, hold) in &taken.holds {
            if hold.needs_renewal() {
                context.registry.work.renew(hold);
            }
        }
        let lease = terms.first_lease();
        context.registry.note_use(&context.client, lease);
        Ok(Tried::taken(taken))
    }

    /// It has its outcome: nothing is left on the server but holds.
    fn settle(&mut self) {
        self.unfinished = None;
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if self.unfinished.take().is_none() {
            return;
        }
        let context = &self.request.context;
        for name in &self.names {
            let withdrawn = Withdrawn {
                protocol: &PART,
                name: Arc::clone(name),
                id: self.id,
                permits: Permits::NONE,
                ticket: None,
                lease: self.request.terms.first_lease(),
            };
            let unfinished = context.registry.work.unfinished();
            release::withdraw(context, withdrawn, self.unanswered.clone(), unfinished);
        }
    }
}
