//! The latch on the server: Redisson's counter, and beside it what makes counting repeatable.

mod sources;

use std::sync::LazyLock;
use std::time::Duration;

use leasehold_cluster::{Channels, Effect, Script};
use leasehold_resp::Value;

use super::call::Call;
use super::inspect::text;
use super::parts::mode;
use crate::state::deadline::millis;
use crate::state::id::HoldId;
use crate::state::latch::{LatchInspection, View};
use crate::state::names::{Derived, Layout, Name};

/// The keys and the channel, which for a name with a tag lies in another slot.
pub(crate) static LAYOUT: Layout = Layout {
    channel: Derived::Wrapped("redisson_countdownlatch__channel__"),
    keys: &[Derived::Prefixed("leasehold_latch")],
};

/// Index of the notes in the layout. Their key is the name of the channel for our own waiters too.
const NOTES: usize = 0;

static SET: LazyLock<Script> = LazyLock::new(|| Script::new(sources::SET));
static COUNT_DOWN: LazyLock<Script> = LazyLock::new(|| Script::new(sources::COUNT_DOWN));
static INSPECT: LazyLock<Script> = LazyLock::new(|| Script::new(sources::INSPECT));
static LOOK: LazyLock<Script> = LazyLock::new(|| Script::new(sources::LOOK));

/// The parameters of a change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change<'a> {
    pub(crate) name: &'a Name,
    /// The request, which is carried out once.
    pub(crate) id: &'a HoldId,
    pub(crate) channels: Channels,
    pub(crate) hears: Hears,
}

/// How Redisson takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hears {
    /// Not at all: a count that vanishes was lost.
    Nothing,
    /// It may count and open, but cannot wait: its channel is in another slot, where its own scripts fail.
    NoMessages,
    /// It counts and waits.
    All,
}

/// The rest after a count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counted {
    Left(u64),
    /// The latch vanished before it was counted down.
    Lost,
}

/// The channel on which our own waiters hear of changes.
pub(crate) fn channel(name: &Name) -> &str {
    name.derived(NOTES)
}

/// Sets the count if the latch is open, or, with `reset`, in any case; it expires after `expiry`.
pub(crate) fn set<'a>(
    change: &Change<'a>,
    count: u64,
    reset: bool,
    expiry: Option<Duration>,
) -> Call<'a> {
    let mut call = changing(&SET, change);
    call.arg(count)
        .arg(mode(change.channels))
        .arg(change.hears.strictness())
        .arg(u64::from(reset))
        .arg(expiry.map_or(0, millis));
    add_redisson(change, call)
}

/// Reads the reply of [`set`]: whether it is set; `None` if the script gives no such reply.
pub(crate) fn read_set(reply: &Value) -> Option<bool> {
    match reply.as_int()? {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

/// Counts down by one, and by no more for this participant.
pub(crate) fn count_down<'a>(change: &Change<'a>, participant: Option<&'a str>) -> Call<'a> {
    let mut call = changing(&COUNT_DOWN, change);
    call.arg(participant.unwrap_or_default())
        .arg(mode(change.channels))
        .arg(change.hears.strictness());
    add_redisson(change, call)
}

/// Reads the reply of [`count_down`]; `None` if the script gives no such reply.
pub(crate) fn read_count_down(reply: &Value) -> Option<Counted> {
    match reply.as_array()? {
        [left, _] => Some(match left.as_int()? {
            -1 => Counted::Lost,
            left => Counted::Left(left.try_into().ok()?),
        }),
        _ => None,
    }
}

/// The effect of a change with this reply; `missed` if it was to count down a latch of which nothing is known.
pub(crate) fn effect(reply: &Value, missed: Effect) -> Effect {
    match reply.as_array() {
        Some([_, wrote]) if wrote.as_int() == Some(-1) => missed,
        Some([_, wrote]) => Effect::of_write(wrote.as_int() == Some(1)),
        _ => Effect::of_write(reply.as_int() == Some(1)),
    }
}

/// Asks how far it is.
pub(crate) fn look(name: &Name, hears: Hears) -> Call<'_> {
    let mut call = look_single_key(name);
    call.key(name.derived(NOTES)).arg(hears.strictness());
    call
}

/// The same with a single key, for a slot that is migrating.
pub(crate) fn look_single_key(name: &Name) -> Call<'_> {
    let mut call = Call::new(&LOOK);
    call.key(name.key());
    call
}

/// Reads the reply of either; `None` if the script gives no such reply.
pub(crate) fn read_look(reply: &Value) -> Option<View> {
    match reply.as_array()? {
        [count, opened, anew, lost] => Some(View {
            count: count.as_int()?.try_into().ok()?,
            opened: u64::try_from(opened.as_int()?).ok(),
            anew: anew.as_int()? == 1,
            lost: lost.as_int()? == 1,
            doubtful: lost.as_int()? == -1,
        }),
        _ => None,
    }
}

/// Asks how far it is and who was counted.
pub(crate) fn inspect(name: &Name) -> Call<'_> {
    let mut call = Call::new(&INSPECT);
    call.key(name.key()).key(name.derived(NOTES));
    call
}

/// Reads the reply of [`inspect`]; `None` if the script gives no such reply.
pub(crate) fn read_inspect(reply: &Value) -> Option<LatchInspection> {
    let [count, remaining, participants] = reply.as_array()? else {
        return None;
    };
    Some(LatchInspection {
        count: count.as_int()?.try_into().ok()?,
        remaining: u64::try_from(remaining.as_int()?)
            .ok()
            .map(Duration::from_millis),
        participants: participants
            .as_array()?
            .iter()
            .map(text)
            .collect::<Option<_>>()?,
    })
}

fn changing<'a>(script: &'static Script, change: &Change<'a>) -> Call<'a> {
    let mut call = Call::new(script);
    call.key(change.name.key())
        .key(change.name.derived(NOTES))
        .arg(change.id.as_bytes());
    call
}

fn add_redisson<'a>(change: &Change<'a>, mut call: Call<'a>) -> Call<'a> {
    if change.hears == Hears::All {
        call.arg(change.name.channel());
    }
    call
}

impl Hears {
    /// Whether an absent latch with a noted count was lost, for the scripts.
    fn strictness(self) -> u64 {
        u64::from(self == Self::Nothing)
    }
}
