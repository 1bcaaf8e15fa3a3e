//! The seam: all that differs between primitives, as data and pure functions.
//!
//! A primitive's file here builds its calls and reads their replies, with its scripts beside it. The engine does with them
//! what is the same for all: it waits, asks, renews, releases and cleans up.
//!
//! Every script may be repeated: the same hold id again has the same effect once.

pub(crate) mod call;
pub(crate) mod mutex;

use std::sync::LazyLock;
use std::time::Duration;

use leasehold_cluster::Script;
use leasehold_resp::Value;

use crate::state::id::HoldId;
use crate::state::names::{Layout, Name};
use crate::state::token::FencingToken;
use crate::state::waiters::Access;
use call::Call;

/// One primitive on the server, or one way to hold it.
#[derive(Debug)]
pub(crate) struct Protocol {
    /// The keys and the channel.
    pub(crate) layout: Layout,
    /// Whether it may be held by several at the same time.
    pub(crate) access: Access,

    /// Takes it for one hold, or says how long it stays taken.
    pub(crate) acquire: for<'a> fn(&Attempt<'a>) -> Call<'a>,
    /// The same with a single key, for a slot that is migrating: there two keys of which one is absent cannot be used
    /// together.
    pub(crate) acquire_single_key: for<'a> fn(&Attempt<'a>) -> Call<'a>,
    /// Reads the reply of either; `None` if the scripts give no such reply.
    pub(crate) read_acquire: fn(&Value) -> Option<Answer>,

    /// Extends the leases of many holds. All of the keys of one call are in one hash slot.
    pub(crate) renew: &'static LazyLock<Script>,
    /// Adds the keys and arguments of one hold to a call of `renew`.
    pub(crate) add_renewal: for<'a> fn(&Renewal<'a>, &mut Call<'a>),
    /// Reads its reply, one result a hold in their order; `None` if the script gives no such reply.
    pub(crate) read_renewals: fn(&Value) -> Option<Vec<Renewed>>,

    /// Ends one hold.
    pub(crate) release: for<'a> fn(&End<'a>) -> Call<'a>,
    /// Reads its reply; `None` if the script gives no such reply.
    pub(crate) read_release: fn(&Value) -> Option<Ended>,
    /// Must follow an attempt that was cancelled or has no answer, since it may still run: it removes whatever that
    /// leaves. The reply is the one of `release`.
    pub(crate) withdraw: for<'a> fn(&End<'a>) -> Call<'a>,

    /// Asks whether another hold has it, or has had it since a grant of this process, which stands back meanwhile.
    pub(crate) look: for<'a> fn(&Look<'a>) -> Call<'a>,
    /// Reads its reply.
    pub(crate) read_look: fn(&Value) -> bool,

    /// Reads a message on the channel for a waiter.
    pub(crate) on_message: fn(&[u8]) -> Heard,
}

/// The parameters of an acquire.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempt<'a> {
    pub(crate) name: &'a Name,
    pub(crate) id: &'a HoldId,
    pub(crate) lease: Duration,
    /// How long to keep the counter of fencing tokens; `None` for ever, as Redisson expects.
    pub(crate) counter_ttl: Option<Duration>,
    /// The highest token this client has seen, as the floor where the counter cannot be used.
    pub(crate) highest_token: u64,
}

/// The server's answer to an acquire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The hold has it, with its token if the primitive has tokens.
    Granted { token: Option<FencingToken> },
    /// Others have it for this long, if it is neither renewed nor released.
    Held(Duration),
    /// Others have it, and it has no expiry.
    NoExpiry,
}

/// The parameters of the renewal of one hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Renewal<'a> {
    pub(crate) name: &'a Name,
    pub(crate) id: &'a HoldId,
    pub(crate) lease: Duration,
}

/// The server's answer to the renewal of one hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewed {
    /// It is there and has its lease.
    Held,
    /// It is not there any more.
    Gone,
    /// The reply is not one of the script's.
    Unclear,
}

/// The parameters of a release.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End<'a> {
    pub(crate) name: &'a Name,
    pub(crate) id: &'a HoldId,
    /// The command that reaches subscriptions: `PUBLISH`, or `SPUBLISH` where channels belong to slots.
    pub(crate) publish: &'static str,
}

/// The server's answer to a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// It was there and is gone; this many connections of the node received the message.
    Released { receivers: u64 },
    /// It was not there: released before, expired or forced.
    AlreadyGone,
}

/// The parameters of a look for another holder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look<'a> {
    pub(crate) name: &'a Name,
    /// Of the last grant of this process; 0 if it has none.
    pub(crate) token: u64,
}

/// The meaning of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// The lock may be free: ask the server.
    Look,
    /// It does not concern this waiter.
    Ignore,
}
