//! A script, which knows its SHA-1 from birth.

use leasehold_resp::Encode;

/// A Lua script, prepared once: `static ACQUIRE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("acquire.lua")))`.
#[derive(Debug)]
pub struct Script {
    source: &'static str,
}

impl Script {
    /// Prepares `source`.
    #[must_use]
    pub fn new(source: &'static str) -> Self {
        Self { source }
    }

    /// The text.
    #[must_use]
    pub const fn source(&self) -> &'static str {
        self.source
    }

    /// A call of it. All keys must hash to one slot; the first one routes.
    #[must_use]
    pub const fn call<'a>(&'a self, keys: &'a [&'a [u8]], args: &'a [&'a [u8]]) -> ScriptCall<'a> {
        ScriptCall { script: self, keys, args }
    }
}

/// One call of a script: encodes itself as `EVALSHA`.
#[derive(Clone, Copy, Debug)]
pub struct ScriptCall<'a> {
    script: &'a Script,
    keys: &'a [&'a [u8]],
    args: &'a [&'a [u8]],
}

impl Encode for ScriptCall<'_> {
    fn encode(&self, out: &mut Vec<u8>) {
        let _ = (out, self.script, self.keys, self.args);
        todo!()
    }
}
