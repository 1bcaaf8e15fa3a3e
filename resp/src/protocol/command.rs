//! A command: something that can write itself as one request.

use std::fmt;
use std::ops::Range;

use crate::protocol::encode;

mod sharing;

/// One request, which gets one reply.
///
/// Encoding happens while the connection's queue is locked: it must be quick. If it panics nothing was submitted.
pub trait Encode {
    /// Appends the whole request to `out`.
    fn encode(&self, out: &mut Vec<u8>);

    /// Why a shared connection must refuse the command: its name, with the subcommand or option if only that changes or
    /// blocks the connection, in capitals. `None` if it may be sent.
    fn breaks_sharing(&self) -> Option<&'static str> {
        None
    }
}

/// Behind every argument on the wire.
const LINE_END: &[u8] = b"\r\n";

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
    /// Where the name is in `body`.
    name: Range<usize>,
}

impl Command {
    /// A command called `name`, without arguments yet.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let mut body = Vec::with_capacity(128);
        encode::bulk(&mut body, name.as_bytes());
        let end = body.len() - LINE_END.len();
        Self {
            args: 1,
            body,
            name: end - name.len()..end,
        }
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
        std::str::from_utf8(&self.body[self.name.clone()]).unwrap_or_default()
    }

    /// The first argument behind the name; empty if there is none.
    fn subcommand(&self) -> &[u8] {
        let rest = &self.body[self.name.end + LINE_END.len()..];
        // Its length, then itself; cut at a line end in it, which no subcommand has.
        let mut lines = rest.split(|byte| *byte == b'\r');
        let argument = lines.nth(1).and_then(|line| line.strip_prefix(b"\n"));
        argument.unwrap_or_default()
    }

    fn has_arg(&self, word: &[u8]) -> bool {
        let rest = &self.body[self.name.end..];
        rest.windows(word.len() + 2 * LINE_END.len()).any(|part| {
            part.starts_with(LINE_END)
                && part.ends_with(LINE_END)
                && part[LINE_END.len()..][..word.len()].eq_ignore_ascii_case(word)
        })
    }
}

impl Encode for Command {
    fn encode(&self, out: &mut Vec<u8>) {
        out.reserve(self.body.len() + 24);
        encode::array(out, self.args);
        out.extend_from_slice(&self.body);
    }

    fn breaks_sharing(&self) -> Option<&'static str> {
        let name = &self.body[self.name.clone()];
        sharing::forbids(name, |word| self.has_arg(word), || self.subcommand())
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
        encode::request(out, self);
    }

    fn breaks_sharing(&self) -> Option<&'static str> {
        let (name, args) = self.split_first()?;
        let has = |word: &[u8]| args.iter().any(|arg| arg.eq_ignore_ascii_case(word));
        sharing::forbids(name, has, || args.first().copied().unwrap_or_default())
    }
}

impl<const N: usize> Encode for [&[u8]; N] {
    fn encode(&self, out: &mut Vec<u8>) {
        self.as_slice().encode(out);
    }

    fn breaks_sharing(&self) -> Option<&'static str> {
        self.as_slice().breaks_sharing()
    }
}

impl<E: Encode + ?Sized> Encode for &E {
    fn encode(&self, out: &mut Vec<u8>) {
        (**self).encode(out);
    }

    fn breaks_sharing(&self) -> Option<&'static str> {
        (**self).breaks_sharing()
    }
}

/// A command for a slot that is being imported: `ASKING` goes before it in the same write, because the permission lasts
/// for one command only, and any other caller's would use it up.
#[derive(Clone, Copy)]
pub struct Asking<E>(pub E);

impl<E: Encode> Encode for Asking<E> {
    fn encode(&self, out: &mut Vec<u8>) {
        encode::array(out, 1);
        encode::bulk(out, b"ASKING");
        self.0.encode(out);
    }

    fn breaks_sharing(&self) -> Option<&'static str> {
        self.0.breaks_sharing()
    }
}

/// Not the command, whose arguments may be secret.
impl<E> fmt::Debug for Asking<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Asking").finish_non_exhaustive()
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
