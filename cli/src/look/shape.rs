//! The shapes of locks on the server: the names of their keys, holders and tickets. Pure.
//!
//! A key is taken for a lock only by what a lock library wrote there: a hash whose fields begin with the UUID of a client, or a
//! key with a counter, a line or a set of permits of ours or Redisson's beside it. Everything else is foreign.

/// A key that stands beside a lock and names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Beside {
    /// The tickets of those who wait.
    Line,
    /// The tokens of a mutex that is a string.
    PlainToken,
    /// The permits of a semaphore that are taken.
    Permits,
    /// Known state of a latch.
    Latch,
    /// The parties that have arrived at a barrier.
    Arrived,
    /// The permits that a semaphore without owners reserves.
    Reserved,
}

/// The keys whose names begin like this and name the lock behind it.
const PREFIXES: [(&str, Beside); 5] = [
    ("leasehold_line", Beside::Line),
    ("leasehold_token", Beside::PlainToken),
    ("leasehold_latch", Beside::Latch),
    ("leasehold_arrived", Beside::Arrived),
    ("leasehold_res", Beside::Reserved),
];

/// The lock that `key` stands beside, if it does.
///
/// The locks `x` and `{x}` have the same keys beside them, in Redisson's layout too; `x` is meant.
pub(crate) fn beside(key: &[u8]) -> Option<(Beside, &[u8])> {
    for (prefix, beside) in PREFIXES {
        let rest = key.strip_prefix(prefix.as_bytes());
        if let Some(rest) = rest.and_then(|rest| rest.strip_prefix(b":")) {
            return unwrapped(rest).map(|name| (beside, name));
        }
    }
    let rest = key.strip_suffix(b":timeout")?;
    unwrapped(rest).map(|name| (Beside::Permits, name))
}

/// `prefix:{key}`, or `prefix:key` for a key with a brace.
pub(crate) fn prefixed(prefix: &str, key: &[u8]) -> Vec<u8> {
    match key.contains(&b'{') {
        true => [prefix.as_bytes(), b":", key].concat(),
        false => [prefix.as_bytes(), b":{", key, b"}"].concat(),
    }
}

/// `{key}:suffix`, or `key:suffix` for a key with a brace.
pub(crate) fn suffixed(key: &[u8], suffix: &str) -> Vec<u8> {
    match key.contains(&b'{') {
        true => [key, b":", suffix.as_bytes()].concat(),
        false => [b"{", key, b"}:", suffix.as_bytes()].concat(),
    }
}

/// The name in `{name}`, or a name that has braces of its own.
fn unwrapped(text: &[u8]) -> Option<&[u8]> {
    let inner = text.strip_prefix(b"{").and_then(|t| t.strip_suffix(b"}"));
    match inner {
        Some(name) if !name.is_empty() && !name.contains(&b'{') => Some(name),
        _ => text.contains(&b'{').then_some(text),
    }
}

/// The client of a holder or a ticket, `<UUID>:…`; `None` if it does not begin with one.
pub(crate) fn client_of(id: &str) -> Option<&str> {
    let (client, rest) = id.split_once(':')?;
    (is_uuid(client) && !rest.is_empty()).then_some(client)
}

fn is_uuid(text: &str) -> bool {
    text.len() == 36
        && text.bytes().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
}

/// The holders that the fields of a hash name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fields {
    /// `read` or `write` of a read-write lock.
    pub(crate) mode: Option<String>,
    /// Ids, without the mark of a writer, and how often each holds it.
    pub(crate) holders: Vec<(String, u64)>,
}

