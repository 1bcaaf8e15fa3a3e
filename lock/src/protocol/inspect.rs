//! Reading what the scripts that inspect tell, as far as it is the same for all primitives.

use std::time::{Duration, SystemTime};

use leasehold_resp::Value;

use crate::state::inspection::Waiter;
use crate::state::token::FencingToken;

/// The texts and scores of tickets, in turn. What is no ticket, such as the fences of a fair lock's line, is left out.
pub(crate) fn read_waiters(tickets: &Value) -> Option<Vec<Waiter>> {
    let pairs = tickets.as_array()?.chunks_exact(2);
    let waiters: Option<Vec<_>> = pairs.map(read_waiter).collect();
    Some(waiters?.into_iter().flatten().collect())
}

/// The text and the score of one; `Some(None)` if it is no ticket.
pub(crate) fn read_waiter(pair: &[Value]) -> Option<Option<Waiter>> {
    let [ticket, score] = pair else {
        return None;
    };
    let micros: f64 = text(score)?.parse().ok()?;
    Some(read_ticket(&text(ticket)?).map(|(id, permits)| Waiter {
        id,
        since: SystemTime::UNIX_EPOCH + Duration::from_micros(micros.max(0.0) as u64),
        permits,
    }))
}

/// A counter of fencing tokens; `None` if it is not there or is no number.
pub(crate) fn read_counter(counter: &Value) -> Option<FencingToken> {
    let token = text(counter)?.parse().ok()?;
    Some(FencingToken::new(token))
}

/// A lease in milliseconds; `None` if there is no expiry.
pub(crate) fn read_remaining(ms: &Value) -> Option<Option<Duration>> {
    let ms = ms.as_int()?;
    Some((ms != -1).then(|| Duration::from_millis(ms.max(0).cast_unsigned())))
}

pub(crate) fn text(value: &Value) -> Option<String> {
    value
        .as_bytes()
        .map(|bytes| String::from_utf8_lossy(bytes).into_owned())
}

/// The id of the hold, and the permits, of a ticket `<client>:<number>[|<ms>][+][<letter>[<permits>]]`.
fn read_ticket(text: &str) -> Option<(String, u32)> {
    let (client, rest) = text.rsplit_once(':')?;
    let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, suffix) = rest.split_at(digits);
    if number.is_empty() || client.is_empty() {
        return None;
    }
    let permits = suffix
        .rsplit_once(|c: char| c.is_ascii_alphabetic())
        .and_then(|(_, permits)| permits.parse().ok());
    Some((format!("{client}:{number}"), permits.unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tickets_are_read_with_and_without_their_suffixes() {
        let read = |text| read_ticket(text).map(|(id, permits)| format!("{id} {permits}"));
        assert_eq!(read("c-d:7").as_deref(), Some("c-d:7 0"));
        assert_eq!(read("c-d:7|20000+").as_deref(), Some("c-d:7 0"));
        assert_eq!(read("c-d:7|20000+p12").as_deref(), Some("c-d:7 12"));
        assert_eq!(read("c-d:7w").as_deref(), Some("c-d:7 0"));
        for other in ["#3", "", ":", ":7", "c:", "c:x", "plain"] {
            assert_eq!(read(other), None, "{other}");
        }
    }
}
