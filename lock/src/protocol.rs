//! The seam: all that differs between primitives, as data and pure functions.
//!
//! A primitive's file here builds its calls and reads their replies, with its scripts beside it. The engine does with them
//! what is the same for all: it waits, asks, renews, releases and cleans up.
//!
//! Every script may be repeated: the same hold id again has the same effect once.

pub(crate) mod barrier;
pub(crate) mod call;
pub(crate) mod counting;
pub(crate) mod election;
pub(crate) mod fair;
pub(crate) mod grant;
pub(crate) mod inspect;
pub(crate) mod latch;
pub(crate) mod multi;
pub(crate) mod mutex;
mod parts;
pub(crate) mod permits;
pub(crate) mod plain;
pub(crate) mod process;
pub(crate) mod read_write;
pub(crate) mod redlock;
pub(crate) mod semaphore;

use std::sync::LazyLock;
use std::time::Duration;

use leasehold_cluster::{Channels, Script};
use leasehold_resp::Value;

use crate::state::hold::Kept;
use crate::state::id::HoldId;
use crate::state::names::{Layout, Name};
use crate::state::primitive::Primitive;
use crate::state::ticket::Placed;
use crate::state::token::FencingToken;
use crate::state::waiters::Access;
use call::Call;
use permits::Permits;

/// One primitive on the server, or one way to hold it.
#[derive(Debug)]
pub(crate) struct Protocol {
    /// The kind that observers are told.
    pub(crate) primitive: Primitive,
    /// The first word of the messages of its grants, which all protocols on the same data share.
    pub(crate) word: &'static str,
    /// The keys and the channel.
    pub(crate) layout: &'static Layout,
    /// The index of the line of tickets among the keys.
    pub(crate) line: usize,
    /// Whether it may be held by several at the same time.
    pub(crate) access: Access,
    /// Whether a hold may be passed on within the process, for which its grants come with blocks of tokens.
    pub(crate) passes: bool,
    /// Whether its release can leave the lock taken for a while, see [`Kept`].
    pub(crate) keeps: bool,
    /// Whether each waiter has a ticket of its own, so that those of all processes come in the order of their calls. With
    /// Redisson its fair queue is kept.
    pub(crate) is_fair: bool,
    /// The suffix that tells its tickets from those of other protocols in the same line.
    pub(crate) mark: &'static str,

    /// Takes it for one hold, or says how long it stays taken; with a ticket, that is put in line then.
    pub(crate) acquire: for<'a> fn(&Attempt<'a>) -> Call<'a>,
    /// Takes it over from the owner with this id, if that holds it.
    pub(crate) take_over: Option<TakeOver>,
    /// Asks again with a ticket, which may have become the holder.
    pub(crate) look: for<'a> fn(&Attempt<'a>) -> Call<'a>,
    /// The acquire with a single key, for a slot that is migrating: there several keys of which one is absent cannot be used
    /// together.
    pub(crate) acquire_single_key: for<'a> fn(&Attempt<'a>) -> Call<'a>,
    /// Confirms a ticket that became the holder.
    pub(crate) confirm: for<'a> fn(&Attempt<'a>) -> Call<'a>,
    /// The same with a single key.
    pub(crate) confirm_single_key: for<'a> fn(&Attempt<'a>) -> Call<'a>,
    /// Reads the reply of either confirmation; `None` if the scripts give no such reply. A hold that is gone is `Held` for no time.
    pub(crate) read_confirm: fn(&Value) -> Option<Answer>,
    /// Reads the reply of the others; `None` if the scripts give no such reply.
    pub(crate) read_answer: fn(&Value) -> Option<Answer>,

    /// Extends the leases of many holds. All of the keys of one call are in one hash slot.
    pub(crate) renew: &'static LazyLock<Script>,
    /// The same for a single hold.
    pub(crate) renew_one: &'static LazyLock<Script>,
    /// The same as `renew`, and writes in any case, since replicas are to confirm it.
    pub(crate) renew_replicated: &'static LazyLock<Script>,
    /// Adds the keys and arguments of one hold to a call of either.
    pub(crate) add_renewal: for<'a> fn(&Renewal<'a>, &mut Call<'a>),
    /// Renews a hold on several keys by a call for each of them, in this order, which must all find it: while a slot migrates they
    /// may be at two nodes. `None` for a hold on one key.
    pub(crate) renew_apart: Option<[RenewApart; 2]>,
    /// Reads its reply for so many holds, one result a hold in their order; `None` if the script gives no such reply.
    pub(crate) read_renewals: fn(&Value, usize) -> Option<Vec<Renewed>>,

    /// Ends one hold, or takes back what an attempt without an answer may have left, and hands the lock on.
    pub(crate) release: for<'a> fn(&End<'a>) -> Call<'a>,
    /// Ends it with a single key, and hands the lock on to nobody.
    pub(crate) release_single_key: for<'a> fn(&End<'a>) -> Call<'a>,
    /// Reads the reply of either; `None` if the scripts give no such reply.
    pub(crate) read_release: fn(&Value) -> Option<Ended>,

    /// Whether a message on the channel of Redisson's releases says that the lock may be free.
    pub(crate) is_release: fn(&[u8]) -> bool,
}

