//! One direction of one connection.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::fault::{Cut, Fault, Plan};
use super::frame::{self, Kind};
use super::ports;

/// Why a direction ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// The sender closed, or a fault says so; the other direction goes on.
    Eof,
    /// The whole connection ends like this.
    Cut(Cut),
}

pub(super) struct Pump<'a> {
    from: ReadHalf<'a>,
    to: WriteHalf<'a>,
    /// Where the connection comes from.
    peer: IpAddr,
    plans: &'a watch::Sender<Plan>,
    changes: watch::Receiver<Plan>,
    plan: Plan,
    /// The number of the connection.
    id: u64,
    /// Whether the peer is cut off.
    severed: bool,
    held: Held,
    /// Ports to be replaced in frames.
    renamed: Arc<[(u16, u16)]>,
    /// Bytes seen from the sender, of all connections.
    total: &'a AtomicU64,
    /// Read and not yet dealt with.
    pending: Vec<u8>,
    /// Bytes, or whole replies, that passed under the present plan.
    passed: u64,
    /// The sender will send no more.
    eof: bool,
}

/// Whether a connection is held up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Held {
    No,
    Yes,
    /// But for one frame, which passes.
    One,
    /// That has passed.
    Passed,
}

/// The next step, decided by the plan and the pending bytes.
enum Step {
    /// Pass this many bytes, then pause.
    Pass(usize, Duration),
    Discard(usize),
    /// Too little is pending to decide.
    Read,
    /// Nothing, until the plan changes.
    Wait,
    /// Pass this many bytes, then end.
    Cut(usize, Cut),
    End,
}

impl<'a> Pump<'a> {
    pub(super) fn new(
        id: u64,
        from: ReadHalf<'a>,
        to: WriteHalf<'a>,
        peer: IpAddr,
        plans: &'a watch::Sender<Plan>,
        total: &'a AtomicU64,
    ) -> Self {
        let mut changes = plans.subscribe();
        let plan = changes.borrow_and_update().clone();
        let severed = plan.severed.contains(&peer);
        Self {
            from,
            to,
            peer,
            plans,
            changes,
            plan,
            id,
            severed,
            held: Held::No,
            renamed: Arc::default(),
            total,
            pending: Vec::new(),
            passed: 0,
            eof: false,
        }
    }

    pub(super) async fn run(mut self) -> End {
        loop {
            self.look_at_plan();
            let done = match self.next_step() {
                Step::Pass(n, pause) => self.pass(n, pause).await,
                Step::Discard(n) => {
                    self.pending.drain(..n);
                    Ok(())
                }
                Step::Read => self.read().await,
                Step::Wait => {
                    // The sender lives as long as the proxy.
                    let _ = self.changes.changed().await;
                    Ok(())
                }
                Step::Cut(n, how) => return self.cut(n, how).await,
                Step::End => {
                    let _ = self.to.shutdown().await;
                    return End::Eof;
                }
            };
            // One side was reset: the other one is reset too.
            if done.is_err() {
                return End::Cut(Cut::Rst);
            }
        }
    }

    fn look_at_plan(&mut self) {
        let plan = self.changes.borrow_and_update();
        self.severed = plan.severed.contains(&self.peer);
        self.held = match self.held {
            // Whatever comes later: what was behind the one that passed never arrives.
            Held::Passed => Held::Passed,
            _ if !plan.held.contains(&self.id) => Held::No,
            _ if plan.one_passes => Held::One,
            _ => Held::Yes,
        };
        if !Arc::ptr_eq(&plan.renamed, &self.renamed) {
            self.renamed = Arc::clone(&plan.renamed);
        }
        if plan.generation != self.plan.generation {
            self.plan = plan.clone();
            self.passed = 0;
        }
    }

