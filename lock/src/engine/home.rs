//! The process that locks belong to.

/// A process. A child that was forked from it has copies of its locks and connections, and must not use them: what it wrote
/// would come from its parent as far as the server can tell, and its parent would get the answers.
///
/// Copies of mutexes may be locked for ever in the child, by threads that it does not have. So this is asked before any
/// mutex is locked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Home(u32);

impl Home {
    /// This process.
    pub(crate) fn here() -> Self {
        Self(std::process::id())
    }

    /// Whether this process was forked from that one.
    pub(crate) fn is_elsewhere(self) -> bool {
        std::process::id() != self.0
    }
}
