//! The keys and channels of a lock, in Redisson's layout.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use leasehold_cluster::slot::tag;

/// The longest key, namespace included: 4 KiB. A server would take 512 MiB, in every message of every command.
const MAX_KEY: usize = 4096;

/// The most keys that a layout has.
const DERIVED: usize = 4;

/// The names of a primitive's keys and channel.
#[derive(Debug)]
pub(crate) struct Layout {
    /// The channel on which Redisson publishes releases.
    pub(crate) channel: Derived,
    /// The keys beside the one that is named like the lock.
    pub(crate) keys: &'static [Derived],
}

/// One of Redisson's rules for names that are derived from the one of a lock. Where they add braces, the test is for the
/// character `{`, not for a valid tag.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Derived {
    /// `prefix:{name}`, or `prefix:name` for a name with a brace.
    Prefixed(&'static str),
    /// `{name}:suffix`, or `name:suffix` for a name with a brace.
    Suffixed(&'static str),
    /// `prefix{name}` whatever the name is: for one with a tag it lies in another slot.
    Wrapped(&'static str),
}

/// A name with everything that is derived from it, formatted once; or a lane of one.
///
/// The waiters of a name stand behind each other and have one ticket. Where each is to have its own, it waits in a lane: for
/// the tables of this process that is a name of its own, for the server the same one.
pub(crate) struct Name {
    texts: Arc<Texts>,
    lane: Option<Lane>,
    /// Of the key and the lane, for tables that need no exactness.
    hash: u64,
}

struct Lane {
    number: u64,
    of: Arc<Name>,
}

struct Texts {
    layout: &'static Layout,
    /// The namespace and the name, then where releases are published, then the keys of the layout in its order: in one piece,
    /// since many a name is made for one acquisition.
    all: String,
    /// Where each of them ends.
    ends: [usize; 2 + DERIVED],
    /// Why the name cannot be used, if so: reported when it is used, so that creating a handle never fails.
    bad: Option<BadName>,
}

/// Why a name cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadName {
    #[error("the name is empty")]
    Empty,
    #[error("the name is longer than {MAX_KEY} bytes, namespace included")]
    TooLong,
    /// The lock and the keys derived from it would hash to different slots of a cluster.
    #[error(
        "the name has braces that are no hash tag: use a tag that is not empty, like `{{user:1}}:cart`, or none"
    )]
    Braces,
}

impl Derived {
    /// The parts of the name that the rule derives from `key`.
    fn of(self, key: &str) -> [&str; 4] {
        let has_brace = key.as_bytes().contains(&b'{');
        match (self, has_brace) {
            (Self::Prefixed(prefix), true) => [prefix, ":", key, ""],
            (Self::Prefixed(prefix), false) => [prefix, ":{", key, "}"],
            (Self::Suffixed(suffix), true) => [key, ":", suffix, ""],
            (Self::Suffixed(suffix), false) => ["{", key, "}:", suffix],
            (Self::Wrapped(prefix), _) => [prefix, "{", key, "}"],
        }
    }

    /// The bytes that it adds to a key, at most.
    const fn adds(self) -> usize {
        let (Self::Prefixed(text) | Self::Suffixed(text) | Self::Wrapped(text)) = self;
        text.len() + ":{}".len()
    }
}

impl Name {
    pub(crate) fn new(layout: &'static Layout, namespace: Option<&str>, name: &str) -> Self {
        let namespaced = namespace.map(|namespace| format!("{namespace}:{name}"));
        let key = namespaced.as_deref().unwrap_or(name);
        // A name without braces is the tag of all. Otherwise both rules for keys wrap the same names in the same braces: one of
        // them shows it for all.
        let same_tag = !key.contains(['{', '}'])
            || tag(key.as_bytes()) == tag(Derived::Prefixed("").of(key).concat().as_bytes());
        let bad = if name.is_empty() {
            Some(BadName::Empty)
        } else if key.len() > MAX_KEY {
            Some(BadName::TooLong)
        } else if !same_tag {
            Some(BadName::Braces)
        } else {
            None
        };
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        let hash = hasher.finish();
        Self {
            texts: Arc::new(Texts::new(layout, key, bad)),
            lane: None,
            hash,
        }
    }

    /// The lane of this name with a `number` that no other one has.
    pub(crate) fn lane(self: &Arc<Self>, number: u64) -> Self {
        let mut hasher = KnownHash(self.hash);
        hasher.write_u64(self.hash ^ number.rotate_left(32));
        Self {
            texts: Arc::clone(&self.texts),
            lane: Some(Lane {
                number,
                of: Arc::clone(self),
            }),
            hash: hasher.finish(),
        }
    }

    /// The name without its lane.
    pub(crate) fn whole(self: &Arc<Self>) -> &Arc<Self> {
        self.lane.as_ref().map_or(self, |lane| &lane.of)
    }

    /// The number of its lane, if it is one.
    pub(crate) fn lane_number(&self) -> Option<u64> {
        self.lane.as_ref().map(|lane| lane.number)
    }

    /// The same name with the keys and the channel of another primitive.
    pub(crate) fn with_layout(&self, layout: &'static Layout) -> Self {
        let mut other = Self::new(layout, None, self.key());
        if let Some(texts) = Arc::get_mut(&mut other.texts) {
            texts.bad = self.bad();
        }
        other
    }

