//! The message that a ticket became the holder, and the channels it arrives on.

use std::time::Duration;

use super::Protocol;
use super::parts::next_number;

/// `<word> <number> <token> <time in µs> <grant lease in ms> <key>`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GrantMessage<'a> {
    /// The data that it is on.
    pub(crate) protocol: &'static Protocol,
    /// Of the hold.
    pub(crate) number: u64,
    pub(crate) token: u64,
    /// The server's time of the grant, in microseconds.
    pub(crate) at: u64,
    pub(crate) lease: Duration,
    pub(crate) key: &'a str,
}

impl<'a> GrantMessage<'a> {
    /// Reads a message; `None` if it is another one.
    pub(crate) fn read(message: &'a [u8]) -> Option<Self> {
        let end = message.iter().position(|&byte| byte == b' ')?;
        let protocol = Protocol::of_word(&message[..end])?;
        let mut rest = &message[end + 1..];
        Some(Self {
            protocol,
            number: next_number(&mut rest)?,
            token: next_number(&mut rest)?,
            at: next_number(&mut rest)?,
            lease: Duration::from_millis(next_number(&mut rest)?),
            key: std::str::from_utf8(rest).ok()?,
        })
    }
}

/// Reads the message that a ticket has to look to keep its place, `LS <number> 0 <time in µs> …`: the number of its hold, and
/// the server's time of that. `None` if it is another message.
pub(crate) fn told_to_look(message: &[u8]) -> Option<(u64, u64)> {
    let message = std::str::from_utf8(message).ok()?;
    let mut words = message.strip_prefix("LS ")?.split(' ');
    let number = words.next()?.parse().ok()?;
    Some((number, words.nth(1)?.parse().ok()?))
}

/// `N <number> <grant lease in ms>`: a grant was made, and a ticket is the first behind it of another client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NextMessage {
    /// Of the hold that the ticket becomes.
    pub(crate) number: u64,
    /// Of the grant.
    pub(crate) lease: Duration,
}

impl NextMessage {
    /// Reads a message; `None` if it is another one.
    pub(crate) fn read(message: &[u8]) -> Option<Self> {
        let words = std::str::from_utf8(message.strip_prefix(b"N ")?).ok()?;
        let (number, lease) = words.split_once(' ')?;
        Some(Self {
            number: number.parse().ok()?,
            lease: Duration::from_millis(lease.parse().ok()?),
        })
    }
}

/// Reads the message that somebody waits to write, `W <number> <key>`: the number of a hold that reads, and the key. `None` if it
/// is another one.
pub(crate) fn read_notice(message: &[u8]) -> Option<(u64, &str)> {
    let message = std::str::from_utf8(message).ok()?.strip_prefix("W ")?;
    let (number, key) = message.split_once(' ')?;
    Some((number.parse().ok()?, key))
}

/// The channel of all grants to the client with this id, where channels belong to no slot.
pub(crate) fn channel(client: &str) -> String {
    format!("leasehold:{client}")
}

/// The channel of the grants of one line, which is in the slot of its lock.
pub(crate) fn sharded_channel(line: &str, client: &str) -> String {
    format!("{line}:{client}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_read_whatever_the_key_is() {
        let message = b"G 7 1763000000000000 1763000000000001 1000 a key: {x} \0";
        let read = GrantMessage::read(message).unwrap();
        assert_eq!(read.protocol.word, "G");
        assert_eq!((read.number, read.token), (7, 1_763_000_000_000_000));
        assert_eq!(read.at, 1_763_000_000_000_001);
        assert_eq!(read.lease, Duration::from_secs(1));
        assert_eq!(read.key, "a key: {x} \0");
    }

    #[test]
    fn a_ticket_that_was_told_to_look_is_told_its_number() {
        let message = b"LS 7 0 1763000000000001 1000 a key";
        assert_eq!(told_to_look(message), Some((7, 1_763_000_000_000_001)));
        assert!(GrantMessage::read(message).is_none());
        for other in [
            &b"GS 7 0 1 1000 a"[..],
            b"LS",
            b"LS 7",
            b"LS 7 0",
            b"LS x 0 1",
            b"LS \xff",
        ] {
            assert_eq!(told_to_look(other), None, "{other:?}");
        }
    }

    #[test]
    fn the_ticket_behind_a_grant_is_read() {
        let next = NextMessage::read(b"N 7 1000").unwrap();
        assert_eq!((next.number, next.lease), (7, Duration::from_secs(1)));
        for message in [
            &b"N 7"[..],
            b"N 7 1000 ",
            b"N  1000",
            b"G 7 1000",
            b"N 7 \xff",
        ] {
            assert_eq!(NextMessage::read(message), None, "{message:?}");
        }
    }

    #[test]
    fn a_notice_is_read_whatever_the_key_is() {
        let key = "a key: {x} \0";
        let message = format!("W 7 {key}");
        assert_eq!(read_notice(message.as_bytes()), Some((7, key)));
        for message in [&b"W"[..], b"W 7", b"W -7 key", b"X 7 key", b"W 7 \xff"] {
            assert_eq!(read_notice(message), None, "{message:?}");
        }
    }

    #[test]
    fn other_messages_are_none() {
        for message in [
            &b"0"[..],
            b"",
            b"G",
            b"G 1 2 3 4",
            b"G 1 2 3 x key",
            b"G -1 2 3 4 key",
            b"G  2 3 4 key",
            b"G 1 2 3 4key",
            b"G 18446744073709551616 2 3 4 key",
            b"H 1 2 3 4 key",
            b"GG 1 2 3 4 key",
            b" 1 2 3 4 key",
            b"G 1 2 3 99999999999999999999 key",
            b"G 1 2 3 4 \xff",
        ] {
            assert!(GrantMessage::read(message).is_none(), "{message:?}");
        }
    }
}
