//! The supervisor: it holds the lock, renews it through the library, and tells its watchdog each new deadline.
//!
//! It passes signals and the terminal on to the command. Where the watchdog fails, it ends the command itself.

use std::ffi::OsString;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::pin::Pin;
use std::process::{Command, Stdio};
use std::time::Duration;

use leasehold::LostReason;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, send, sendmsg};
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, getpid, kill_current_process_group, kill_process,
    kill_process_group, set_child_subreaper, waitid,
};
use tokio::net::UnixStream;
use tokio::process::Child;

use super::hold::Hold;
use super::limits::{Limits, OnLost};
use super::messages::{Ended, FromWatchdog, Lines, ToWatchdog, line};
use super::signals::{self, Signals};
use super::{clock, descendants, terminal};
use crate::exit::Failure;
use crate::output::Output;

/// Deadlines that differ by less are the same one, read at two instants.
const SAME: Duration = Duration::from_millis(5);
/// How often it looks after the deadline for the end of what does not end. Not a time: this process may have been stopped itself.
const PATIENCE: u32 = 100;
/// How many messages a watchdog that works leaves unanswered at most.
const UNANSWERED: u32 = 10;
/// How often it looks whether what it ends itself has ended.
const LOOK: Duration = Duration::from_millis(20);

/// A command to be run.
#[derive(Debug)]
pub(crate) struct Task<'a> {
    pub(crate) program: &'a Path,
    /// Its name and its arguments.
    pub(crate) command: &'a [OsString],
    pub(crate) environment: Vec<(&'static str, OsString)>,
    pub(crate) limits: Limits,
    pub(crate) lease: Duration,
}

/// The end of a command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    /// How it ended; `None` if it could not be ended.
    pub(crate) ended: Option<Ended>,
    /// Whether it was ended because the lock was lost or about to be.
    pub(crate) lost: bool,
    pub(crate) reason: Option<LostReason>,
}

struct Supervisor<'a> {
    hold: &'a Hold,
    limits: Limits,
    output: &'a Output,
    /// Between two messages to the watchdog.
    beat: Duration,
    socket: UnixStream,
    lines: Lines,
    watchdog: Child,
    watchdog_id: Option<Pid>,
    /// Messages to the watchdog since it was heard last.
    unanswered: u32,
    /// Looks since the deadline.
    overdue: u32,
    /// Whether nothing more comes from the watchdog.
    is_silent: bool,
    is_watchdog_gone: bool,
    /// Whether the command is to have the terminal.
    interactive: bool,
    /// The command, and its process group.
    command: Option<Pid>,
    /// Signals that came before the command was there.
    early: Vec<i32>,
    /// Whether this process was asked to stop.
    stops: bool,
    deadline: Duration,
    failure: Option<Failure>,
    ended: Option<Ended>,
    is_clean: bool,
    lost: bool,
    reason: Option<LostReason>,
}

/// Runs `task` under `hold` until nothing of it is left.
///
/// # Errors
///
/// Only if it was never started.
pub(crate) async fn supervise(
    task: &Task<'_>,
    hold: &Hold,
    signals: &mut Signals,
    output: &Output,
) -> Result<Outcome, Failure> {
    let started = Supervisor::start(task, hold, output);
    let mut supervisor =
        started.map_err(|error| Failure::system(format!("cannot start the watchdog: {error}")))?;
    supervisor.run(signals).await;
    supervisor.finish().await
}

