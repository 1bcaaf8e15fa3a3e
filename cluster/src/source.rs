//! Where something came from: one connection to one node.

/// One connection of a client to one node. What comes from the same source came in the order in which the server sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    pub(crate) node: u64,
    pub(crate) session: u64,
}

impl Source {
    /// A source that differs from others by `number`, for tests of what is done with answers.
    #[must_use]
    #[doc(hidden)]
    pub const fn for_tests(number: u64) -> Self {
        Self {
            node: number,
            session: 0,
        }
    }
}
