//! Bytes on their way into the outbox, and from there to the socket.

use std::fmt;

/// A buffer that is being written.
pub struct Writing {
    pub(super) bytes: Vec<u8>,
    pub(super) head: usize,
    /// Stream position behind the last byte.
    pub(super) end: u64,
    pub(super) epoch: u64,
}

impl Writing {
    /// The bytes that are still to be written.
    #[must_use]
    pub fn rest(&self) -> &[u8] {
        &self.bytes[self.head..]
    }

    /// `n` bytes more were written.
    pub const fn advance(&mut self, n: usize) {
        self.head += n;
    }
}

/// How much there is, never the bytes: requests carry passwords.
impl fmt::Debug for Writing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writing")
            .field("left", &self.rest().len())
            .finish_non_exhaustive()
    }
}

/// Takes back what an [`Encode`] that panics has written: the server would read the next request as the rest of it.
pub(super) struct Partial<'a> {
    pub(super) outbox: &'a mut Vec<u8>,
    /// The length to return to.
    pub(super) before: usize,
}

impl Drop for Partial<'_> {
    fn drop(&mut self) {
        self.outbox.truncate(self.before);
    }
}
