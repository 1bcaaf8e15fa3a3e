//! Identities of clients and holds, and numbers as text: inline, so that taking a lock needs no heap for them.

use uuid::Uuid;

/// The identity of one `Locks`: a random UUID, as text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientId {
    text: [u8; 36],
    seed: u64,
}

impl ClientId {
    pub(crate) fn random() -> Self {
        let uuid = Uuid::new_v4();
        let mut text = [0; 36];
        uuid.hyphenated().encode_lower(&mut text);
        Self {
            text,
            seed: uuid.as_u64_pair().1,
        }
    }

    pub(crate) fn as_str(&self) -> &str {
        // The encoder of `uuid` writes ASCII only.
        std::str::from_utf8(&self.text).unwrap_or_default()
    }

    /// A random number, for the jitter.
    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }
}

/// One acquisition: `<client id>:<n>`, the field of the lock's hash.
///
/// `n` is never used twice, not even by one `Owner`: a late release of an earlier acquisition, which the renewal worker may
/// still be trying to finish, can never end a later one, and a repeated acquire can never count twice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HoldId {
    text: [u8; 57],
    len: u8,
    number: u64,
}

impl HoldId {
    pub(crate) fn new(client: &ClientId, number: u64) -> Self {
        let mut text = [b':'; 57];
        text[..36].copy_from_slice(&client.text);
        let decimal = Digits::new(number);
        let digits = decimal.as_bytes();
        text[37..37 + digits.len()].copy_from_slice(digits);
        Self {
            text,
            len: 37 + digits.len() as u8,
            number,
        }
    }

    /// Reads the id of a hold of any client, as [`as_bytes`](Self::as_bytes) writes it.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (client, number) = text.split_once(':')?;
        let uuid = Uuid::try_parse(client).ok()?;
        let number = number.parse().ok()?;
        let mut client = ClientId {
            text: [0; 36],
            seed: 0,
        };
        uuid.hyphenated().encode_lower(&mut client.text);
        let id = Self::new(&client, number);
        (id.as_bytes() == text.as_bytes()).then_some(id)
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.text[..usize::from(self.len)]
    }

    pub(crate) fn as_str(&self) -> &str {
        // A client id and digits are ASCII.
        std::str::from_utf8(self.as_bytes()).unwrap_or_default()
    }

    /// The `n`, unique within one `Locks`.
    pub(crate) const fn number(&self) -> u64 {
        self.number
    }
}

/// The numbers of the holds of owners are above all others: this, the owner's number in twelve digits, and seven digits that
/// count its holds.
const OF_OWNERS: u64 = 10_000_000_000_000_000_000;
const HOLDS_OF_AN_OWNER: u64 = 10_000_000;
const OWNERS: u64 = 840_000_000_000;

/// The number of the hold that an owner takes as its `nth`. After ten million they begin again: nothing of the first is
/// left by then.
pub(crate) const fn number_of_hold(owner: u64, nth: u64) -> u64 {
    OF_OWNERS + (owner % OWNERS) * HOLDS_OF_AN_OWNER + nth % HOLDS_OF_AN_OWNER
}

/// Whether the hold with this number is an owner's.
pub(crate) const fn is_of_owner(number: u64) -> bool {
    number >= OF_OWNERS
}

/// The identity of an owner: what the ids of its holds begin with.
pub(crate) fn id_of_owner(client: &str, owner: u64) -> String {
    let first = number_of_hold(owner, 0) / HOLDS_OF_AN_OWNER;
    format!("{client}:{first}")
}

/// Whether `text` may be the id of an owner, of any client.
pub(crate) fn is_id_of_owner(text: &str) -> bool {
    let Some((client, owner)) = text.split_once(':') else {
        return false;
    };
    Uuid::try_parse(client).is_ok_and(|uuid| client == uuid.hyphenated().to_string())
        && owner.len() == 13
        && owner.starts_with('1')
        && owner.bytes().all(|digit| digit.is_ascii_digit())
}

/// The decimal digits of a number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Digits {
    /// Right-aligned: digits come out of a division last one first.
    text: [u8; 20],
    start: u8,
}

impl Digits {
    pub(crate) fn new(mut n: u64) -> Self {
        let mut text = [b'0'; 20];
        let mut start = text.len();
        loop {
            start -= 1;
            text[start] = b'0' + (n % 10) as u8;
            n /= 10;
            if n == 0 {
                return Self {
                    text,
                    start: start as u8,
                };
            }
        }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.text[usize::from(self.start)..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_read_as_the_standard_library_writes_them() {
        for n in [0, 1, 9, 10, 99, 100, 30_000, u64::MAX] {
            assert_eq!(Digits::new(n).as_bytes(), n.to_string().as_bytes());
        }
    }

    #[test]
    fn the_holds_of_an_owner_begin_with_its_id() {
        let client = ClientId::random();
        for owner in [0, 1, 839_999_999_999] {
            let id = id_of_owner(client.as_str(), owner);
            assert!(is_id_of_owner(&id), "{id}");
            for nth in [0, 1, 9_999_999, 10_000_000] {
                let hold = HoldId::new(&client, number_of_hold(owner, nth));
                let text = std::str::from_utf8(hold.as_bytes()).unwrap().to_owned();
                assert_eq!(text.strip_prefix(&id).unwrap().len(), 7, "{text}");
            }
        }
        let id = id_of_owner(client.as_str(), 7);
        let hold = HoldId::new(&client, number_of_hold(7, 3));
        for other in [
            "",
            ":",
            "x:1",
            &id[1..],
            &id[..id.len() - 1],
            &id.replace(":1", ":2"),
            &id.to_uppercase(),
        ] {
            assert!(!is_id_of_owner(other), "{other}");
        }
        assert!(!is_id_of_owner(
            std::str::from_utf8(hold.as_bytes()).unwrap()
        ));
    }

    #[test]
    fn a_hold_is_the_client_and_the_number() {
        let client = ClientId::random();
        for n in [0, 7, u64::MAX] {
            let hold = HoldId::new(&client, n);
            assert_eq!(
                hold.as_bytes(),
                format!("{}:{n}", client.as_str()).as_bytes()
            );
            assert_eq!(hold.number(), n);
            let text = std::str::from_utf8(hold.as_bytes()).unwrap();
            let read = HoldId::parse(text).expect("it is an id");
            assert_eq!((read.as_bytes(), read.number()), (text.as_bytes(), n));
            for other in ["", ":1", &text[1..], &text[..37], &text.to_uppercase()] {
                assert!(HoldId::parse(other).is_none(), "{other}");
            }
            for other in ["+1", "01", " 1", "1:1", "18446744073709551616"] {
                let other = format!("{}:{other}", client.as_str());
                assert!(HoldId::parse(&other).is_none(), "{other}");
            }
        }
        assert_eq!(client.as_str().len(), 36);
    }
}
