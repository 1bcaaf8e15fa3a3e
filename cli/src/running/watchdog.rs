//! The watchdog: the process between the supervisor and the command. It starts the command, and ends it in time if the supervisor
//! does not renew the lock, is stopped, or is gone.
//!
//! It takes part in nothing else: no signal but SIGKILL and SIGSTOP reaches it, and it is in a process group of its own.
//!
//! The command's process is not reaped before the supervisor has closed the socket, so the number of its group belongs to it for
//! as long as either of them may send signals there.

use std::ffi::OsString;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal as Named};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, getpid, kill_process, kill_process_group,
    set_child_subreaper, waitid,
};

use super::clock::{self, Alarm};
use super::descendants;
use super::limits::OnLost;
use super::messages::{Ended, FromWatchdog, Lines, ToWatchdog, line};
use super::watch::{Due, Watch};

/// How often it looks whether what was told to end has ended.
const LOOK: Duration = Duration::from_millis(20);
/// How often it sends SIGKILL to what does not end: a process of another user, or one that waits for a disk. Not a time: on a busy
/// machine each round takes longer.
const UNKILLABLE: u32 = 100;
/// How often orphans that it adopted and that ended are removed.
const REAP: Duration = Duration::from_secs(1);
/// The variable with the number of the descriptor that ends when the lock is lost.
const LOST: &str = "LEASEHOLD_LOST_FD";

/// The life of the watchdog of `command`, with the socket to the supervisor as its standard input.
pub(crate) fn watch_over(command: &[OsString]) -> ExitCode {
    match Watchdog::begin(command).and_then(|watchdog| watchdog.map_or(Ok(()), Watchdog::run)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "leasehold: the watchdog failed: {error}");
            // The command dies with its parent.
            ExitCode::from(crate::exit::SYSTEM)
        }
    }
}

struct Watchdog {
    socket: UnixStream,
    lines: Lines,
    watch: Watch,
    /// The command, and its process group.
    command: Pid,
    /// The command reads its other end, which ends with this: at the loss, and with this process.
    lost: Option<PipeWriter>,
    ended: bool,
    /// Whether the lock is lost or about to be: then all processes end that the command started, not only those of its group.
    ends_all: bool,
    /// How often SIGKILL was sent.
    kills: u32,
    /// Whether the supervisor was told that nothing is left.
    is_clean: bool,
    /// Whether the supervisor is there.
    supervised: bool,
    alarm: Alarm,
    children: SignalFd,
    reaped: Instant,
}

