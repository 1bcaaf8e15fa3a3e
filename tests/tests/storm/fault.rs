//! The faults of a storm on one server.

use std::time::Duration;

use leasehold_testkit::chance::Chance;
use leasehold_testkit::history::Effect;
use leasehold_testkit::{Accept, Cut, Fault, Raw};
use tokio::time::sleep;

use crate::fleet::Moment;
use crate::proxied::{Line, Storm};

/// Number of tries of a command.
const ATTEMPTS: usize = 5;

/// The kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// SIGKILL to a worker, mostly while it holds a lock; another one takes its place.
    KillWorker,
    /// SIGSTOP to a worker for longer than its lease, then SIGCONT.
    FreezeWorker,
    /// The same while it waits, or gives up.
    KillWaiter(Moment),
    FreezeWaiter(Moment),
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
        Self::KillWorker,
        Self::FreezeWorker,
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

    /// Injects the fault, and ends it. Returns whether it had an effect.
    pub(crate) async fn strike(self, storm: &Storm, mut chance: Chance) -> bool {
        let index = storm.fleet.pick(&mut chance);
        match self {
            Self::KillWorker => {
                let holds = chance.percent(70);
                let moment = if holds {
                    Moment::Holding
                } else {
                    Moment::Waiting
                };
                storm.fleet.kill(index, moment, &mut chance).await;
                true
            }
            Self::KillWaiter(moment) => {
                storm.fleet.kill(index, moment, &mut chance).await;
                true
            }
            Self::FreezeWorker => {
                let moment = Moment::Holding;
                storm.fleet.freeze(index, moment, &mut chance).await
            }
            Self::FreezeWaiter(moment) => storm.fleet.freeze(index, moment, &mut chance).await,
            Self::ScriptFlush => {
                self.command(storm, &[&["SCRIPT", "FLUSH"]], Duration::ZERO)
                    .await
            }
            Self::ClientKill => {
                // In RESP3 a client that listens counts as `pubsub`, though it sends commands as
                // well.
                let all = [
                    ["CLIENT", "KILL", "TYPE", "normal"],
                    ["CLIENT", "KILL", "TYPE", "pubsub"],
                ];
                self.command(storm, &[&all[0], &all[1]], Duration::ZERO)
                    .await
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
                self.command(storm, &[&["DEBUG", "SLEEP", &time]], Duration::ZERO)
                    .await
            }
            _ => self.line(storm, &storm.lines[index], &mut chance).await,
        }
    }

    /// Sends commands to the server; their effect lasts for `time`.
    async fn command(self, storm: &Storm, commands: &[&[&str]], time: Duration) -> bool {
        let work = async {
            for _ in 0..ATTEMPTS {
                let mut raw = storm.server.raw().await;
                if all_done(&mut raw, commands).await {
                    sleep(time).await;
                    return true;
                }
            }
            false
        };
        storm
            .fleet
            .fault(&format!("{self:?}"), Effect::Delays, work)
            .await
    }

    /// Injects a fault between a worker and the server for a while.
    async fn line(self, storm: &Storm, line: &Line, chance: &mut Chance) -> bool {
        let _mine = line.struck.lock().await;
        let time = chance.millis(200, 1_800);
        let (to_server, to_client) = (chance.percent(50), chance.percent(50));
        let how = *chance.pick(&[Cut::Rst, Cut::Fin, Cut::HalfClose, Cut::Silence]);
        let fault = match self {
            Self::Delay => Fault::Delay(chance.millis(5, 60)),
            Self::Trickle => Fault::Trickle {
                bytes: 1 + chance.below(40) as usize,
                pause: chance.millis(1, 4),
            },
            Self::Stall => Fault::Stall,
            Self::Blackhole => Fault::Blackhole,
            Self::Cut => Fault::Cut {
                after: chance.below(2_000),
                how,
            },
            Self::LoseReply => Fault::LoseReply {
                nth: 1 + chance.below(5),
                how,
            },
            Self::DropMessages => Fault::DropMessages,
            Self::RepeatMessages => Fault::RepeatMessages,
            _ => Fault::None,
        };
        let only_to_client = matches!(
            self,
            Self::LoseReply | Self::DropMessages | Self::RepeatMessages
        );
        let work = async {
            if to_server && !only_to_client {
                line.proxy.to_server(fault.clone());
            }
            if to_client || !to_server || only_to_client {
                line.proxy.to_client(fault);
            }
            if self == Self::Refuse {
                line.proxy.accept(Accept::Refuse);
                line.proxy.reset_all();
            }
            sleep(time).await;
            // TCP never delivers a stream with a gap.
            if matches!(self, Self::Blackhole) {
                line.proxy.reset_all();
            }
            line.proxy.heal();
        };
        storm
            .fleet
            .fault(&format!("{self:?}"), Effect::Delays, work)
            .await;
        true
    }
}

/// Whether the server did all of it. The connection may be killed by another fault meanwhile.
async fn all_done(raw: &mut Raw, commands: &[&[&str]]) -> bool {
    for command in commands {
        if !raw
            .try_cmd(command)
            .await
            .is_ok_and(|reply| reply.error().is_none())
        {
            return false;
        }
    }
    true
}