/// Builds a call that renews one key of a hold.
pub(crate) type RenewApart = for<'a> fn(&Renewal<'a>) -> Call<'a>;

/// Builds the call that takes a hold over from the owner with this id.
pub(crate) type TakeOver = for<'a> fn(&Attempt<'a>, former: &'a str) -> Call<'a>;

impl Protocol {
    /// A protocol on the data whose grants begin with this word: its release takes back any hold there.
    pub(crate) fn of_word(word: &[u8]) -> Option<&'static Self> {
        let all = [
            &mutex::MUTEX,
            &fair::FAIR,
            &read_write::READ,
            &plain::PLAIN,
            &semaphore::SEMAPHORE,
            &counting::COUNTING,
            &election::ELECTION,
        ];
        all.into_iter()
            .find(|protocol| protocol.word.as_bytes() == word)
    }
}

/// The parameters of a request for a hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempt<'a> {
    pub(crate) name: &'a Name,
    pub(crate) id: &'a HoldId,
    pub(crate) permits: Permits,
    pub(crate) lease: Duration,
    /// How long to keep the counter of fencing tokens; `None` for ever, as Redisson expects.
    pub(crate) counter_ttl: Option<Duration>,
    /// The highest token this client has seen, as the floor where the counter cannot be used.
    pub(crate) highest_token: u64,
    /// A block of so many tokens is to be reserved, of which the one in the reply is the first; `None` for one.
    pub(crate) block: Option<u64>,
    /// Whether a free lock is left to those in line: Redisson's waiters may be meant to have it.
    pub(crate) beside_redisson: bool,
    /// Whether Redisson's waiters are told what becomes free.
    pub(crate) redisson: bool,
    /// Whether the line is among the keys. It usually does not exist, and while a slot migrates all keys of a call must.
    pub(crate) with_line: bool,
    /// How grants to others are published.
    pub(crate) channels: Channels,
    /// The ticket of one that waits in line.
    pub(crate) ticket: Option<InLine<'a>>,
}

/// A ticket in a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InLine<'a> {
    pub(crate) text: &'a [u8],
    /// Its place, if it had one.
    pub(crate) score: Option<u64>,
    /// Its run beside Redisson's queue, if it had one.
    pub(crate) run: Option<u8>,
    pub(crate) channels: Channels,
}

/// The server's answer to a request for a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The hold has it, with its token if the primitive has tokens.
    Granted {
        token: Option<FencingToken>,
        /// The rest of the lease, if an earlier request has taken it; `None` for all that was asked for.
        left: Option<Duration>,
        /// Whether others are known to wait for it.
        contended: bool,
    },
    /// Others have it for this long, if it is neither renewed nor released.
    Held(Duration),
    /// The same, and the ticket is in line.
    Placed(Placed),
    /// Others have it, and it has no expiry.
    NoExpiry,
    /// Nothing was granted: the server has another number of permits in all than the request says.
    CapacityDisagrees { server: u32 },
}

/// The parameters of the renewal of one hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Renewal<'a> {
    pub(crate) name: &'a Name,
    pub(crate) id: &'a HoldId,
    pub(crate) permits: Permits,
    pub(crate) lease: Duration,
}

/// The server's answer to the renewal of one hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewed {
    /// It is there and has its lease.
    Held,
    /// The same, and others wait for it to end.
    Contended,
    /// It is not there any more.
    Gone,
    /// The reply is not one of the script's.
    Unclear,
}

impl Renewed {
    /// Reads the reply of a script that answers each hold with an integer: 0 it is gone, 1 it is there, 2 it is there and others
    /// wait. `None` if it is not one for so many.
    pub(crate) fn each(reply: &Value, holds: usize) -> Option<Vec<Self>> {
        let one = |held: &Value| match held.as_int() {
            Some(2) => Self::Contended,
            Some(1) => Self::Held,
            Some(0) => Self::Gone,
            _ => Self::Unclear,
        };
        let results = reply.as_array()?;
        (results.len() == holds).then(|| results.iter().map(one).collect())
    }
}

/// The parameters of a release.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End<'a> {
    pub(crate) name: &'a Name,
    pub(crate) id: &'a HoldId,
    pub(crate) permits: Permits,
    /// Whether and how the lock stays taken.
    pub(crate) kept: Option<Kept>,
    /// The ticket, if it may be in line.
    pub(crate) ticket: Option<&'a [u8]>,
    /// How long to keep the counter of fencing tokens; `None` for ever, as Redisson expects.
    pub(crate) counter_ttl: Option<Duration>,
    pub(crate) channels: Channels,
    /// `None` without Redisson.
    pub(crate) redisson: Option<Announced>,
}

/// How a release is announced to Redisson.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Announced {
    /// If nobody is in line.
    IfFree,
    /// Also while tickets wait, if Redisson does: of the listeners to its channel, so many are of this process and without a
    /// ticket.
    Open { own: u64 },
}

/// The server's answer to a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// It was there and is gone.
    Released,
    /// It is gone, and the lock stays taken for so long.
    Kept(Duration),
    /// It was not there: released before, expired or forced.
    AlreadyGone,
}