    fn next_step(&mut self) -> Step {
        let n = self.pending.len();
        match self.plan.fault {
            _ if self.severed => Step::Wait,
            _ if matches!(self.held, Held::Yes | Held::Passed) => Step::Wait,
            _ if self.held == Held::One => match frame::first(&self.pending) {
                Some(first) => {
                    self.held = Held::Passed;
                    Step::Pass(first.length, Duration::ZERO)
                }
                None => self.read_or_end(),
            },
            Fault::Stall => Step::Wait,
            Fault::Blackhole if n > 0 => Step::Discard(n),
            Fault::Blackhole if self.eof => Step::Wait,
            _ if n == 0 && self.eof => Step::End,
            _ if n == 0 => Step::Read,
            Fault::None if !self.renamed.is_empty() => match frame::first(&self.pending) {
                Some(first) => {
                    ports::rename(&mut self.pending[..first.length], &self.renamed);
                    Step::Pass(first.length, Duration::ZERO)
                }
                None => self.read_or_end(),
            },
            Fault::None | Fault::Blackhole => Step::Pass(n, Duration::ZERO),
            // The wait is before the write, see `pass`.
            Fault::Delay(_) => Step::Pass(n, Duration::ZERO),
            Fault::Trickle { bytes, pause } => Step::Pass(n.min(bytes.max(1)), pause),
            Fault::Corrupt { at } => {
                let offset = at - self.passed;
                if let Some(byte) = usize::try_from(offset)
                    .ok()
                    .and_then(|i| self.pending.get_mut(i))
                {
                    *byte ^= 0xff;
                    self.plan_is_done();
                }
                Step::Pass(n, Duration::ZERO)
            }
            Fault::Cut { after, how } => match usize::try_from(after - self.passed) {
                Ok(left) if left <= n => Step::Cut(left, how),
                _ => Step::Pass(n, Duration::ZERO),
            },
            Fault::LoseReply { nth, how } => match frame::first(&self.pending) {
                Some(first) if first.kind == Kind::Reply && self.passed + 1 == nth => {
                    Step::Cut(0, how)
                }
                Some(first) => Step::Pass(first.length, Duration::ZERO),
                None => self.read_or_end(),
            },
            Fault::DropMessages | Fault::RepeatMessages => match frame::first(&self.pending) {
                Some(first) if first.kind == Kind::Message => {
                    if self.plan.fault == Fault::DropMessages {
                        return Step::Discard(first.length);
                    }
                    let message = self.pending[..first.length].to_vec();
                    self.pending.splice(..0, message);
                    Step::Pass(first.length * 2, Duration::ZERO)
                }
                Some(first) => Step::Pass(first.length, Duration::ZERO),
                None => self.read_or_end(),
            },
        }
    }

    /// For an incomplete frame: ends if the stream has ended.
    fn read_or_end(&self) -> Step {
        if self.eof { Step::End } else { Step::Read }
    }

    async fn pass(&mut self, n: usize, pause: Duration) -> std::io::Result<()> {
        if let Fault::Delay(delay) = self.plan.fault {
            // A change of plan meanwhile is for these bytes as well.
            if timeout(delay, self.changes.changed()).await.is_ok() {
                return Ok(());
            }
        }
        self.to.write_all(&self.pending[..n]).await?;
        self.passed += match self.plan.fault {
            // Under this plan whole frames pass.
            Fault::LoseReply { .. } => {
                let kind = frame::first(&self.pending).map(|first| first.kind);
                u64::from(kind == Some(Kind::Reply))
            }
            _ => n as u64,
        };
        self.pending.drain(..n);
        if !pause.is_zero() {
            let _ = timeout(pause, self.changes.changed()).await;
        }
        Ok(())
    }

    async fn read(&mut self) -> std::io::Result<()> {
        let mut chunk = [0; 16 * 1024];
        tokio::select! {
            // The plan first: bytes that arrive after a change are treated by the new plan.
            biased;
            _ = self.changes.changed() => {}
            n = self.from.read(&mut chunk) => {
                let n = n?;
                self.eof = n == 0;
                self.total.fetch_add(n as u64, Ordering::SeqCst);
                self.pending.extend_from_slice(&chunk[..n]);
            }
        }
        Ok(())
    }

    async fn cut(&mut self, n: usize, how: Cut) -> End {
        self.plan_is_done();
        let _ = self.to.write_all(&self.pending[..n]).await;
        if how != Cut::HalfClose {
            return End::Cut(how);
        }
        let _ = self.to.shutdown().await;
        drain(&mut self.from).await;
        End::Eof
    }

    /// A fault that happens once is over for every connection, unless the test has set another one
    /// meanwhile.
    fn plan_is_done(&self) {
        self.plans.send_if_modified(|plan| {
            let ours = plan.generation == self.plan.generation;
            if ours {
                plan.replace(Fault::None);
            }
            ours
        });
    }
}

/// Reads and throws away until the sender closes.
pub(super) async fn drain(from: &mut ReadHalf<'_>) {
    let mut chunk = [0; 16 * 1024];
    while let Ok(1..) = from.read(&mut chunk).await {
        // A peer that floods the proxy must not occupy its thread.
        sleep(Duration::from_micros(100)).await;
    }
}
