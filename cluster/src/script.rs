//! A script, which knows its SHA-1 from birth.

use std::fmt;
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
            parts: Parts::Borrowed { keys, args },
            fallback: None,
        }
    }
}

/// One call of a script. It encodes itself as `EVALSHA`, without allocating.
#[derive(Clone, Copy, Debug)]
pub struct ScriptCall<'a> {
    script: &'a Script,
    parts: Parts<'a>,
    fallback: Option<Fallback<'a>>,
}

/// The keys and arguments of a call.
#[derive(Clone, Copy, Debug)]
enum Parts<'a> {
    Borrowed {
        keys: &'a [&'a [u8]],
        args: &'a [&'a [u8]],
    },
    Owned {
        keys: &'a [Box<[u8]>],
        args: &'a [Box<[u8]>],
    },
}

/// A call that is made instead of another one.
#[derive(Clone, Copy)]
struct Fallback<'a> {
    call: Instead<'a>,
    /// Whether only a migrating slot is a reason.
    migrating_only: bool,
}

#[derive(Clone, Copy)]
enum Instead<'a> {
    /// Put together when it is needed, which is seldom.
    Made(&'a (dyn Fn() -> OwnedCall + Sync)),
    Owned(&'a OwnedCall),
}

impl<'a> ScriptCall<'a> {
    /// The same call with a `fallback` on fewer keys, made instead when the server says `TRYAGAIN` or `NOPERM`.
    ///
    /// While a slot migrates, a script with two keys that do not exist yet cannot run on either node (the source answers
    /// ASK, the target TRYAGAIN, until the migration ends), and one with a single key can. And a user may have no right to
    /// one of the keys. The fallback may have one of its own.
    #[must_use]
    pub const fn with_fallback(self, fallback: &'a (dyn Fn() -> OwnedCall + Sync)) -> Self {
        self.falling_back(fallback, false)
    }

    /// The same with a `fallback` that is made when the server says `TRYAGAIN` only: without its other keys it gives less than
    /// a user with rights to them relies on.
    #[must_use]
    pub const fn while_migrating(self, fallback: &'a (dyn Fn() -> OwnedCall + Sync)) -> Self {
        self.falling_back(fallback, true)
    }

    const fn falling_back(
        self,
        make: &'a (dyn Fn() -> OwnedCall + Sync),
        migrating_only: bool,
    ) -> Self {
        Self {
            fallback: Some(Fallback {
                call: Instead::Made(make),
                migrating_only,
            }),
            ..self
        }
    }

    /// The fallback, if `error` calls for it.
    pub(crate) fn fallback_after(&self, error: &Error) -> Option<OwnedCall> {
        let fallback = self.fallback?;
        let is_reason = match error.as_server()?.kind() {
            ServerErrorKind::TryAgain => true,
            ServerErrorKind::NoPerm => !fallback.migrating_only,
            _ => false,
        };
        is_reason.then(|| match fallback.call {
            Instead::Made(make) => make(),
            Instead::Owned(call) => call.clone(),
        })
    }

    /// The script that is called.
    #[must_use]
    pub(crate) const fn script(&self) -> &'a Script {
        self.script
    }

    /// The key that routes the call: the first one, or none.
    #[must_use]
    pub(crate) fn key(&self) -> &'a [u8] {
        match self.parts {
            Parts::Borrowed { keys, .. } => keys.first().copied(),
            Parts::Owned { keys, .. } => keys.first().map(|key| &**key),
        }
        .unwrap_or_default()
    }

    /// The same call with the source in it, for a server that does not know the script.
    #[must_use]
    #[doc(hidden)]
    pub const fn with_source(self) -> Eval<'a> {
        Eval(self)
    }

    fn encode_as(&self, out: &mut Vec<u8>, verb: &[u8]) {
        match self.parts {
            Parts::Borrowed { keys, args } => encode_parts(out, verb, keys, args),
            Parts::Owned { keys, args } => encode_parts(out, verb, keys, args),
        }
    }
}

impl Encode for ScriptCall<'_> {
    fn encode(&self, out: &mut Vec<u8>) {
        self.encode_as(out, &self.script.evalsha);
    }
}

impl fmt::Debug for Fallback<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fallback")
            .field("migrating_only", &self.migrating_only)
            .finish_non_exhaustive()
    }
}