impl Watchdog {
    /// Starts the command; `None` if that fails or comes too late, which the supervisor is told.
    fn begin(command: &[OsString]) -> io::Result<Option<Self>> {
        // First, so that the number has one digit: shells know no others.
        let (told, lost) = io::pipe()?;
        // SIGCHLD comes as a descriptor, and nothing else comes. The launcher unblocks all.
        SigSet::all().thread_block()?;
        let mut child = SigSet::empty();
        child.add(Named::SIGCHLD);
        let children =
            SignalFd::with_flags(&child, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        set_child_subreaper(Some(getpid()))?;
        let alarm = Alarm::new()?;

        let mut socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        let stdin = receive_descriptor(&socket)?;
        let mut lines = Lines::default();
        let ToWatchdog::Begin {
            limits,
            deadline,
            foreground,
        } = receive(&mut socket, &mut lines)?
        else {
            return Err(io::Error::other("the supervisor did not say how to begin"));
        };
        let mut watch = Watch::new(limits, deadline, clock::now());
        // This process or the supervisor may have been stopped since the lock was granted, or have been slow while it was renewed.
        socket.set_nonblocking(true)?;
        if !receive_waiting(&mut socket, &mut lines, &mut watch) {
            return Ok(None);
        }
        if watch.is_too_late(clock::now()) {
            socket.write_all(&line(&FromWatchdog::TooLate))?;
            return Ok(None);
        }
        let latest = (limits.on_lost != OnLost::Ignore).then(|| watch.latest_begin());
        let inherited = Inherited { stdin, told };
        let command = match launch(command, inherited, latest, foreground) {
            Ok(command) => command,
            Err(error) => {
                socket.write_all(&line(&FromWatchdog::NotStarted(error.to_string())))?;
                return Ok(None);
            }
        };
        let mut this = Self {
            socket,
            lines,
            watch,
            command,
            lost: Some(lost),
            ended: false,
            ends_all: false,
            kills: 0,
            is_clean: false,
            supervised: true,
            alarm,
            children,
            reaped: Instant::now(),
        };
        this.tell(&FromWatchdog::Started(command.as_raw_nonzero().get()));
        Ok(Some(this))
    }

    fn run(mut self) -> io::Result<()> {
        loop {
            self.listen();
            self.look_at_children()?;
            if clock::now() >= self.watch.lost_at() {
                self.lost = None;
            }
            let due = self.watch.due(clock::now());
            self.ends_all |= due != Due::Nothing && !self.ended;
            self.act(due);
            if self.ended && !self.is_clean {
                self.clean_up();
            }
            if self.is_clean && !self.supervised {
                // The process is reaped by whoever adopts it.
                return Ok(());
            }
            self.sleep()?;
        }
    }

    /// Takes up what the supervisor has sent.
    fn listen(&mut self) {
        if self.supervised && !read_waiting(&mut self.socket, &mut self.lines) {
            self.lose_supervisor();
        }
        while let Some(message) = self.lines.next() {
            if let ToWatchdog::Deadline(deadline) = message {
                self.watch.told(deadline, clock::now());
                self.tell(&FromWatchdog::Alive);
            }
        }
    }

    fn lose_supervisor(&mut self) {
        self.supervised = false;
        self.lost = None;
        if self.is_clean {
            return;
        }
        let due = self.watch.abandoned(clock::now());
        if due != Due::Nothing {
            say("the supervisor is gone, so its command is ended".into());
            self.ends_all |= !self.ended;
        }
        self.act(due);
    }

    /// Takes up what has become of the command, and removes orphans that have ended.
    fn look_at_children(&mut self) -> io::Result<()> {
        while let Ok(Some(_)) = self.children.read_signal() {}
        if self.ended {
            return Ok(());
        }
        let command = WaitId::Pid(self.command);
        let ends = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        if let Some(status) = waitid(command.clone(), ends)? {
            self.ended = true;
            self.tell(&FromWatchdog::Ended(Ended::of(&status)));
            return Ok(());
        }
        let stops = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        // An error if it has ended since.
        while let Ok(Some(status)) = waitid(command.clone(), stops) {
            if let Some(signal) = status.stopping_signal() {
                self.tell(&FromWatchdog::Stopped(signal));
            }
        }
        if self.reaped.elapsed() >= REAP {
            self.reaped = Instant::now();
            descendants::reap_children(self.command);
        }
        Ok(())
    }

    /// The command has ended. What is left of its group must end too, and after a loss everything below.
    fn clean_up(&mut self) {
        let left = self.left();
        let gives_up = self.kills >= UNKILLABLE;
        let is_empty = left.as_ref().is_ok_and(Vec::is_empty) && self.is_sure();
        if gives_up && !is_empty {
            let numbers =
                left.map(|left| left.iter().map(|one| one.pid.as_raw_nonzero()).collect());
            say(format!(
                "processes of the command could not be ended: {:?}",
                numbers.unwrap_or_else(|_| Vec::new())
            ));
        }
        if is_empty || gives_up {
            self.is_clean = true;
            self.tell(&FromWatchdog::Clean);
        } else if !self.watch.is_ending() {
            let due = self.watch.end(Signal::TERM.as_raw(), clock::now());
            self.act(due);
        }
    }

    /// Ends what a look at all processes has missed, such as one that was about to start another one. Returns whether there was
    /// nothing.
    fn is_sure(&self) -> bool {
        if self.ends_all {
            return descendants::end_children(&[self.command]) != Some(false);
        }
        // The kernel lets none of a group start another one meanwhile.
        let _ = kill_process_group(self.command, Signal::KILL);
        true
    }

    /// Remaining processes of the command.
    fn left(&self) -> io::Result<Vec<descendants::Process>> {
        let group = self.command.as_raw_nonzero().get();
        let mut left = descendants::below(getpid())?;
        // A process that left the group for a session of its own may outlive a command that ended by itself.
        left.retain(|process| !process.is_over && (self.ends_all || process.group == group));
        Ok(left)
    }

    fn act(&mut self, due: Due) {
        match due {
            Due::Nothing => {}
            Due::Signal(number) => {
                if let Some(signal) = Signal::from_named_raw(number) {
                    let _ = kill_process_group(self.command, signal);
                }
                // One that is stopped does not see it otherwise.
                let _ = kill_process_group(self.command, Signal::CONT);
                self.tell_ending();
            }
            Due::Kill => {
                // All at once, so that none can start another one meanwhile; then what has left the group.
                let _ = kill_process_group(self.command, Signal::KILL);
                if self.ends_all {
                    // It may have left its group too.
                    let _ = kill_process(self.command, Signal::KILL);
                    descendants::end_children(&[self.command]);
                }
                for process in self.left().unwrap_or_default() {
                    descendants::signal(&process, Signal::KILL);
                }
                if self.kills == 0 {
                    self.tell_ending();
                }
                self.kills = self.kills.saturating_add(1);
            }
        }
    }

    fn tell_ending(&mut self) {
        // Ending its descendants after it is no loss.
        if !self.ended {
            self.tell(&FromWatchdog::Ending);
        }
    }

    fn tell(&mut self, message: &FromWatchdog) {
        // A supervisor that is gone is noticed where it is read from; one that is stopped reads what fits later.
        let _ = self.socket.write_all(&line(message));
    }

    /// Sleeps until something happens.
    fn sleep(&mut self) -> io::Result<()> {
        let now = clock::now();
        let told = self.lost.as_ref().map(|_| self.watch.lost_at());
        let until = match self.watch.next().into_iter().chain(told).min() {
            _ if self.is_clean => None,
            next if self.ended => Some(next.map_or(now + LOOK, |next| next.min(now + LOOK))),
            next => next,
        };
        self.alarm.set(until)?;
        let nothing = PollFlags::empty();
        let from_supervisor = if self.supervised {
            PollFlags::IN
        } else {
            nothing
        };
        let mut fds = [
            PollFd::new(&self.alarm, PollFlags::IN),
            PollFd::new(&self.children, PollFlags::IN),
            PollFd::new(&self.socket, from_supervisor),
        ];
        // A socket whose other end is closed is always ready.
        let count = if self.supervised { 3 } else { 2 };
        match poll(&mut fds[..count], None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Prints a warning, from a thread: a reader that does not read must not keep the watchdog from its work.
fn say(text: String) {
    let write = move || writeln!(io::stderr(), "leasehold: {text}");
    let _ = std::thread::Builder::new().spawn(write);
}

/// Descriptors of the command.
struct Inherited {
    stdin: OwnedFd,
    /// Ends when the lock is lost.
    told: PipeReader,
}

/// Starts `command` by way of the launcher, in a process group of its own.
fn launch(
    command: &[OsString],
    inherited: Inherited,
    latest: Option<Duration>,
    foreground: bool,
) -> io::Result<Pid> {
    let Inherited { stdin, told } = inherited;
    // The command is the only process that is started here, and this end is closed behind it.
    fcntl_setfd(&told, FdFlags::empty())?;
    let child = Command::new(super::own_program())
        .arg0("leasehold")
        .arg(super::LAUNCH)
        .arg(getpid().as_raw_nonzero().to_string())
        .arg(latest.map_or_else(|| "immortal".into(), |latest| latest.as_nanos().to_string()))
        .arg(if foreground {
            "foreground"
        } else {
            "background"
        })
        .args(command)
        .env(LOST, told.as_raw_fd().to_string())
        .stdin(Stdio::from(stdin))
        .process_group(0)
        .spawn()?;
    Ok(Pid::from_child(&child))
}

/// The descriptor that the supervisor sends first, with one byte.
fn receive_descriptor(socket: &UnixStream) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut received = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut buffers = [io::IoSliceMut::new(&mut byte)];
    recvmsg(socket, &mut buffers, &mut received, RecvFlags::CMSG_CLOEXEC)?;
    received
        .drain()
        .find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        })
        .ok_or_else(|| io::Error::other("the supervisor sent no standard input"))
}

/// Takes up the deadlines that the supervisor has sent by now. Returns whether it is there.
fn receive_waiting(socket: &mut UnixStream, lines: &mut Lines, watch: &mut Watch) -> bool {
    let is_there = read_waiting(socket, lines);
    while let Some(ToWatchdog::Deadline(deadline)) = lines.next() {
        watch.told(deadline, clock::now());
    }
    is_there
}

/// Reads all that the supervisor has sent by now, without waiting. Returns whether it is there.
fn read_waiting(socket: &mut UnixStream, lines: &mut Lines) -> bool {
    let mut bytes = [0; 4096];
    loop {
        match socket.read(&mut bytes) {
            Ok(0) => return false,
            Ok(count) => lines.push(&bytes[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
        }
    }
}

/// The next message of the supervisor, waited for.
fn receive(socket: &mut UnixStream, lines: &mut Lines) -> io::Result<ToWatchdog> {
    let mut bytes = [0; 1024];
    loop {
        if let Some(message) = lines.next() {
            return Ok(message);
        }
        match socket.read(&mut bytes)? {
            0 => return Err(io::Error::other("the supervisor is gone")),
            count => lines.push(&bytes[..count]),
        }
    }
}