impl Fields {
    /// Reads fields and values in turn; `None` if they are not those of a lock.
    pub(crate) fn read<'a>(pairs: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> Option<Self> {
        let mut fields = Self::default();
        for (field, value) in pairs {
            let (field, value) = (
                std::str::from_utf8(field).ok()?,
                std::str::from_utf8(value).ok()?,
            );
            if field == "mode" && matches!(value, "read" | "write") {
                fields.mode = Some(value.to_owned());
                continue;
            }
            client_of(field)?;
            let is_count = value.bytes().all(|byte| byte.is_ascii_digit());
            let count = value.parse().ok().filter(|_| is_count)?;
            let holder = field.strip_suffix(":write").unwrap_or(field);
            fields.holders.push((holder.to_owned(), count));
        }
        (!fields.holders.is_empty()).then_some(fields)
    }
}

/// The kind of lock that waits behind a ticket, by its last letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TicketKind {
    /// Of a mutex or a lock that is a string.
    Alone,
    ReadWrite,
    Permits,
}

/// A ticket, `<client>:<number>[|<ms>][+][<letter>[<permits>]]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket<'a> {
    pub(crate) client: &'a str,
    pub(crate) kind: TicketKind,
    /// Whether its client looks by itself, and listens to nothing.
    pub(crate) polls: bool,
}

impl<'a> Ticket<'a> {
    pub(crate) fn read(text: &'a str) -> Option<Self> {
        let client = client_of(text)?;
        let rest = text.get(client.len() + 1..)?;
        let lease = rest.split_once('|').map_or("", |(_, lease)| lease);
        let kind = match rest.bytes().find(u8::is_ascii_alphabetic) {
            None => TicketKind::Alone,
            Some(b'r' | b'w') => TicketKind::ReadWrite,
            Some(_) => TicketKind::Permits,
        };
        rest.starts_with(|c: char| c.is_ascii_digit())
            .then_some(Self {
                client,
                kind,
                polls: lease.starts_with('0'),
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: &str = "0190c0de-0000-7000-8000-0000000a0b0c";

    #[test]
    fn keys_beside_a_lock_name_it() {
        for name in ["a", "order:42", "{user:1}:cart", "a{b}c"] {
            let name = name.as_bytes();
            let line = prefixed("leasehold_line", name);
            assert_eq!(beside(&line), Some((Beside::Line, name)));
            let permits = suffixed(name, "timeout");
            assert_eq!(beside(&permits), Some((Beside::Permits, name)));
        }
        for foreign in ["a", "leasehold_line", "leasehold_line:a", "http:timeout"] {
            assert_eq!(beside(foreign.as_bytes()), None, "{foreign}");
        }
    }

    #[test]
    fn only_holders_make_a_hash_a_lock() {
        let read = |pairs: &[(&str, &str)]| {
            Fields::read(pairs.iter().map(|(f, v)| (f.as_bytes(), v.as_bytes())))
        };
        let holder = format!("{CLIENT}:7");
        let found = read(&[(&holder, "2")]).unwrap();
        assert_eq!(found.holders, [(holder.clone(), 2)]);
        let writer = format!("{holder}:write");
        let found = read(&[("mode", "write"), (&writer, "1")]).unwrap();
        assert_eq!(
            (found.mode.as_deref(), found.holders),
            (Some("write"), vec![(holder.clone(), 1)])
        );
        for foreign in [
            &[][..],
            &[("mode", "read")],
            &[("2026:11", "7")],
            &[("user:1", "1")],
            &[(&holder, "x")],
            &[(&holder, "1"), ("name", "Ann")],
        ] {
            assert_eq!(read(foreign), None, "{foreign:?}");
        }
    }

    #[test]
    fn tickets_tell_what_waits() {
        let read = |suffix: &str| {
            let text = format!("{CLIENT}:{suffix}");
            Ticket::read(&text).map(|ticket| (ticket.kind, ticket.polls))
        };
        assert_eq!(read("7"), Some((TicketKind::Alone, false)));
        assert_eq!(read("7|0250+"), Some((TicketKind::Alone, true)));
        assert_eq!(read("7|250r"), Some((TicketKind::ReadWrite, false)));
        assert_eq!(read("7p12"), Some((TicketKind::Permits, false)));
        assert_eq!(read("x"), None);
        assert_eq!(Ticket::read("#3"), None);
    }
}
