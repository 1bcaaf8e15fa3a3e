//! Guides: how to come from Redisson, and what is shared with other libraries. There is no code in them.

pub mod from_redisson {
    //! From Redisson: names side by side, differences in behaviour, and how to change over one service at a time.
    //!
    #![doc = include_str!("guides/from_redisson.md")]
    #![allow(unused_imports, reason = "the links of the text are looked up here")]
    use crate::*;
}

pub mod beside_others {
    //! Beside other libraries: which lock excludes which, and which of Redisson's faults reach a fleet of both.
    //!
    #![doc = include_str!("guides/beside_others.md")]
    #![allow(unused_imports, reason = "the links of the text are looked up here")]
    use crate::*;
}
