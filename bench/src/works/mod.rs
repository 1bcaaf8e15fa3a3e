//! The works that are measured, one a file. Each takes samples in processes of their own and makes
//! a table of them.

pub mod build;
pub mod cluster;
pub mod decode;
pub mod encode;
pub mod fairness;
pub mod family;
pub mod handoff;
pub mod handover;
pub mod instructions;
pub mod isolation;
pub mod latency;
pub mod memory;
pub mod mutex;
pub mod mutex_tasks;
pub mod outage;
pub mod recovery;
pub mod redisson;
pub mod refresh;
pub mod renewals;
pub mod resubscribe;
pub mod slot;
pub mod syscalls;
pub mod throughput;
pub mod turns;
pub mod writers;

use std::io::Result;

use crate::harness::Harness;
use crate::report::Section;
use crate::sample::{Figures, Request};

/// One work.
pub struct Work {
    /// For `--only`, and for sample processes.
    pub name: &'static str,
    /// Takes the samples.
    pub run: fn(&Harness) -> Result<Section>,
    /// Takes one, in a process of its own.
    pub sample: fn(&Request) -> Figures,
}

/// All of them, in the order of the report.
pub const ALL: &[Work] = &[
    Work {
        name: "decode",
        run: decode::run,
        sample: decode::sample,
    },
    Work {
        name: "encode",
        run: encode::run,
        sample: encode::sample,
    },
    Work {
        name: "latency",
        run: latency::run,
        sample: latency::sample,
    },
    Work {
        name: "mutex",
        run: mutex::run,
        sample: mutex::sample,
    },
    Work {
        name: "mutex-tasks",
        run: mutex_tasks::run,
        sample: mutex_tasks::sample,
    },
    Work {
        name: "throughput",
        run: throughput::run,
        sample: throughput::sample,
    },
    Work {
        name: "syscalls",
        run: syscalls::run,
        sample: throughput::sample,
    },
    Work {
        name: "instructions",
        run: instructions::run,
        sample: instructions::sample,
    },
    Work {
        name: "handoff",
        run: handoff::run,
        sample: handoff::sample,
    },
    Work {
        name: "handover",
        run: handover::run,
        sample: handover::sample,
    },
    Work {
        name: "family",
        run: family::run,
        sample: family::sample,
    },
    Work {
        name: "turns",
        run: turns::run,
        sample: turns::sample,
    },
    Work {
        name: "writers",
        run: writers::run,
        sample: writers::sample,
    },
    Work {
        name: "fairness",
        run: fairness::run,
        sample: fairness::sample,
    },
    Work {
        name: "memory",
        run: memory::run,
        sample: memory::sample,
    },
    Work {
        name: "renewals",
        run: renewals::run,
        sample: renewals::sample,
    },
    Work {
        name: "redisson",
        run: redisson::run,
        sample: redisson::sample,
    },
    Work {
        name: "slot",
        run: slot::run,
        sample: slot::sample,
    },
    Work {
        name: "cluster",
        run: cluster::run,
        sample: cluster::sample,
    },
    Work {
        name: "refresh",
        run: refresh::run,
        sample: refresh::sample,
    },
    Work {
        name: "isolation",
        run: isolation::run,
        sample: isolation::sample,
    },
    Work {
        name: "recovery",
        run: recovery::run,
        sample: recovery::sample,
    },
    Work {
        name: "outage",
        run: outage::run,
        sample: outage::sample,
    },
    Work {
        name: "resubscribe",
        run: resubscribe::run,
        sample: resubscribe::sample,
    },
    Work {
        name: "build",
        run: build::run,
        sample: |_| Figures::new(),
    },
];
