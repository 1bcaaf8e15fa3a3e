//! Several locks at once on the server: each of them a mutex like any other, taken together where they are in one slot.

mod sources;

use std::sync::LazyLock;
use std::time::Duration;

use leasehold_cluster::Script;
use leasehold_resp::Value;

use super::call::Call;
use super::{Answer, Protocol, mutex};
use crate::state::deadline::millis;
use crate::state::id::HoldId;
use crate::state::names::Name;
use crate::state::primitive::Primitive;
use crate::state::token::FencingToken;

/// One of several locks: a mutex that is not passed on within the process. All of them have the same id of their hold, which
/// no later acquisition may have, at any of them.
pub(crate) static PART: Protocol = mutex::protocol(Primitive::Multi, false);

/// Locks that one script takes: it keeps the server from everything else for about a millisecond.
pub(crate) const CHUNK: usize = 128;

static ACQUIRE: LazyLock<Script> = LazyLock::new(|| Script::new(sources::ACQUIRE));

/// The conditions on which several locks are asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Together<'a> {
    /// The same for all.
    pub(crate) id: &'a HoldId,
    pub(crate) lease: Duration,
    /// How long to keep the counters of fencing tokens; `None` for ever, as Redisson expects.
    pub(crate) counter_ttl: Option<Duration>,
    /// Whether free locks are left to those in line: Redisson's waiters may be meant to have them.
    pub(crate) beside_redisson: bool,
}

/// The server's answer to a request for several locks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answers {
    /// All are held: the token of each, and what is left of its lease.
    Granted(Vec<(FencingToken, Duration)>),
    /// Others have the one with this index, the first of those that others have.
    Held(usize),
    /// Others have the one with this index, and it has no expiry.
    NoExpiry(usize),
    /// The one with this index is no lock, or its counter is no number; with the server's words.
    Refused(usize, String),
    /// The slot is migrating: this is the answer for the first one alone.
    First(Answer),
}

/// Asks for the locks `names`, which are in one slot.
pub(crate) fn acquire<'a>(
    names: impl IntoIterator<Item = &'a Name>,
    together: &Together<'a>,
) -> Call<'a> {
    let mut call = Call::new(&ACQUIRE);
    for name in names {
        call.key(name.key()).key(name.derived(mutex::COUNTER));
        if together.beside_redisson {
            call.key(name.derived(PART.line));
        }
    }
    call.arg(together.id.as_bytes())
        .arg(millis(together.lease))
        .arg(together.counter_ttl.map_or(0, millis))
        .arg(if together.beside_redisson { "3" } else { "2" });
    call
}

/// Reads the reply for so many locks, or the one of the acquire with a single key; `None` if neither script gives such a reply.
pub(crate) fn read_answers(reply: &Value, locks: usize) -> Option<Answers> {
    let alone = || (PART.read_answer)(reply).map(Answers::First);
    let Some([first, rest @ ..]) = reply.as_array() else {
        return alone();
    };
    let index = |at: &Value| usize::try_from(at.as_int()?).ok()?.checked_sub(1);
    match (first.as_int()?, rest) {
        (1, granted) if granted.len() == 2 * locks => {
            let one = |pair: &[Value]| {
                let [token, left] = pair else { return None };
                let token = FencingToken::new(token.as_int()?.try_into().ok()?);
                let left = Duration::from_millis(left.as_int()?.try_into().ok()?);
                Some((token, left))
            };
            granted
                .chunks(2)
                .map(one)
                .collect::<Option<_>>()
                .map(Answers::Granted)
        }
        (0, [at, held]) => {
            let at = index(at)?;
            Some(match held.as_int()? {
                -1 => Answers::NoExpiry(at),
                _ => Answers::Held(at),
            })
        }
        (0, [at, _, error]) => {
            let error = String::from_utf8_lossy(error.as_bytes()?).into_owned();
            Some(Answers::Refused(index(at)?, error))
        }
        _ => alone(),
    }
}
