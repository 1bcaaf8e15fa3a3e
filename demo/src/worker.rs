//! A worker process: sixteen tasks that fight over the locks until told to stop.
//!
//! It obeys two words on its standard input: `linger`, and `stop`. When that pipe closes, the orchestrator is gone and
//! the worker ends at once; whatever it holds then ends with its lease, as it does for any program that dies.

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

/// How long a critical section takes between its read and its write. Without a lock, this is where updates get lost.
const WORK: Duration = Duration::from_millis(1);

/// How long a task rests after it could not get a lock, so that a dead server is not hammered.
const PAUSE: Duration = Duration::from_millis(200);

/// The longest a lingering task stays if nothing is done to it.
const PATIENCE: Duration = Duration::from_secs(30);

/// What the tasks of a process share.
struct Worker {
    mode: Mode,
    /// Absent when the demo is to show what happens without locks.
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
    // Not an argument: a URL may hold a password, and arguments are there for everyone to see.
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

    // A thread of its own, for there is no way to take back a read of standard input.
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
    /// One task: the same lock time and again, until told to stop. So a lock whose holder is gone holds up only those
    /// who want it.
    async fn work(self: Arc<Self>, task: usize) {
        while !*self.stop.borrow() {
            if let Err(error) = self.turn(task, task % LOCKS.len()).await {
                say(&Event::Trouble(error.to_string()));
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    /// Takes the lock, adds one to what the ledger says, releases.
    async fn turn(&self, task: usize, lock: usize) -> Result<(), Box<dyn Error + Send + Sync>> {
        let asked = micros();
        let guard = match &self.locks {
            Some(locks) => tokio::select! {
                biased;
                // Dropping the other future takes this task out of the queue; a critical section is seen through.
                () = self.stopped() => return Ok(()),
                guard = async { locks.mutex(LOCKS[lock]).lock().await } => Some(guard?),
            },
            None => None,
        };
        // Without locks all have the same token, and the ledger takes from everyone.
        let token = guard.as_ref().map_or(1, |guard| guard.token().as_u64());
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
            // One server that lives does not grant a lock twice: what is read stays so as long as the guard is held.
            Mode::Server | Mode::WithoutLocks => Ok(ledger.read()),
            // A failover may forget a grant, and then two hold the lock. The older one must not write between the read and
            // the write of the newer one, so the storage hears of the token when it is read.
            Mode::Cluster => ledger.begin(token),
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
        say(&match ledger.write(token, value + 1) {
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
        // An error says that the sender is gone, which ends the process anyway.
        _ = self.stop.clone().wait_for(|stopped| *stopped).await;
    }
}

/// Holds on, for the orchestrator to strike. A process that is frozen here past its lease and then woken goes on to
/// write, as a program does that never asks its guard: the ledger is what must stop it.
async fn linger(guard: &Guard) {
    _ = tokio::time::timeout(PATIENCE, guard.lost()).await;
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
