//! The worker processes: start, events, orders, SIGKILL, SIGSTOP and SIGCONT.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use leasehold_testkit::process;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::mpsc;

use crate::event::Event;
use crate::{Mode, URL_VARIABLE, WORKERS};

/// Upper bound on the time in which the workers end their critical sections and stop.
const STOP: Duration = Duration::from_secs(10);

/// The worker processes; dropping it kills them.
pub(crate) struct Fleet {
    workers: Vec<Worker>,
    heard: mpsc::Receiver<FromWorker>,
}

/// An event of worker number `worker`; no event when its output ended.
pub(crate) struct FromWorker {
    pub(crate) worker: usize,
    pub(crate) event: Option<Event>,
}

/// The state of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Running,
    Killed,
    Frozen,
}

struct Worker {
    child: Child,
    orders: ChildStdin,
    state: State,
}

impl Fleet {
    /// Starts the workers, which begin at once.
    pub(crate) fn start(
        url: &str,
        directory: &Path,
        namespace: &str,
        mode: Mode,
    ) -> io::Result<Self> {
        let program = std::env::current_exe()?;
        // Bounded: when the orchestrator falls behind, the pipes fill and the workers wait.
        let (tell, heard) = mpsc::channel(4096);
        let mut workers = Vec::new();
        for worker in 0..WORKERS {
            let mut child = Command::new(&program)
                .args([
                    OsStr::new(crate::WORKER),
                    directory.as_os_str(),
                    OsStr::new(namespace),
                ])
                .args(mode.option())
                .env(URL_VARIABLE, url)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                // A group of its own: Ctrl-C on the terminal is for the orchestrator alone, which
                // then cleans up.
                .process_group(0)
                .kill_on_drop(true)
                .spawn()?;
            let (Some(orders), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
                return Err(io::Error::other("a worker without pipes"));
            };
            tokio::spawn(listen(worker, output, tell.clone()));
            workers.push(Worker {
                child,
                orders,
                state: State::Running,
            });
        }
        Ok(Self { workers, heard })
    }

    /// The next event of a worker; `None` when all have ended.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub(crate) async fn next(&mut self) -> Option<FromWorker> {
        self.heard.recv().await
    }

    pub(crate) fn states(&self) -> impl Iterator<Item = State> {
        self.workers.iter().map(|worker| worker.state)
    }

    pub(crate) fn state(&self, worker: usize) -> State {
        self.workers[worker].state
    }

    /// Orders `worker` to keep its next hold.
    pub(crate) async fn linger(&mut self, worker: usize) -> io::Result<()> {
        self.workers[worker].orders.write_all(b"linger\n").await
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self, worker: usize) -> io::Result<()> {
        self.workers[worker].state = State::Killed;
        self.workers[worker].child.start_kill()
    }

    /// SIGSTOP.
    pub(crate) fn freeze(&mut self, worker: usize) -> io::Result<()> {
        process::freeze(self.id(worker)?);
        self.workers[worker].state = State::Frozen;
        Ok(())
    }

    /// SIGCONT.
    pub(crate) fn wake(&mut self, worker: usize) -> io::Result<()> {
        process::thaw(self.id(worker)?);
        self.workers[worker].state = State::Running;
        Ok(())
    }

    /// Orders all to stop. Their remaining events can be read with [`next`](Self::next).
    pub(crate) async fn stop(&mut self) {
        for worker in &mut self.workers {
            // An error means that the worker has ended.
            _ = worker.orders.write_all(b"stop\n").await;
        }
    }

    /// Waits for the end of worker number `worker`, which was told to stop or has closed its
    /// output.
    pub(crate) async fn ended(&mut self, worker: usize) -> io::Result<ExitStatus> {
        let wait = tokio::time::timeout(STOP, self.workers[worker].child.wait());
        wait.await
            .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "it does not stop"))?
    }

    /// Kills the remaining workers, frozen or not, and waits until all are gone.
    pub(crate) async fn end(&mut self) {
        for worker in &mut self.workers {
            // An error means that it has ended before.
            _ = worker.child.kill().await;
        }
    }

    fn id(&self, worker: usize) -> io::Result<u32> {
        self.workers[worker]
            .child
            .id()
            .ok_or_else(|| io::Error::other("the worker has ended"))
    }
}

async fn listen(worker: usize, output: ChildStdout, tell: mpsc::Sender<FromWorker>) {
    let mut lines = BufReader::new(output).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let event = line.parse().unwrap_or_else(Event::Trouble);
        if tell
            .send(FromWorker {
                worker,
                event: Some(event),
            })
            .await
            .is_err()
        {
            return;
        }
    }
    _ = tell
        .send(FromWorker {
            worker,
            event: None,
        })
        .await;
}
