//! A worker process: sixteen tasks that contend for the locks until it is stopped.
//!
//! It takes two orders on its standard input: `linger`, and `stop`. When that pipe closes, the
//! orchestrator is gone and the worker ends at once; its holds then end with their leases, as they
//! do for any program that dies.

use std::error::Error;
use std::io::{self, BufRead, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold::{Guard, Locks};
use leasehold_testkit::ledger::Ledger;
use tokio::sync::watch;

use crate::event::{Event, micros};
use crate::{LEASE, LOCKS, Mode, TASKS};

/// Time between the read and the write of a critical section. Without a lock, updates are lost
/// here.
const WORK: Duration = Duration::from_millis(1);

/// Pause of a task after a failed attempt, which limits the load on a server in trouble.
const PAUSE: Duration = Duration::from_millis(200);

/// Upper bound on the time a task lingers.
const LINGER: Duration = Duration::from_secs(30);

/// State shared by the tasks of a process.
struct Worker {
    mode: Mode,
    /// Absent when the demo runs without locks.
    locks: Option<Locks>,
    ledgers: Vec<Ledger>,
    /// Set by `linger`; the next task that gets a lock takes it.
    linger: AtomicBool,
    stop: watch::Receiver<bool>,
}

/// Runs a worker with the arguments that [`Fleet`](crate::fleet::Fleet) gave it.
pub(crate) fn main(directory: &str, namespace: &str, mode: Mode) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return give_up(&error),
    };
    match runtime.block_on(run(directory, namespace, mode)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => give_up(&*error),
    }
}

async fn run(
    directory: &str,
    namespace: &str,
    mode: Mode,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    // Not an argument: a URL may contain a password, and arguments are visible to other users.
    let url = std::env::var(crate::URL_VARIABLE)?;
    let locks = match mode {
        Mode::WithoutLocks => None,
        Mode::Server | Mode::Cluster => Some(
            Locks::builder(&url)
                .namespace(namespace)
                .lease(LEASE)
                .connect()
                .await?,
        ),
    };
    let (stopper, stop) = watch::channel(false);
    let ledgers = LOCKS
        .iter()
        .map(|name| Ledger::open(Path::new(directory).join(name)))
        .collect();
    let worker = Arc::new(Worker {
        mode,
        locks,
        ledgers,
        linger: AtomicBool::new(false),
        stop,
    });

    // A thread of its own, because a read of standard input cannot be cancelled.
    let (listener, files) = (Arc::clone(&worker), PathBuf::from(directory));
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines() {
            match line.as_deref() {
                Ok("linger") => listener.linger.store(true, Ordering::Relaxed),
                Ok("stop") => _ = stopper.send(true),
                _ => break,
            }
        }
        // The orchestrator has no chance to do this when it is killed.
        _ = std::fs::remove_dir_all(files);
        std::process::exit(0);
    });

    let tasks: Vec<_> = (0..TASKS)
        .map(|task| tokio::spawn(Arc::clone(&worker).work(task)))
        .collect();
    for task in tasks {
        task.await?;
    }
    Ok(())
}

impl Worker {
    /// One task: takes the same lock again and again, until it is stopped. So a lock whose holder
    /// is gone delays only its own tasks.
    async fn work(self: Arc<Self>, task: usize) {
        while !*self.stop.borrow() {
            if let Err(error) = self.turn(task, task % LOCKS.len()).await {
                say(&Event::Trouble(error.to_string()));
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    /// Takes the lock, adds one to the ledger's value, releases.
    async fn turn(&self, task: usize, lock: usize) -> Result<(), Box<dyn Error + Send + Sync>> {
        let asked = micros();
        let guard = match &self.locks {
            Some(locks) => tokio::select! {
                biased;
                // Dropping the other future takes this task out of the queue; a critical section is
                // seen through.
                () = self.stopped() => return Ok(()),
                guard = async { locks.mutex(LOCKS[lock]).lock().await } => Some(guard?),
            },
            None => None,
        };
        // Without locks all have the same token, and the ledger refuses none.
        let token = guard.as_ref().map_or(1, |guard| guard.token().as_u64());
        let holder = guard.as_ref().map_or("all", Guard::id);
        let at = micros();
        say(&Event::Holding {
            lock,
            task,
            token,
            at,
            waited: at.saturating_sub(asked),
        });

        let ledger = &self.ledgers[lock];
        let refused = || Event::Refused {
            lock,
            task,
            token,
            held: guard.as_ref().is_some_and(Guard::is_held),
        };
        let value = match self.mode {
            // One server that lives does not grant a lock twice: what is read stays so as long as
            // the guard is held.
            Mode::Server | Mode::WithoutLocks => Ok(ledger.read()),
            // A failover may lose a grant, and then two hold the lock. The older one must not write
            // between the read and the write of the newer one, so the ledger learns the token when
            // it is read.
            Mode::Cluster => ledger.begin(token, holder).await,
        };
        let Ok(value) = value else {
            say(&refused());
            return Ok(());
        };
        match &guard {
            Some(guard) if self.linger.swap(false, Ordering::Relaxed) => {
                say(&Event::Lingering { lock, task, token });
                linger(guard).await;
            }
            _ => tokio::time::sleep(WORK).await,
        }
        say(&match ledger.write(token, holder, value + 1).await {
            Ok(()) => Event::Releasing {
                lock,
                task,
                token,
                at: micros(),
            },
            Err(_) => refused(),
        });
        if let Some(guard) = guard {
            guard.release().await?;
        }
        Ok(())
    }

    async fn stopped(&self) {
        // An error means that the sender is gone, which ends the process anyway.
        _ = self.stop.clone().wait_for(|stopped| *stopped).await;
    }
}

/// Keeps the lock while the orchestrator kills or freezes the process. A process that is frozen
/// here past its lease and then woken goes on to write, as a program does that never checks its
/// guard: the ledger has to refuse it.
async fn linger(guard: &Guard) {
    _ = tokio::time::timeout(LINGER, guard.lost()).await;
}

/// One line, one write: the lines of sixteen tasks do not mix.
fn say(event: &Event) {
    // A closed pipe means that the orchestrator is gone; the listener ends the process.
    _ = writeln!(io::stdout().lock(), "{event}");
}

fn give_up(error: &dyn Error) -> ExitCode {
    say(&Event::Trouble(error.to_string()));
    ExitCode::FAILURE
}
