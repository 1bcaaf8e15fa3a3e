//! A command: something that can write itself as one request.

/// One request, which gets one reply.
///
/// Encoding happens while the connection's queue is locked: it must be quick and must not panic.
pub trait Encode {
    /// Appends the whole request to `out`.
    fn encode(&self, out: &mut Vec<u8>);
}

/// A command put together at run time.
///
/// ```
/// use leasehold_resp::Command;
/// let set = Command::new("SET").arg("key").arg("value").arg("PX").arg_int(1000);
/// ```
#[derive(Clone, Debug)]
pub struct Command {
    args: usize,
    body: Vec<u8>,
}

impl Command {
    /// A command called `name`, without arguments yet.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self { args: 0, body: Vec::new() }.arg(name)
    }

    /// The same with one argument more.
    #[must_use]
    pub fn arg(mut self, arg: impl AsRef<[u8]>) -> Self {
        self.args += 1;
        crate::encode::bulk(&mut self.body, arg.as_ref());
        self
    }

    /// The same with a decimal argument more.
    #[must_use]
    pub fn arg_int(mut self, n: i64) -> Self {
        self.args += 1;
        crate::encode::int(&mut self.body, n);
        self
    }
}

impl Encode for Command {
    fn encode(&self, out: &mut Vec<u8>) {
        crate::encode::array(out, self.args);
        out.extend_from_slice(&self.body);
    }
}

impl Encode for [&[u8]] {
    fn encode(&self, out: &mut Vec<u8>) {
        crate::encode::array(out, self.len());
        for arg in self {
            crate::encode::bulk(out, arg);
        }
    }
}
