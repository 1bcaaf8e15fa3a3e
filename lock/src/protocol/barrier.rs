//! The barrier on the server, which is ours alone: its generations, and the parties that have arrived, each with a lease.

mod sources;

use std::sync::LazyLock;
use std::time::Duration;

use leasehold_cluster::{Channels, Script};
use leasehold_resp::Value;

use super::call::Call;
use super::inspect::text;
use super::parts::mode;
use super::{Answer, Attempt, End, Ended, Protocol, Renewal, Renewed};
use crate::state::barrier::{How, View};
use crate::state::deadline::millis;
use crate::state::id::HoldId;
use crate::state::inspection::{Holder, Inspection};
use crate::state::names::{Derived, Layout, Name};
use crate::state::primitive::Primitive;
use crate::state::waiters::Access;

/// A party that waits at a barrier, as a hold: it is renewed, and released when it withdraws. It is not taken as locks are: see
/// [`arrive`].
pub(crate) static PARTY: Protocol = Protocol {
    primitive: Primitive::Barrier,
    word: "",
    layout: &LAYOUT,
    line: BARRIER,
    access: Access::Shared,
    passes: false,
    keeps: false,
    is_fair: false,
    take_over: None,
    mark: "",
    acquire: no_request,
    look: no_request,
    acquire_single_key: no_request,
    confirm: no_request,
    confirm_single_key: no_request,
    read_answer: no_answer,
    read_confirm: no_answer,
    renew: &RENEW,
    renew_one: &RENEW,
    renew_replicated: &RENEW,
    add_renewal,
    renew_apart: None,
    read_renewals: Renewed::each,
    release,
    release_single_key: release,
    read_release,
    is_release: |_| false,
};

/// The keys. The name of the barrier's is that of its channel too.
pub(crate) static LAYOUT: Layout = Layout {
    channel: Derived::Prefixed("leasehold_barrier"),
    keys: &[
        Derived::Prefixed("leasehold_barrier"),
        Derived::Prefixed("leasehold_arrived"),
    ],
};

/// Index of the barrier in the layout.
const BARRIER: usize = 0;
/// Index of its parties.
const PARTIES: usize = 1;

static ARRIVE: LazyLock<Script> = LazyLock::new(|| Script::new(sources::ARRIVE));
static LOOK: LazyLock<Script> = LazyLock::new(|| Script::new(sources::LOOK));
static LEAVE: LazyLock<Script> = LazyLock::new(|| Script::new(sources::LEAVE));
static INSPECT: LazyLock<Script> = LazyLock::new(|| Script::new(sources::INSPECT));
static RENEW: LazyLock<Script> = LazyLock::new(|| Script::new(sources::RENEW));

/// The server's answer to an arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrived {
    Passed {
        generation: u64,
        is_leader: bool,
    },
    Waits {
        generation: u64,
        /// How long the first of those that have arrived lives if it is not renewed.
        first_end: Duration,
    },
    Broken,
    /// Others have arrived where so many pass together.
    Disagrees {
        parties: u64,
    },
}

/// The channel on which ends of generations are announced.
pub(crate) fn channel(name: &Name) -> &str {
    name.channel()
}

/// A party arrives where so many `parties` pass together, and lives for `lease` if it is not renewed.
pub(crate) fn arrive<'a>(
    name: &'a Name,
    party: &'a HoldId,
    parties: u32,
    lease: Duration,
    channels: Channels,
) -> Call<'a> {
    let mut call = on(&ARRIVE, name);
    call.arg(party.as_bytes())
        .arg(u64::from(parties))
        .arg(millis(lease))
        .arg(mode(channels));
    call
}

/// Reads the reply of [`arrive`]; `None` if the script gives no such reply.
pub(crate) fn read_arrive(reply: &Value) -> Option<Arrived> {
    let number = |value: &Value| u64::try_from(value.as_int()?).ok();
    let (first, rest) = reply.as_array()?.split_first()?;
    Some(match (first.as_int()?, rest) {
        (1, [generation, leads]) => Arrived::Passed {
            generation: number(generation)?,
            is_leader: leads.as_int()? == 1,
        },
        (0, [generation, ms]) => Arrived::Waits {
            generation: number(generation)?,
            first_end: Duration::from_millis(number(ms)?),
        },
        (-1, [_]) => Arrived::Broken,
        (-2, [parties]) => Arrived::Disagrees {
            parties: number(parties)?,
        },
        _ => return None,
    })
}

