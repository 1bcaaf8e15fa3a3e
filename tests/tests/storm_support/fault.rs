//! The faults of a storm.

use std::time::{Duration, Instant};

use leasehold_testkit::chance::Chance;
use leasehold_testkit::history::{Effect, What};
use leasehold_testkit::process::{freeze, thaw};
use leasehold_testkit::storm::LEASE;
use leasehold_testkit::{Accept, Cut, Fault, Raw};
use tokio::time::sleep;

use super::{Slot, Storm, spawn};

/// How long a process is waited for to hold a lock, before it is struck all the same.
const AIM: Duration = Duration::from_secs(4);

/// How often a command is tried.
const ATTEMPTS: usize = 5;

/// What can go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// SIGKILL to a worker, and another one takes its place.
    Kill,
    /// SIGSTOP to a worker for longer than its lease, then SIGCONT.
    Freeze,
    ScriptFlush,
    ClientKill,
    ClientPause,
    DebugSleep,
    Delay,
    Trickle,
    Stall,
    Blackhole,
    Refuse,
    Cut,
    LoseReply,
    DropMessages,
    RepeatMessages,
}

impl Kind {
    pub(crate) const ALL: [Self; 15] = [
        Self::Kill,
        Self::Freeze,
        Self::ScriptFlush,
        Self::ClientKill,
        Self::ClientPause,
        Self::DebugSleep,
        Self::Delay,
        Self::Trickle,
        Self::Stall,
        Self::Blackhole,
        Self::Refuse,
        Self::Cut,
        Self::LoseReply,
        Self::DropMessages,
        Self::RepeatMessages,
    ];

    /// Injects it, and mends it again. Returns whether there was anything to strike.
    pub(crate) async fn strike(self, storm: &Storm, mut chance: Chance) -> bool {
        let slot = &storm.slots[chance.below(storm.slots.len() as u64) as usize];
        match self {
            Self::Kill => kill(storm, slot, &mut chance).await,
            Self::Freeze => freeze_beyond_the_lease(storm, slot, &mut chance).await,
            Self::ScriptFlush => self.command(storm, &[&["SCRIPT", "FLUSH"]], Duration::ZERO).await,
            Self::ClientKill => {
                // In RESP3 a client that listens counts as `pubsub`, though it sends commands as well.
                let all = [["CLIENT", "KILL", "TYPE", "normal"], ["CLIENT", "KILL", "TYPE", "pubsub"]];
                self.command(storm, &[&all[0], &all[1]], Duration::ZERO).await
            }
            Self::ClientPause => {
                let time = chance.millis(100, 1_200);
                let which = *chance.pick(&["WRITE", "ALL"]);
                let pause = ["CLIENT", "PAUSE", &time.as_millis().to_string(), which];
                self.command(storm, &[&pause], time).await
            }
            Self::DebugSleep => {
                // It answers when it wakes up.
                let time = format!("{:.3}", chance.millis(100, 1_200).as_secs_f64());
                self.command(storm, &[&["DEBUG", "SLEEP", &time]], Duration::ZERO).await
            }
            _ => self.line(storm, slot, &mut chance).await,
        }
    }

    /// Sends commands to the server; their effect lasts for `time`.
    async fn command(self, storm: &Storm, commands: &[&[&str]], time: Duration) -> bool {
        let work = async {
            for _ in 0..ATTEMPTS {
                let mut raw = storm.raw().await;
                if all_done(&mut raw, commands).await {
                    sleep(time).await;
                    return true;
                }
            }
            false
        };
        storm.fault(&format!("{self:?}"), Effect::Delays, work).await
    }

    /// Lets the way between a worker and the server go bad for a while.
    async fn line(self, storm: &Storm, slot: &Slot, chance: &mut Chance) -> bool {
        let _mine = slot.line.lock().await;
        let time = chance.millis(200, 1_800);
        let (to_server, to_client) = (chance.percent(50), chance.percent(50));
        let how = *chance.pick(&[Cut::Rst, Cut::Fin, Cut::HalfClose, Cut::Silence]);
        let fault = match self {
            Self::Delay => Fault::Delay(chance.millis(5, 60)),
            Self::Trickle => Fault::Trickle { bytes: 1 + chance.below(40) as usize, pause: chance.millis(1, 4) },
            Self::Stall => Fault::Stall,
            Self::Blackhole => Fault::Blackhole,
            Self::Cut => Fault::Cut { after: chance.below(2_000), how },
            Self::LoseReply => Fault::LoseReply { nth: 1 + chance.below(5), how },
            Self::DropMessages => Fault::DropMessages,
            Self::RepeatMessages => Fault::RepeatMessages,
            _ => Fault::None,
        };
        let only_to_client = matches!(self, Self::LoseReply | Self::DropMessages | Self::RepeatMessages);
        let work = async {
            if to_server && !only_to_client {
                slot.proxy.to_server(fault.clone());
            }
            if to_client || !to_server || only_to_client {
                slot.proxy.to_client(fault);
            }
            if self == Self::Refuse {
                slot.proxy.accept(Accept::Refuse);
                slot.proxy.reset_all();
            }
            sleep(time).await;
            // A stream with a hole in it is nothing TCP would deliver.
            if matches!(self, Self::Blackhole) {
                slot.proxy.reset_all();
            }
            slot.proxy.heal();
        };
        storm.fault(&format!("{self:?}"), Effect::Delays, work).await;
        true
    }
}

/// Whether the server did all of it. The connection may be killed by another fault meanwhile.
async fn all_done(raw: &mut Raw, commands: &[&[&str]]) -> bool {
    for command in commands {
        if !raw.try_cmd(command).await.is_ok_and(|reply| reply.error().is_none()) {
            return false;
        }
    }
    true
}

/// Kills a worker in the midst of its work, and starts another.
async fn kill(storm: &Storm, slot: &Slot, chance: &mut Chance) -> bool {
    let mut worker = slot.worker.lock().await;
    if chance.percent(70) {
        aim(storm, worker.pid()).await;
    }
    let pid = worker.pid();
    let work = async {
        worker.kill();
        // Afterwards: until then it may have written more. What it held is held until its lease ends.
        storm.recorder.record(What::Died { pid });
        *worker = spawn(&slot.proxy, storm.server.addr(), storm.dir.path(), chance.below(u64::MAX));
    };
    storm.fault("Kill", Effect::Delays, work).await;
    true
}

/// Stops a worker that holds a lock, for longer than the lease, and lets it go on as if nothing had been.
async fn freeze_beyond_the_lease(storm: &Storm, slot: &Slot, chance: &mut Chance) -> bool {
    let worker = slot.worker.lock().await;
    let pid = worker.pid();
    aim(storm, pid).await;
    let work = async {
        freeze(pid);
        sleep(LEASE + chance.millis(500, 1_500)).await;
        thaw(pid);
    };
    storm.fault("Freeze", Effect::Freezes(pid), work).await;
    true
}

/// Waits until a worker has a lock and lingers on it, if it gets one soon.
async fn aim(storm: &Storm, pid: u32) {
    let mark = storm.dir.join(&format!("linger-{pid}"));
    std::fs::write(&mark, "").expect("the directory is writable");
    let give_up = Instant::now() + AIM;
    while mark.exists() && Instant::now() < give_up {
        sleep(Duration::from_millis(5)).await;
    }
    // Else it would linger later, for nothing.
    let _ = std::fs::remove_file(mark);
}
