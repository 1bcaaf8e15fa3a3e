//! Why an aim is missed, where that is known: what the results say beside the figure.

const EVALSHA: &str = "A driver needs a timer for its deadlines, and a runtime with a pending timer asks `epoll_wait` for a \
                       time: the row `raw-tokio, timer` shows what that alone costs. The system calls are the same three. \
                       The rest, about a microsecond, is spread over three clock reads, the map, and the locks of the \
                       driver's turn.";

const PAIRS: &str =
    "The hand-made floor-mux in the same run is the one to look at: it pays for the same runtime.";

const CLUSTER: &str = "What is left is the lock around the map, which two workers take for each command, and the queue of \
                       each connection, whose driver runs on the other worker.";

const BUILD: &str = "It carries clusters, sentinels and the keeper whatever the URL says. What is spawned or opens \
                     connections is boxed, so that it is compiled once; what is left is the code itself, its destructors \
                     and tables for unwinding.";

/// How an aim's text begins, and the reason.
pub const REASONS: &[(&str, &str)] = &[
    (
        "decode small replies",
        "Most of what is left is moving and dropping 40-byte values; a wave of replies is decoded in place. In a \
         micro-benchmark without the copy into the read buffer it was 350 MB/s.",
    ),
    ("EVALSHA, one task", EVALSHA),
    ("mutex lock and release", EVALSHA),
    ("pairs/s over redis-benchmark", PAIRS),
    (
        "contended hand-off",
        "Counted in round trips of a simple script, while ours are two scripts with a fencing token in one write.",
    ),
    ("cluster, ", CLUSTER),
    (
        "p99 of commands while the map is refreshed",
        "More than a hundred refreshes a second, which no cluster ever causes; the p50 does not move.",
    ),
    ("cold build", BUILD),
    ("stripped program", BUILD),
];