/// Asks how the latest generations ended; `gone` is one of which a party is gone.
pub(crate) fn look(name: &Name, channels: Channels, gone: Option<u64>) -> Call<'_> {
    let mut call = on(&LOOK, name);
    call.arg(mode(channels));
    match gone {
        Some(generation) => call.arg(generation),
        None => call.arg(""),
    };
    call
}

/// Reads the reply of [`look`]; `None` if the script gives no such reply.
pub(crate) fn read_look(reply: &Value) -> Option<View> {
    let [generation, first_end, fields] = reply.as_array()? else {
        return None;
    };
    let fields = fields.as_array()?.chunks_exact(2);
    let fields = fields.filter_map(|field| Some((field[0].as_str()?, field[1].as_bytes()?)));
    let mut first = 0;
    let mut ended = Vec::new();
    for (field, value) in fields {
        if field == "first" {
            first = std::str::from_utf8(value).ok()?.parse().ok()?;
        } else if let Some(generation) = field.strip_prefix("r:") {
            ended.push((generation.parse().ok()?, read_how(value)?));
        }
    }
    Some(View {
        generation: generation.as_int()?.try_into().ok()?,
        first,
        first_end: u64::try_from(first_end.as_int()?)
            .ok()
            .map(Duration::from_millis),
        ended,
    })
}

fn read_how(value: &[u8]) -> Option<How> {
    if value == b"broken" {
        return Some(How::Broken);
    }
    let leader = value.strip_prefix(b"ok ")?.into();
    Some(How::Passed { leader })
}

/// Asks who has arrived.
pub(crate) fn inspect(name: &Name) -> Call<'_> {
    let mut call = Call::new(&INSPECT);
    call.key(name.derived(PARTIES));
    call
}

/// Reads the reply of [`inspect`]: those who have arrived; `None` if the script gives no such reply.
pub(crate) fn read_inspect(reply: &Value) -> Option<Inspection> {
    let parties = reply.as_array()?.chunks_exact(2).map(|party| {
        let ms = u64::try_from(party[1].as_int()?).ok()?;
        Some(Holder {
            id: text(&party[0])?,
            count: 1,
            remaining: Some(Duration::from_millis(ms)),
            token: None,
        })
    });
    Some(Inspection {
        holders: parties.collect::<Option<_>>()?,
        ..Inspection::default()
    })
}

fn add_renewal<'a>(renewal: &Renewal<'a>, call: &mut Call<'a>) {
    call.key(renewal.name.derived(PARTIES))
        .key(renewal.name.derived(BARRIER))
        .arg(renewal.id.as_bytes())
        .arg(millis(renewal.lease));
}

/// Withdraws a party, by a single key.
fn release<'a>(end: &End<'a>) -> Call<'a> {
    leave(end.name, end.id)
}

fn leave<'a>(name: &'a Name, party: &'a HoldId) -> Call<'a> {
    let mut call = Call::new(&LEAVE);
    call.key(name.derived(PARTIES)).arg(party.as_bytes());
    call
}

fn read_release(reply: &Value) -> Option<Ended> {
    Some(match reply.as_int()? {
        0 => Ended::AlreadyGone,
        _ => Ended::Released,
    })
}

/// In place of a request of locks, which is never made for a party: one that changes nothing but to withdraw it.
fn no_request<'a>(attempt: &Attempt<'a>) -> Call<'a> {
    leave(attempt.name, attempt.id)
}

fn no_answer(_: &Value) -> Option<Answer> {
    None
}

fn on<'a>(script: &'static Script, name: &'a Name) -> Call<'a> {
    let mut call = Call::new(script);
    call.key(name.derived(BARRIER)).key(name.derived(PARTIES));
    call
}
