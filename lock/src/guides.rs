//! Guides: which servers to use, how to fence writes, how to run it and see what it does, and how to come from other libraries.

macro_rules! guide {
    ($name:ident, $file:literal, $title:literal) => {
        pub mod $name {
            #![doc = $title]
            #![doc = ""]
            #![doc = include_str!($file)]
            #![allow(unused_imports, reason = "the links of the text are looked up here")]
            use crate::*;
        }
    };
}

guide!(
    topology,
    "guides/topology.md",
    "Choosing a topology: one server, sentinels, a cluster, replicas that confirm, Redlock."
);
guide!(
    fencing,
    "guides/fencing.md",
    "Fencing: writes that are safe whatever fails, in SQL, object stores and over HTTP."
);
guide!(
    operating,
    "guides/operating.md",
    "Operating: settings, timeouts, shutdown, alerts, capacity, failovers, upgrades, ACL."
);
guide!(
    observing,
    "guides/observing.md",
    "Observing: statistics, events, metrics and traces, and what to do about what they tell."
);
guide!(
    from_redisson,
    "guides/from_redisson.md",
    "From Redisson: names side by side, differences in behaviour, and how to change over one service at a time."
);
guide!(
    from_others,
    "guides/from_others.md",
    "From redsync, redis-py and `flock`: names side by side, and what differs."
);
guide!(
    beside_others,
    "guides/beside_others.md",
    "Beside other libraries: which lock excludes which, and which of Redisson's faults reach a fleet of both."
);
#[cfg(feature = "testing")]
guide!(
    testing,
    "guides/testing.md",
    "Testing your code: a fake instead of a server, a lock that is lost on demand, a clock that a test moves."
);
