//! A script, which knows its SHA-1 from birth.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use leasehold_resp::encode;
use leasehold_resp::{Encode, Error, ServerErrorKind};

/// A Lua script, prepared once per process:
///
/// ```
/// use std::sync::LazyLock;
/// use leasehold_cluster::Script;
///
/// static GET: LazyLock<Script> = LazyLock::new(|| Script::new("return redis.call('GET', KEYS[1])"));
/// assert_eq!(GET.sha(), "d3c21d0c2b9ca22f82737626a27bcaf5d288f99f");
/// ```
#[derive(Debug)]
pub struct Script {
    source: &'static str,
    sha: String,
    /// `EVALSHA` and the SHA, as they go over the wire: all of a call that never changes.
    evalsha: Vec<u8>,
    /// `EVAL` and the source, likewise.
    eval: Vec<u8>,
    /// Its bit in [`Known`]; 0 if there are more scripts than bits.
    bit: Bit,
}

impl Script {
    /// Prepares `source`.
    #[must_use]
    pub fn new(source: &'static str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // Lower case: newer servers refuse an upper-case SHA.
        let sha = sha1_smol::Sha1::from(source).digest().to_string();
        Self {
            source,
            evalsha: arguments(&["EVALSHA", &sha]),
            eval: arguments(&["EVAL", source]),
            sha,
            bit: Bit(1_u64
                .checked_shl(NEXT.fetch_add(1, Ordering::Relaxed))
                .unwrap_or(0)),
        }
    }

    /// The text.
    #[must_use]
    pub const fn source(&self) -> &'static str {
        self.source
    }

    /// The SHA-1 of the text, in lower-case hexadecimal.
    #[must_use]
    pub fn sha(&self) -> &str {
        &self.sha
    }

    pub(crate) const fn bit(&self) -> Bit {
        self.bit
    }

    /// A call of it. All keys must hash to one slot; the first one routes.
    #[must_use]
    pub const fn call<'a>(&'a self, keys: &'a [&'a [u8]], args: &'a [&'a [u8]]) -> ScriptCall<'a> {
        ScriptCall {
            script: self,
            keys,
            args,
            fallback: None,
        }
    }
}

/// One call of a script. It encodes itself as `EVALSHA`, without allocating.
#[derive(Clone, Copy, Debug)]
pub struct ScriptCall<'a> {
    script: &'a Script,
    keys: &'a [&'a [u8]],
    args: &'a [&'a [u8]],
    fallback: Option<Fallback<'a>>,
}

/// A call that is made instead of another one.
#[derive(Clone, Copy, Debug)]
struct Fallback<'a> {
    call: &'a ScriptCall<'a>,
    /// Whether only a migrating slot is a reason.
    migrating_only: bool,
}

impl<'a> ScriptCall<'a> {
    /// The same call with a `fallback` on fewer keys, made instead when the server says `TRYAGAIN` or `NOPERM`.
    ///
    /// While a slot migrates, a script with two keys that do not exist yet cannot run on either node (the source answers
    /// ASK, the target TRYAGAIN, until the migration ends), and one with a single key can. And a user may have no right to
    /// one of the keys. The fallback may have one of its own.
    #[must_use]
    pub const fn with_fallback(self, fallback: &'a Self) -> Self {
        self.falling_back(fallback, false)
    }

    /// The same with a `fallback` that is made when the server says `TRYAGAIN` only: without its other keys it gives less than
    /// a user with rights to them relies on.
    #[must_use]
    pub const fn while_migrating(self, fallback: &'a Self) -> Self {
        self.falling_back(fallback, true)
    }

    const fn falling_back(self, call: &'a Self, migrating_only: bool) -> Self {
        Self {
            fallback: Some(Fallback {
                call,
                migrating_only,
            }),
            ..self
        }
    }

    /// The fallback, if `error` calls for it.
    pub(crate) fn fallback_after(&self, error: &Error) -> Option<Self> {
        let fallback = self.fallback?;
        let is_reason = match error.as_server()?.kind() {
            ServerErrorKind::TryAgain => true,
            ServerErrorKind::NoPerm => !fallback.migrating_only,
            _ => false,
        };
        is_reason.then_some(*fallback.call)
    }

    /// The script that is called.
    #[must_use]
    pub(crate) const fn script(&self) -> &'a Script {
        self.script
    }

    /// The key that routes the call: the first one, or none.
    #[must_use]
    pub(crate) fn key(&self) -> &'a [u8] {
        self.keys.first().copied().unwrap_or_default()
    }

    /// The same call with the source in it, for a server that does not know the script.
    #[must_use]
    #[doc(hidden)]
    pub const fn with_source(self) -> Eval<'a> {
        Eval(self)
    }

    fn encode_as(&self, out: &mut Vec<u8>, verb: &[u8]) {
        encode::array(out, 3 + self.keys.len() + self.args.len());
        out.extend_from_slice(verb);
        encode::int(out, self.keys.len() as i64);
        for part in self.keys.iter().chain(self.args) {
            encode::bulk(out, part);
        }
    }
}

impl Encode for ScriptCall<'_> {
    fn encode(&self, out: &mut Vec<u8>) {
        self.encode_as(out, &self.script.evalsha);
    }
}

/// A call that carries the source: `EVAL`, which also makes the server remember the script.
#[derive(Clone, Copy, Debug)]
pub struct Eval<'a>(ScriptCall<'a>);

impl Encode for Eval<'_> {
    fn encode(&self, out: &mut Vec<u8>) {
        self.0.encode_as(out, &self.0.script.eval);
    }
}

/// A script's place in [`Known`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bit(u64);

/// Which scripts a server is known to remember, since we connected. A restart, a failover, `SCRIPT FLUSH` or 500 other
/// scripts make it forget, so this only decides what to try first.
#[derive(Debug, Default)]
pub(crate) struct Known(AtomicU64);

impl Known {
    pub(crate) fn has(&self, script: Bit) -> bool {
        // Of a script without a bit nothing is known, ever: its source always goes along.
        self.0.load(Ordering::Relaxed) & script.0 != 0
    }

    pub(crate) fn learn(&self, script: Bit) {
        if !self.has(script) {
            self.0.fetch_or(script.0, Ordering::Relaxed);
        }
    }

    pub(crate) fn forget(&self, script: Bit) {
        self.0.fetch_and(!script.0, Ordering::Relaxed);
    }

    pub(crate) fn forget_all(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

fn arguments(parts: &[&str]) -> Vec<u8> {
    let mut out = Vec::new();
    for part in parts {
        encode::bulk(&mut out, part.as_bytes());
    }
    out
}
