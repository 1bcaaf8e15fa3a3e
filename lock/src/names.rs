//! The keys and channels of a lock, in Redisson's layout.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

use leasehold_cluster::slot::tag;

/// The longest key, namespace included: 4 KiB. A server would take 512 MiB, in every message of every command.
const MAX_KEY: usize = 4096;

/// Everything a name is called on the server, formatted once.
pub(crate) struct Name {
    /// The hash of holders.
    key: Box<str>,
    /// Where releases are announced.
    channel: Box<str>,
    /// The counter of fencing tokens.
    token: Box<str>,
    /// Why the name cannot be used, if it cannot: said when it is used, so that naming a lock never fails.
    bad: Option<BadName>,
    /// Of the key, for tables that need no exactness.
    hash: u64,
}

/// Why a name cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadName {
    Empty,
    TooLong,
    /// The lock and the keys derived from it would hash to different slots of a cluster.
    Braces,
}

impl Name {
    pub(crate) fn new(namespace: Option<&str>, name: &str) -> Self {
        let key: Box<str> = match namespace {
            Some(namespace) => format!("{namespace}:{name}").into(),
            None => name.into(),
        };
        let channel = prefixed("redisson_lock__channel", &key);
        let token = prefixed("redisson_lock_token", &key);
        let bad = if name.is_empty() {
            Some(BadName::Empty)
        } else if key.len() > MAX_KEY {
            Some(BadName::TooLong)
        } else if tag(key.as_bytes()) != tag(channel.as_bytes())
            || tag(key.as_bytes()) != tag(token.as_bytes())
        {
            Some(BadName::Braces)
        } else {
            None
        };
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        Self {
            key,
            channel,
            token,
            bad,
            hash: hasher.finish(),
        }
    }

    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    pub(crate) fn channel(&self) -> &str {
        &self.channel
    }

    pub(crate) fn token(&self) -> &str {
        &self.token
    }

    pub(crate) const fn bad(&self) -> Option<BadName> {
        self.bad
    }

    pub(crate) const fn hash(&self) -> u64 {
        self.hash
    }
}

/// One `Locks` has one namespace, so one key is one name.
impl PartialEq for Name {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for Name {}

impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.key.fmt(f)
    }
}

impl fmt::Display for BadName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("the name is empty"),
            Self::TooLong => write!(f, "the name is longer than {MAX_KEY} bytes, namespace included"),
            Self::Braces => f.write_str(
                "the name has braces that are no hash tag: use a tag that is not empty, like `{user:1}:cart`, or none",
            ),
        }
    }
}

/// Whether `namespace` can stand before every name: with a brace in it, all names would share a tag or have a broken one.
pub(crate) fn is_good_namespace(namespace: &str) -> bool {
    !namespace.is_empty() && namespace.len() <= MAX_KEY / 2 && !namespace.contains(['{', '}'])
}

/// Redisson's rule for derived keys. The test is for the character, not for a valid tag.
fn prefixed(prefix: &str, key: &str) -> Box<str> {
    if key.contains('{') {
        format!("{prefix}:{key}")
    } else {
        format!("{prefix}:{{{key}}}")
    }
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_channels_are_redissons() {
        let plain = Name::new(None, "order:42");
        assert_eq!(plain.key(), "order:42");
        assert_eq!(plain.channel(), "redisson_lock__channel:{order:42}");
        assert_eq!(plain.token(), "redisson_lock_token:{order:42}");
        assert_eq!(plain.bad(), None);

        let tagged = Name::new(None, "{user:1}:cart");
        assert_eq!(tagged.channel(), "redisson_lock__channel:{user:1}:cart");
        assert_eq!(tagged.token(), "redisson_lock_token:{user:1}:cart");
        assert_eq!(tagged.bad(), None);

        let spaced = Name::new(Some("shop"), "order:42");
        assert_eq!(spaced.key(), "shop:order:42");
        assert_eq!(spaced.channel(), "redisson_lock__channel:{shop:order:42}");
    }

    #[test]
    fn names_that_would_fail_with_crossslot_are_refused() {
        for name in ["a{b", "a{}b", "{}x", "a}b", "a{}b{c}", "}{", "{", "}"] {
            assert_eq!(Name::new(None, name).bad(), Some(BadName::Braces), "{name}");
        }
        for name in ["x", "a{b}c", "{a}", "{{a}}", "a{b}c{", "a{b}}", "ä ö\n\0"] {
            assert_eq!(Name::new(None, name).bad(), None, "{name}");
        }
    }

    #[test]
    fn empty_and_endless_names_are_refused() {
        assert_eq!(Name::new(None, "").bad(), Some(BadName::Empty));
        assert_eq!(Name::new(Some("shop"), "").bad(), Some(BadName::Empty));
        assert_eq!(Name::new(None, &"x".repeat(MAX_KEY)).bad(), None);
        assert_eq!(
            Name::new(None, &"x".repeat(MAX_KEY + 1)).bad(),
            Some(BadName::TooLong)
        );
        assert_eq!(
            Name::new(Some("n"), &"x".repeat(MAX_KEY - 1)).bad(),
            Some(BadName::TooLong)
        );
    }

    #[test]
    fn a_namespace_has_no_braces() {
        assert!(is_good_namespace("shop"));
        assert!(is_good_namespace("shop:eu"));
        for bad in ["", "{", "a}", "{a}"] {
            assert!(!is_good_namespace(bad), "{bad}");
        }
    }
}
