//! The part of a process in the storm beside Redisson: tasks that do what the threads of the Java half do, with the same names.

use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold::{Error, Guard, Locks, Permit, ReadGuard, Release, WriteGuard};
use leasehold_testkit::chance::Chance;
use leasehold_testkit::history::{Mode, Outcome, Recorder, What, valid_until};
use leasehold_testkit::storm::PERMITS;
use tokio::time::{sleep, timeout};

/// Tasks of a process.
const TASKS: u64 = 4;

struct Task {
    locks: Locks,
    dir: PathBuf,
    recorder: Recorder,
    chance: Chance,
    number: u64,
    /// How often something was taken, for the names of holds.
    taken: u64,
    /// Whether it takes others than it writes down, now and then.
    is_broken: bool,
}

enum Held {
    Guard(Guard),
    Read(ReadGuard),
    Write(WriteGuard),
    Permit(Permit),
}

/// How something is asked for.
enum Way {
    Try,
    For(Duration),
    Wait,
    /// Dropped at whichever await point it has reached by then.
    Cancel(Duration),
}

/// Asks for something in the way that chance decides; the methods of the handle are named.
macro_rules! take {
    ($task:expr, $key:expr, $mode:expr, $handle:expr, $held:path, $try:ident, $for:ident, $wait:ident) => {{
        let (way, handle) = ($task.way(), $handle);
        let waits = !matches!(way, Way::Try);
        let call = $task.recorder.invoke($key, $mode, waits, None);
        let taken = match way {
            Way::Try => Some(handle.$try().await),
            Way::For(time) => Some(handle.$for(time).await),
            Way::Wait => Some(handle.$wait().await.map(Some)),
            Way::Cancel(time) => {
                let waits = timeout(time, handle.$wait().into_future()).await;
                waits.ok().map(|taken| taken.map(Some))
            }
        };
        let taken = taken.map(|taken| taken.map(|held| held.map($held)));
        $task.go_on(call, taken).await;
    }};
}

/// Runs until the storm is over.
pub(crate) async fn run(locks: Locks, dir: &Path, seed: u64, is_broken: bool) {
    let recorder = Recorder::open(dir, "ours");
    let tasks: Vec<_> = (0..TASKS)
        .map(|number| {
            let task = Task {
                locks: locks.clone(),
                dir: dir.to_owned(),
                recorder: recorder.client(&format!("ours-{number}")),
                chance: Chance::new(seed.wrapping_add(number)),
                number,
                taken: 0,
                is_broken,
            };
            tokio::spawn(task.run())
        })
        .collect();
    for task in tasks {
        task.await.expect("no panic");
    }
    locks.shutdown().await.expect("everything is released");
}

impl Task {
    async fn run(mut self) {
        while !self.dir.join("stop").exists() {
            match self.chance.below(100) {
                0..25 => self.mutex("interop:mutex").await,
                25..40 => self.fair().await,
                40..60 => self.read().await,
                60..70 => self.write().await,
                70..85 => self.mutex("interop:fenced").await,
                _ => self.permit().await,
            }
            let rest = self.chance.millis(0, 4);
            sleep(rest).await;
        }
    }

    async fn mutex(&mut self, key: &str) {
        let name = self.really(key);
        let mutex = self.locks.mutex(name);
        take!(
            self,
            key,
            Mode::Exclusive,
            mutex,
            Held::Guard,
            try_lock,
            try_lock_for,
            lock
        );
    }

    async fn fair(&mut self) {
        let (key, fair) = ("interop:fair", self.locks.fair_mutex("interop:fair"));
        take!(
            self,
            key,
            Mode::Ordered,
            fair,
            Held::Guard,
            try_lock,
            try_lock_for,
            lock
        );
    }

    async fn read(&mut self) {
        let (key, rw) = ("interop:rw", self.locks.rw_lock("interop:rw"));
        take!(
            self,
            key,
            Mode::Shared,
            rw,
            Held::Read,
            try_read,
            try_read_for,
            read
        );
    }

    async fn write(&mut self) {
        let key = "interop:rw";
        let name = self.really(key);
        let rw = self.locks.rw_lock(name);
        take!(
            self,
            key,
            Mode::Exclusive,
            rw,
            Held::Write,
            try_write,
            try_write_for,
            write
        );
    }

    async fn permit(&mut self) {
        let key = "interop:pool";
        let name = self.really(key);
        let pool = self.locks.semaphore(name, PERMITS);
        let mode = Mode::Permit(PERMITS);
        take!(
            self,
            key,
            mode,
            pool,
            Held::Permit,
            try_acquire,
            try_acquire_for,
            acquire
        );
    }

    /// The name that is asked for where `key` is written down.
    fn really(&mut self, key: &str) -> String {
        let other = if self.is_broken && self.chance.percent(50) {
            ":other"
        } else {
            ""
        };
        format!("{key}{other}")
    }

    fn way(&mut self) -> Way {
        let time = self.chance.millis(0, 1_500);
        match self.chance.below(100) {
            0..20 => Way::Try,
            20..45 => Way::For(time),
            45..55 => Way::Cancel(time / 20),
            _ => Way::Wait,
        }
    }

    async fn go_on(&mut self, call: u64, taken: Option<Result<Option<Held>, Error>>) {
        let why = match taken {
            Some(Ok(Some(held))) => return self.hold(call, held).await,
            Some(Ok(None)) => "held by others".into(),
            Some(Err(error)) => {
                // Limits the load of retries while a server is down.
                sleep(Duration::from_millis(20)).await;
                error.to_string()
            }
            None => return self.recorder.record(What::Cancel { call }),
        };
        self.recorder.record(What::Fail { call, why });
    }

    async fn hold(&mut self, call: u64, held: Held) {
        self.taken += 1;
        let hold = format!("{}:{}:{}", std::process::id(), self.number, self.taken);
        self.recorder.record(What::Ok {
            call,
            hold: hold.clone(),
            token: held.token(),
            valid_until: valid_until(|| held.valid_for()),
        });
        let work = self.chance.millis(0, 3);
        sleep(work).await;
        if self.chance.percent(50) {
            self.recorder.record(What::Drop { hold });
            return drop(held);
        }
        self.recorder
            .record(What::ReleaseInvoke { hold: hold.clone() });
        let outcome = match held.release().await {
            // Readers of a process share a hold, which ends with the last of them.
            Ok(Release::Released | Release::StillHeld) => Outcome::Released,
            Ok(Release::AlreadyGone) => Outcome::AlreadyGone,
            Ok(_) | Err(_) => Outcome::Unknown,
        };
        self.recorder.record(What::ReleaseOk { hold, outcome });
    }
}

impl Held {
    fn valid_for(&self) -> Duration {
        match self {
            Self::Guard(guard) => guard.valid_for(),
            Self::Read(guard) => guard.valid_for(),
            Self::Write(guard) => guard.valid_for(),
            Self::Permit(permit) => permit.valid_for(),
        }
    }

    /// Its fencing token; 0 for what has none.
    fn token(&self) -> u64 {
        match self {
            Self::Guard(guard) => guard.token().as_u64(),
            Self::Write(guard) => guard.token().as_u64(),
            Self::Read(_) | Self::Permit(_) => 0,
        }
    }

    async fn release(self) -> Result<Release, Error> {
        match self {
            Self::Guard(guard) => guard.release().await,
            Self::Read(guard) => guard.release().await,
            Self::Write(guard) => guard.release().await,
            Self::Permit(permit) => permit.release().await,
        }
    }
}