    pub(crate) fn key(&self) -> &str {
        &self.texts.all[..self.texts.ends[0]]
    }

    pub(crate) fn channel(&self) -> &str {
        self.texts.behind(0)
    }

    /// The key with this index in the layout.
    ///
    /// # Panics
    ///
    /// If the layout has no such key.
    pub(crate) fn derived(&self, index: usize) -> &str {
        assert!(index < self.texts.layout.keys.len(), "no such key");
        self.texts.behind(1 + index)
    }

    pub(crate) fn bad(&self) -> Option<BadName> {
        self.texts.bad
    }

    pub(crate) const fn hash(&self) -> u64 {
        self.hash
    }
}

impl Texts {
    fn new(layout: &'static Layout, key: &str, bad: Option<BadName>) -> Self {
        let rules = || std::iter::once(layout.channel).chain(layout.keys.iter().copied());
        let room: usize = rules().map(|rule| rule.adds() + key.len()).sum();
        let mut all = String::with_capacity(key.len() + room);
        all.push_str(key);
        debug_assert!(layout.keys.len() <= DERIVED);
        let mut ends = [all.len(); 2 + DERIVED];
        for (rule, end) in rules().zip(&mut ends[1..]) {
            for part in rule.of(key) {
                all.push_str(part);
            }
            *end = all.len();
        }
        Self {
            layout,
            all,
            ends,
            bad,
        }
    }

    /// The one behind that with this index.
    fn behind(&self, index: usize) -> &str {
        &self.all[self.ends[index]..self.ends[index + 1]]
    }
}

/// One `Locks` has one namespace, so one key of one primitive is one name. Primitives that share a key exclude each other at
/// the server, not here, and so do lanes.
impl PartialEq for Name {
    fn eq(&self, other: &Self) -> bool {
        self.lane_number() == other.lane_number()
            && (Arc::ptr_eq(&self.texts, &other.texts)
                || self.key() == other.key() && std::ptr::eq(self.texts.layout, other.texts.layout))
    }
}

impl Eq for Name {}

impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

/// A hasher for tables whose keys are names, which have their hash, or numbers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KnownHash(u64);

impl Hasher for KnownHash {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(self.0 ^ u64::from(byte));
        }
    }

    fn write_u64(&mut self, n: u64) {
        // By the golden ratio, so that numbers in a row differ in their upper bits as well.
        self.0 = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.key().fmt(f)
    }
}

/// Whether `namespace` can stand before every name: with a brace in it, all names would share a tag or have a broken one.
pub(crate) fn is_good_namespace(namespace: &str) -> bool {
    !namespace.is_empty() && namespace.len() <= MAX_KEY / 2 && !namespace.contains(['{', '}'])
}

#[cfg(test)]
mod tests {
    use super::*;

    static LAYOUT: Layout = Layout {
        channel: Derived::Prefixed("redisson_lock__channel"),
        keys: &[
            Derived::Prefixed("redisson_lock_token"),
            Derived::Suffixed("timeout"),
            Derived::Wrapped("latch__"),
        ],
    };

    fn named(namespace: Option<&str>, name: &str) -> Name {
        Name::new(&LAYOUT, namespace, name)
    }

    #[test]
    fn keys_and_channels_are_redissons() {
        let plain = named(None, "order:42");
        assert_eq!(plain.key(), "order:42");
        assert_eq!(plain.channel(), "redisson_lock__channel:{order:42}");
        assert_eq!(plain.derived(0), "redisson_lock_token:{order:42}");
        assert_eq!(plain.derived(1), "{order:42}:timeout");
        assert_eq!(plain.derived(2), "latch__{order:42}");
        assert_eq!(plain.bad(), None);

        let tagged = named(None, "{user:1}:cart");
        assert_eq!(tagged.channel(), "redisson_lock__channel:{user:1}:cart");
        assert_eq!(tagged.derived(0), "redisson_lock_token:{user:1}:cart");
        assert_eq!(tagged.derived(1), "{user:1}:cart:timeout");
        assert_eq!(tagged.derived(2), "latch__{{user:1}:cart}");
        assert_eq!(tagged.bad(), None);

        let spaced = named(Some("shop"), "order:42");
        assert_eq!(spaced.key(), "shop:order:42");
        assert_eq!(spaced.channel(), "redisson_lock__channel:{shop:order:42}");
    }

    #[test]
    fn names_that_would_fail_with_crossslot_are_refused() {
        for name in ["a{b", "a{}b", "{}x", "a}b", "a{}b{c}", "}{", "{", "}"] {
            assert_eq!(named(None, name).bad(), Some(BadName::Braces), "{name}");
        }
        for name in ["x", "a{b}c", "{a}", "{{a}}", "a{b}c{", "a{b}}", "ä ö\n\0"] {
            assert_eq!(named(None, name).bad(), None, "{name}");
        }
    }

    #[test]
    fn empty_and_endless_names_are_refused() {
        assert_eq!(named(None, "").bad(), Some(BadName::Empty));
        assert_eq!(named(Some("shop"), "").bad(), Some(BadName::Empty));
        assert_eq!(named(None, &"x".repeat(MAX_KEY)).bad(), None);
        assert_eq!(
            named(None, &"x".repeat(MAX_KEY + 1)).bad(),
            Some(BadName::TooLong)
        );
        assert_eq!(
            named(Some("n"), &"x".repeat(MAX_KEY - 1)).bad(),
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
