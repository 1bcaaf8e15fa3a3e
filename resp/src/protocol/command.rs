//! A command: something that can write itself as one request.

use std::fmt;

use crate::protocol::encode;

/// One request, which gets one reply.
///
/// Encoding happens while the connection's queue is locked: it must be quick and must not panic.
pub trait Encode {
    /// Appends the whole request to `out`.
    fn encode(&self, out: &mut Vec<u8>);

    /// The command's name, if it changes or blocks the connection it is sent on, so that a shared one must refuse it.
    fn breaks_sharing(&self) -> Option<&str> {
        None
    }
}

/// Commands that answer otherwise than with one reply, keep state in the connection, or block it.
const NOT_SHARED: [&str; 28] = [
    "AUTH",
    "BLMOVE",
    "BLMPOP",
    "BLPOP",
    "BRPOP",
    "BRPOPLPUSH",
    "BZMPOP",
    "BZPOPMAX",
    "BZPOPMIN",
    "DISCARD",
    "EXEC",
    "HELLO",
    "MONITOR",
    "MULTI",
    "PSUBSCRIBE",
    "PSYNC",
    "PUNSUBSCRIBE",
    "QUIT",
    "RESET",
    "SELECT",
    "SSUBSCRIBE",
    "SUBSCRIBE",
    "SUNSUBSCRIBE",
    "SYNC",
    "UNSUBSCRIBE",
    "WAIT",
    "WAITAOF",
    "WATCH",
];

/// A command put together at run time.
///
/// ```
/// use leasehold_resp::Command;
/// let set = Command::new("SET").arg("key").arg("value").arg("PX").arg_int(1000);
/// ```
#[derive(Clone)]
pub struct Command {
    /// How many arguments `body` holds, the name among them.
    args: usize,
    /// The arguments as they go over the wire, behind the header.
    body: Vec<u8>,
}

impl Command {
    /// A command called `name`, without arguments yet.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let mut body = Vec::with_capacity(128);
        encode::bulk(&mut body, name.as_bytes());
        Self { args: 1, body }
    }

    /// The same with one argument more.
    #[must_use]
    pub fn arg(mut self, arg: impl AsRef<[u8]>) -> Self {
        self.args += 1;
        encode::bulk(&mut self.body, arg.as_ref());
        self
    }

    /// The same with a decimal argument more.
    #[must_use]
    pub fn arg_int(mut self, n: i64) -> Self {
        self.args += 1;
        encode::int(&mut self.body, n);
        self
    }

    /// The name it was made with.
    #[must_use]
    pub fn name(&self) -> &str {
        // It is the first argument, between the first two line ends. A name with a line end in it is cut there.
        let name = self
            .body
            .split(|byte| *byte == b'\r')
            .nth(1)
            .and_then(|rest| rest.strip_prefix(b"\n"));
        name.and_then(|name| std::str::from_utf8(name).ok())
            .unwrap_or_default()
    }
}

impl Encode for Command {
    fn encode(&self, out: &mut Vec<u8>) {
        out.reserve(self.body.len() + 24);
        encode::array(out, self.args);
        out.extend_from_slice(&self.body);
    }

    fn breaks_sharing(&self) -> Option<&str> {
        let name = self.name();
        let has = |arg: &[u8; 9]| {
            self.body
                .windows(9)
                .any(|part| part.eq_ignore_ascii_case(arg))
        };
        is_refused(name, || has(b"\r\nREPLY\r\n"), || has(b"\r\nBLOCK\r\n")).then_some(name)
    }
}

/// Whether a shared connection refuses a command, by its name and, for two names, by an argument that it may have.
fn is_refused(name: &str, has_reply: impl Fn() -> bool, has_block: impl Fn() -> bool) -> bool {
    // What locks and most callers send is let through by its first letter.
    match name.as_bytes().first().map_or(0, u8::to_ascii_uppercase) {
        // `CLIENT REPLY OFF` would leave every later caller without an answer.
        b'C' => name.eq_ignore_ascii_case("CLIENT") && has_reply(),
        b'X' => {
            (name.eq_ignore_ascii_case("XREAD") || name.eq_ignore_ascii_case("XREADGROUP"))
                && has_block()
        }
        b'A' | b'B' | b'D' | b'E' | b'H' | b'M' | b'P' | b'Q' | b'R' | b'S' | b'U' | b'W' => {
            NOT_SHARED
                .iter()
                .any(|refused| name.eq_ignore_ascii_case(refused))
        }
        _ => false,
    }
}

/// The name and its arguments.
impl Encode for [&[u8]] {
    fn encode(&self, out: &mut Vec<u8>) {
        if self.is_empty() {
            // A server ignores an empty array and sends no reply to it: the next command's would be taken for it. A
            // command without a name is refused, as it should be.
            return [&b""[..]].encode(out);
        }
        out.reserve(self.iter().map(|arg| arg.len() + 24).sum::<usize>() + 24);
        encode::array(out, self.len());
        for arg in self {
            encode::bulk(out, arg);
        }
    }

    fn breaks_sharing(&self) -> Option<&str> {
        let (name, args) = self.split_first()?;
        let name = std::str::from_utf8(name).ok()?;
        let has = |word: &[u8]| args.iter().any(|arg| arg.eq_ignore_ascii_case(word));
        is_refused(name, || has(b"REPLY"), || has(b"BLOCK")).then_some(name)
    }
}

impl<const N: usize> Encode for [&[u8]; N] {
    fn encode(&self, out: &mut Vec<u8>) {
        self.as_slice().encode(out);
    }

    fn breaks_sharing(&self) -> Option<&str> {
        self.as_slice().breaks_sharing()
    }
}

impl<E: Encode + ?Sized> Encode for &E {
    fn encode(&self, out: &mut Vec<u8>) {
        (**self).encode(out);
    }

    fn breaks_sharing(&self) -> Option<&str> {
        (**self).breaks_sharing()
    }
}

/// A command for a slot that is being imported: `ASKING` goes before it in the same write, because the permission lasts
/// for one command only, and any other caller's would use it up.
#[derive(Clone, Copy, Debug)]
pub struct Asking<E>(pub E);

impl<E: Encode> Encode for Asking<E> {
    fn encode(&self, out: &mut Vec<u8>) {
        encode::array(out, 1);
        encode::bulk(out, b"ASKING");
        self.0.encode(out);
    }

    fn breaks_sharing(&self) -> Option<&str> {
        self.0.breaks_sharing()
    }
}

/// The name and how many arguments follow, never the arguments: `AUTH` has a password among them.
impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Command")
            .field("name", &self.name())
            .field("args", &(self.args - 1))
            .finish_non_exhaustive()
    }
}
