//! Inspection of a semaphore: the holders of permits, and the waiters.

use std::sync::LazyLock;
use std::time::Duration;

use leasehold_cluster::Script;
use leasehold_resp::Value;

use super::super::call::Call;
use super::super::inspect::{read_waiters, text};
use super::super::permits::MOST_PERMITS;
use super::{LINE, TAKEN, sources};
use crate::state::inspection::{Holder, Inspection};
use crate::state::names::Name;

static INSPECT: LazyLock<Script> = LazyLock::new(|| Script::new(sources::INSPECT));

/// Redisson's time for a permit without a lease.
const FOR_EVER: u64 = 922_337_203_685_477;
/// The holders that are told.
const MOST_HOLDERS: usize = 100;

/// The holder that a permit names.
#[derive(Debug, PartialEq, Eq)]
enum Owner {
    /// The first four and the last three bytes of the client's id, and the number of the hold.
    Ours([u8; 7], u64),
    Redissons([u8; 16]),
}

/// Asks who holds permits, and who waits; without the line where that cannot be used.
pub(crate) fn inspect(name: &Name, with_line: bool) -> Call<'_> {
    let mut call = Call::new(&INSPECT);
    call.key(name.derived(TAKEN));
    if with_line {
        call.key(name.derived(LINE));
    }
    call
}

/// Reads the reply of [`inspect`], for the client with the id `client`; `None` if the script gives no such reply.
pub(crate) fn read_inspect(reply: &Value, client: &str) -> Option<Inspection> {
    let [now, permits, tickets, waiting] = reply.as_array()? else {
        return None;
    };
    let now = u64::try_from(now.as_int()?).ok()?;
    let waiters = read_waiters(tickets)?;
    let mut found: Vec<(Owner, u64, u64)> = Vec::new();
    for pair in permits.as_array()?.chunks_exact(2) {
        let owner = Owner::of(pair[0].as_bytes()?)?;
        let until: f64 = text(&pair[1])?.parse().ok()?;
        let until = until.max(0.0) as u64;
        match found.iter().position(|(known, ..)| *known == owner) {
            // The first of them expires first.
            Some(at) => found[at].1 += 1,
            None if found.len() < MOST_HOLDERS => found.push((owner, 1, until)),
            None => {}
        }
    }
    let known: Vec<&str> = waiters.iter().map(|waiter| waiter.client()).collect();
    let holders = found.into_iter().map(|(owner, count, until)| Holder {
        id: owner.id(std::iter::once(client).chain(known.iter().copied())),
        count,
        remaining: (until < FOR_EVER).then(|| Duration::from_millis(until.saturating_sub(now))),
        token: None,
    });
    Some(Inspection {
        holders: holders.collect(),
        waiting: waiting.as_int()?.try_into().ok()?,
        waiters,
    })
}

impl Owner {
    /// The owner of a permit; `None` if these are no 16 bytes.
    fn of(permit: &[u8]) -> Option<Self> {
        let permit: [u8; 16] = permit.try_into().ok()?;
        let number = |bytes: &[u8]| bytes.iter().fold(0, |n, byte| n << 8 | u64::from(*byte));
        // Redisson's are random: one in forty thousand looks like one of ours.
        if number(&permit[12..]) >= u64::from(MOST_PERMITS) {
            return Some(Self::Redissons(permit));
        }
        let client = permit[..7].try_into().ok()?;
        Some(Self::Ours(client, number(&permit[7..12])))
    }

    /// Its id: that of Redisson's permit, or of the hold. Of its client the server knows a part, which tells it from the others.
    fn id<'a>(&self, mut clients: impl Iterator<Item = &'a str>) -> String {
        let hex = |bytes: &[u8]| -> String { bytes.iter().map(|b| format!("{b:02x}")).collect() };
        match self {
            Self::Redissons(permit) => hex(permit),
            Self::Ours(client, number) => {
                let (start, end) = (hex(&client[..4]), hex(&client[4..]));
                let known = clients.find(|id| id.starts_with(&start) && id.ends_with(&end));
                let part = || format!("{start}…{end}");
                format!("{}:{number}", known.map_or_else(part, str::to_owned))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_are_of_holds_or_redissons() {
        let mut permit = [0; 16];
        permit[..7].copy_from_slice(&[0x01, 0x90, 0xc0, 0xde, 0x0a, 0x0b, 0x0c]);
        permit[11] = 7;
        permit[15] = 3;
        let ours = Owner::of(&permit).unwrap();
        let client = "0190c0de-0000-7000-8000-0000000a0b0c";
        assert_eq!(ours.id([client].into_iter()), format!("{client}:7"));
        assert_eq!(ours.id(["other"].into_iter()), "0190c0de…0a0b0c:7");
        assert_eq!(Owner::of(&[permit.as_slice(), b"x"].concat()), None);
        permit[12] = 0xff;
        let redissons = Owner::of(&permit).unwrap();
        assert_eq!(
            redissons.id([client].into_iter()),
            "0190c0de0a0b0c0000000007ff000003"
        );
    }
}
