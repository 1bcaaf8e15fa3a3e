//! How much of a primitive a hold takes, where that is counted.

/// The permits of a request or a hold, and how many the caller believes there are in all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Permits {
    pub(crate) count: u32,
    pub(crate) capacity: u32,
}

impl Permits {
    /// Nothing is counted.
    pub(crate) const NONE: Self = Self {
        count: 0,
        capacity: 0,
    };
}