/// A call that owns its keys and arguments.
#[derive(Clone, Debug)]
pub struct OwnedCall {
    script: &'static Script,
    keys: Vec<Box<[u8]>>,
    args: Vec<Box<[u8]>>,
    fallback: Option<OwnedFallback>,
}

#[derive(Clone, Debug)]
struct OwnedFallback {
    call: Box<OwnedCall>,
    migrating_only: bool,
}

impl OwnedCall {
    /// A call of `script`. All keys must hash to one slot; the first one routes.
    #[must_use]
    pub const fn new(script: &'static Script, keys: Vec<Box<[u8]>>, args: Vec<Box<[u8]>>) -> Self {
        Self {
            script,
            keys,
            args,
            fallback: None,
        }
    }

    /// As [`ScriptCall::with_fallback`].
    #[must_use]
    pub fn with_fallback(self, fallback: Self) -> Self {
        self.falling_back(fallback, false)
    }

    /// As [`ScriptCall::while_migrating`].
    #[must_use]
    pub fn while_migrating(self, fallback: Self) -> Self {
        self.falling_back(fallback, true)
    }

    fn falling_back(self, call: Self, migrating_only: bool) -> Self {
        Self {
            fallback: Some(OwnedFallback {
                call: Box::new(call),
                migrating_only,
            }),
            ..self
        }
    }

    /// The call, in the form in which a client takes it.
    #[must_use]
    pub fn as_call(&self) -> ScriptCall<'_> {
        ScriptCall {
            script: self.script,
            parts: Parts::Owned {
                keys: &self.keys,
                args: &self.args,
            },
            fallback: self.fallback.as_ref().map(|fallback| Fallback {
                call: Instead::Owned(&fallback.call),
                migrating_only: fallback.migrating_only,
            }),
        }
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

fn encode_parts<T: AsRef<[u8]>>(out: &mut Vec<u8>, verb: &[u8], keys: &[T], args: &[T]) {
    encode::array(out, 3 + keys.len() + args.len());
    out.extend_from_slice(verb);
    encode::int(out, keys.len() as i64);
    for part in keys.iter().chain(args) {
        encode::bulk(out, part.as_ref());
    }
}

fn arguments(parts: &[&str]) -> Vec<u8> {
    let mut out = Vec::new();
    for part in parts {
        encode::bulk(&mut out, part.as_bytes());
    }
    out
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, LazyLock};

    use super::*;

    static SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new("return KEYS[1]"));

    fn call_on(keys: &[&str]) -> OwnedCall {
        let keys = keys.iter().map(|key| key.as_bytes().into());
        OwnedCall::new(&SCRIPT, keys.collect(), vec![(*b"argument").into()])
    }

    fn error(line: &str) -> Error {
        Error::server(&Arc::from("10.0.0.1:6379"), line.as_bytes())
    }

    fn encoded(call: ScriptCall<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        call.encode(&mut out);
        out
    }

    #[test]
    fn each_fallback_has_its_reasons_and_one_of_its_own() {
        let (try_again, no_perm) = (error("TRYAGAIN soon"), error("NOPERM no key"));
        let keys: [&[u8]; 3] = [b"lock", b"counter", b"line"];
        let without_line = || call_on(&["lock", "counter"]).while_migrating(call_on(&["lock"]));
        let call = SCRIPT
            .call(&keys, &[b"argument"])
            .with_fallback(&without_line);
        assert!(call.fallback_after(&error("WRONGTYPE a list")).is_none());
        for reason in [&try_again, &no_perm] {
            let second = call.fallback_after(reason).expect("a fallback");
            assert_eq!(
                encoded(second.as_call()),
                encoded(SCRIPT.call(&keys[..2], &[b"argument"]))
            );
            assert_eq!(second.as_call().key(), b"lock");
            assert!(second.as_call().fallback_after(&no_perm).is_none());
            let third = second.as_call().fallback_after(&try_again);
            let third = third.expect("a fallback of the fallback");
            assert_eq!(
                encoded(third.as_call()),
                encoded(SCRIPT.call(&keys[..1], &[b"argument"]))
            );
            assert!(third.as_call().fallback_after(&try_again).is_none());
        }
    }
}