impl<'a> Supervisor<'a> {
    fn start(task: &Task<'_>, hold: &'a Hold, output: &'a Output) -> io::Result<Self> {
        // If the watchdog dies, what it started is adopted here.
        set_child_subreaper(Some(getpid()))?;
        let (ours, theirs) = StdUnixStream::pair()?;
        let mut watchdog = Command::new(super::own_program());
        watchdog
            .arg0("leasehold")
            .arg(super::WATCH)
            .arg(task.program)
            .args(task.command)
            .envs(task.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .process_group(0);
        let mut watchdog = tokio::process::Command::from(watchdog);
        let child = watchdog.spawn()?;
        // The other end of the socket goes with the command's builder: the watchdog's death must be seen.
        drop(watchdog);
        let interactive = terminal::is_ours_to_give();
        send_descriptor(&ours)?;
        ours.set_nonblocking(true)?;
        let deadline = clock::now() + hold.valid_for();
        let this = Self {
            hold,
            limits: task.limits,
            output,
            beat: (task.lease / 20).clamp(Duration::from_millis(20), Duration::from_secs(1)),
            socket: UnixStream::from_std(ours)?,
            lines: Lines::default(),
            watchdog_id: child.id().and_then(|id| Pid::from_raw(id.cast_signed())),
            watchdog: child,
            unanswered: 0,
            overdue: 0,
            is_silent: false,
            is_watchdog_gone: false,
            interactive,
            command: None,
            early: Vec::new(),
            stops: false,
            deadline,
            failure: None,
            ended: None,
            is_clean: false,
            lost: false,
            reason: None,
        };
        this.send(&ToWatchdog::Begin {
            limits: task.limits,
            deadline,
            foreground: interactive,
        });
        Ok(this)
    }

    async fn run(&mut self, signals: &mut Signals) {
        let mut lost: Pin<Box<dyn Future<Output = LostReason>>> = self.hold.lost();
        while !self.is_over() {
            let pause = self.pause();
            tokio::select! {
                // Signals that are due come before the end of the command that they would go to.
                biased;
                number = signals.next() => self.take(number),
                reason = &mut lost, if self.reason.is_none() => self.lose(reason),
                _ = self.socket.readable(), if !self.is_silent => self.listen(),
                _ = self.watchdog.wait(), if !self.is_watchdog_gone => {
                    self.listen();
                    self.is_watchdog_gone = true;
                }
                () = tokio::time::sleep(pause) => self.tick(),
            }
        }
    }

    /// Whether nothing is left to wait for.
    fn is_over(&self) -> bool {
        self.is_clean || self.failure.is_some() || self.has_no_patience()
    }

    /// Whether it is too late to wait for what does not end.
    const fn has_no_patience(&self) -> bool {
        self.overdue >= PATIENCE
    }

    fn pause(&self) -> Duration {
        let until_backup = self.backup_at().saturating_sub(clock::now());
        if self.is_watchdog_gone || until_backup.is_zero() {
            return LOOK;
        }
        self.beat.min(until_backup)
    }

    /// When the supervisor ends the command itself: the watchdog should have done so before.
    fn backup_at(&self) -> Duration {
        match self.limits.on_lost {
            OnLost::Ignore => Duration::MAX,
            _ => self.deadline.saturating_sub(self.limits.margin / 2),
        }
    }

    /// Tells the deadline, and looks after a watchdog that fails.
    fn tick(&mut self) {
        if !self.is_watchdog_gone {
            self.tell_deadline();
            self.look_at_watchdog();
        }
        let now = clock::now();
        let is_due = now >= self.backup_at() && self.ended.is_none();
        self.overdue += u32::from(is_due && now >= self.deadline);
        if is_due || self.is_watchdog_gone {
            self.end_command(is_due);
        }
    }

    fn tell_deadline(&mut self) {
        // In this order, so that the sum is no later than the true end.
        let deadline = clock::now() + self.hold.valid_for();
        let is_same = deadline.abs_diff(self.deadline) < SAME;
        if !is_same && self.reason.is_none() {
            self.deadline = deadline;
        }
        self.send(&ToWatchdog::Deadline(self.deadline));
    }

    /// A watchdog that was stopped protects nothing.
    fn look_at_watchdog(&mut self) {
        self.unanswered += 1;
        if self.unanswered >= UNANSWERED {
            self.unanswered = 0;
            self.output
                .warn("the watchdog does not answer; if it was stopped, it goes on now");
            if let Some(watchdog) = self.watchdog_id {
                let _ = kill_process(watchdog, Signal::CONT);
            }
        }
    }

    /// Ends the command without the watchdog. That may have started it and not said so.
    fn end_command(&mut self, is_due: bool) {
        let spares = self.limits.on_lost == OnLost::Ignore;
        if !spares {
            self.lost |= is_due;
            self.kill_all();
        }
        if !self.is_watchdog_gone {
            return;
        }
        // Adopted from the watchdog, which is not there to reap it.
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        if self.ended.is_none()
            && let Some(command) = self.command
            && let Ok(Some(status)) = waitid(WaitId::Pid(command), options)
        {
            self.ended = Some(Ended::of(&status));
        }
        let is_alone = || {
            descendants::below(getpid()).is_ok_and(|all| all.iter().all(|process| process.is_over))
        };
        let has_ended = self.ended.is_some() || self.command.is_none();
        self.is_clean = has_ended && (spares || is_alone());
    }

    /// Sends SIGKILL to everything below but the watchdog.
    fn kill_all(&self) {
        if let Some(command) = self.command
            && self.ended.is_none()
        {
            let _ = kill_process_group(command, Signal::KILL);
        }
        let spared = [self.watchdog_id, self.command];
        descendants::end_children(&spared.into_iter().flatten().collect::<Vec<_>>());
        for process in descendants::below(getpid()).unwrap_or_default() {
            if Some(process.pid) != self.watchdog_id && !process.is_over {
                descendants::signal(&process, Signal::KILL);
            }
        }
    }

    fn lose(&mut self, reason: LostReason) {
        self.reason = Some(reason);
        // Others may have it from now on.
        self.deadline = self.deadline.min(clock::now());
        self.send(&ToWatchdog::Deadline(self.deadline));
        if self.limits.on_lost == OnLost::Ignore {
            self.output
                .warn(&format!("the lock is lost: {reason}; the command goes on"));
        }
    }

    /// Takes up what the watchdog has sent.
    fn listen(&mut self) {
        let mut bytes = [0; 4096];
        loop {
            match self.socket.try_read(&mut bytes) {
                Ok(count @ 1..) => self.lines.push(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // The watchdog's end is waited for.
                Ok(_) | Err(_) => {
                    self.is_silent = true;
                    break;
                }
            }
        }
        while let Some(message) = self.lines.next() {
            self.unanswered = 0;
            match message {
                FromWatchdog::Started(command) => self.begin(Pid::from_raw(command)),
                FromWatchdog::NotStarted(why) => {
                    let message = format!("cannot start the command: {why}");
                    self.failure = Some(Failure::system(message));
                }
                FromWatchdog::TooLate => {
                    let message = "the lock was lost before the command began";
                    self.failure = Some(Failure::lost(message));
                }
                FromWatchdog::Stopped(signal) => self.command_stopped(signal),
                FromWatchdog::Ending => self.lost = true,
                FromWatchdog::Ended(ended) => {
                    self.ended = Some(ended);
                    self.output.note("the command has ended");
                }
                FromWatchdog::Clean => self.is_clean = true,
                FromWatchdog::Alive => {}
            }
        }
    }

    fn begin(&mut self, command: Option<Pid>) {
        self.command = command;
        if self.interactive
            && let Some(command) = command
        {
            terminal::give_to(command);
        }
        for number in std::mem::take(&mut self.early) {
            self.take(number);
        }
    }

    /// A signal came for the command.
    fn take(&mut self, number: i32) {
        let Some(command) = self.command else {
            self.early.push(number);
            return;
        };
        if self.ended.is_some() {
            return;
        }
        let Some(signal) = Signal::from_named_raw(number) else {
            return;
        };
        self.stops |= signal == Signal::TSTP;
        if signal == Signal::CONT {
            self.go_on(command);
        } else {
            let _ = kill_process_group(command, signal);
        }
    }

    /// The command was stopped by `signal`.
    fn command_stopped(&mut self, signal: i32) {
        let Some(command) = self.command else {
            return;
        };
        let wants_terminal = [Signal::TTIN, Signal::TTOU]
            .iter()
            .any(|wanted| wanted.as_raw() == signal);
        if wants_terminal && terminal::is_ours() {
            self.interactive = true;
            self.go_on(command);
        } else if self.interactive || self.stops || wants_terminal {
            self.stop(command);
        } else {
            self.output.warn(&format!(
                "the command was stopped by {}; it keeps the lock, which is renewed",
                signals::name(signal)
            ));
        }
    }

    /// Stops with its command, as a job of a shell does. From then on nothing renews the lock.
    fn stop(&mut self, command: Pid) {
        if !terminal::has_job_control() {
            // There is nobody to continue it.
            self.go_on(command);
            return;
        }
        let was_asked = std::mem::take(&mut self.stops);
        if self.interactive {
            terminal::take_back();
        }
        self.output.warn(&format!(
            "stopped; the lock is not renewed meanwhile: the command is killed in {:.0?} unless it goes on",
            self.hold.valid_for().saturating_sub(self.limits.margin)
        ));
        // The whole job stops at a terminal: whatever waits for this process, too.
        let _ = if was_asked {
            kill_process(getpid(), Signal::STOP)
        } else {
            kill_current_process_group(Signal::STOP)
        };
        self.go_on(command);
    }

    /// Continues the command, with the terminal if it had that and it is here.
    fn go_on(&mut self, command: Pid) {
        if self.interactive && terminal::is_ours() {
            terminal::give_to(command);
        }
        let _ = kill_process_group(command, Signal::CONT);
    }

    fn send(&self, message: &ToWatchdog) {
        // A message that does not fit is for a watchdog that does not read; the next one says the same.
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let _ = send(&self.socket, &line(message), flags);
    }

    /// Ends the watchdog, which reaps nothing before. Then the terminal is this group's again.
    async fn finish(mut self) -> Result<Outcome, Failure> {
        drop(self.socket);
        if self.interactive {
            terminal::take_back();
        }
        if !self.is_watchdog_gone {
            let ended = tokio::time::timeout(Duration::from_secs(1), self.watchdog.wait()).await;
            if ended.is_err() {
                // It was stopped, or cannot end what it watches over.
                let _ = self.watchdog.start_kill();
            }
        }
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        if self.command.is_none() {
            return Err(Failure::system(
                "the watchdog ended before the command began",
            ));
        }
        Ok(Outcome {
            ended: self.ended,
            lost: self.limits.on_lost != OnLost::Ignore
                && (self.lost || self.reason.is_some())
                && self.reason != Some(LostReason::Released),
            reason: self.reason,
        })
    }
}

/// Sends the standard input, with one byte: the watchdog's own is the socket.
fn send_descriptor(socket: &StdUnixStream) -> io::Result<()> {
    let stdin = io::stdin();
    let fds = [stdin.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut sent = SendAncillaryBuffer::new(&mut space);
    sent.push(SendAncillaryMessage::ScmRights(&fds));
    sendmsg(
        socket,
        &[IoSlice::new(b"i")],
        &mut sent,
        SendFlags::NOSIGNAL,
    )?;
    Ok(())
}
