//! The guarded ledger: the resource that a lock protects, kept outside of the lock server.
//!
//! A file with a number in it. To add one, a client reads it, changes it and writes it back, and
//! nothing but the lock keeps two clients from doing so at once: if they do, an increment is lost,
//! and the count shows it. What the ledger itself guarantees is only the fence: a write with a
//! token older than the newest it has seen is refused, and that check and the write are one step. Two
//! masters may give two holders the same token, so the holder's id counts where tokens are equal.
//!
//! Writers exclude each other by a lock on the file. A process that is stopped while it has that
//! lock keeps it until it goes on, so readers do without: a line carries a checksum, and one that
//! was read in the middle of a write is read again.

use std::fmt;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Error, Read, Result as IoResult, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Upper bound on the wait for a writer in another process, which may be stopped.
const BOUND: Duration = Duration::from_secs(60);

/// Upper bound on the repetitions of a read that met a write. A write takes microseconds.
const REREAD: Duration = Duration::from_secs(10);

/// The longest id of a holder, in bytes.
const ID: usize = 57;

/// Pause between two attempts of either.
const PAUSE: Duration = Duration::from_millis(1);

/// A ledger on disk, shared by any number of processes.
#[derive(Debug, Clone)]
pub struct Ledger {
    path: PathBuf,
}

/// A token was refused because the ledger has seen a newer one, or the same one of another holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stale {
    /// The token that was refused.
    pub token: u64,
    /// The newest token the ledger has taken.
    pub newest: u64,
}

/// Contents of a ledger.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Entry {
    value: u64,
    newest: u64,
    /// The holder with that token: of several the one with the greatest id.
    holder: String,
    /// Writes taken. Each of them meant to add one, so it must equal `value`.
    writes: u64,
    refused: u64,
}

impl Ledger {
    /// Opens the ledger at `path`; it begins with 0.
    ///
    /// # Panics
    ///
    /// When the file cannot be created.
    #[must_use]
    pub fn open(path: impl AsRef<Path>) -> Self {
        let ledger = Self {
            path: path.as_ref().to_owned(),
        };
        ledger.file().unwrap_or_else(|e| ledger.failed(&e));
        ledger
    }

    /// The value.
    ///
    /// # Panics
    ///
    /// When the file is gone or is no ledger.
    #[must_use]
    pub fn read(&self) -> u64 {
        self.entry().value
    }

    /// Reads the value for a change, unless a newer token was seen before: from now on older tokens
    /// are refused, so that none of them writes between this and the [`write`](Self::write) that
    /// follows. `holder` is the id of the token's holder.
    ///
    /// # Errors
    ///
    /// [`Stale`] when the token is too old.
    ///
    /// # Panics
    ///
    /// When the id has more than 57 bytes, or white space; when the file is gone or is no ledger, or
    /// after a minute in which another process, stopped perhaps, has it locked.
    pub async fn begin(&self, token: u64, holder: &str) -> Result<u64, Stale> {
        let admitted = |entry: &mut Entry| entry.admit(token, holder).map(|()| entry.value);
        self.latched(admitted).await
    }

    /// Replaces the value, unless a newer token was seen before. The same holder may write again.
    ///
    /// # Errors
    ///
    /// [`Stale`] when the token is too old; nothing is changed then.
    ///
    /// # Panics
    ///
    /// As [`begin`](Self::begin).
    pub async fn write(&self, token: u64, holder: &str, value: u64) -> Result<(), Stale> {
        let change = |entry: &mut Entry| {
            entry.admit(token, holder)?;
            entry.value = value;
            entry.writes += 1;
            Ok(())
        };
        self.latched(change).await
    }

    /// Number of lost increments, if every write taken meant to add one to what it had read: 0 when
    /// the lock did its work.
    ///
    /// # Panics
    ///
    /// When the file is gone or is no ledger.
    #[must_use]
    pub fn lost_updates(&self) -> u64 {
        let entry = self.entry();
        entry.writes.abs_diff(entry.value)
    }

    /// Number of accepted writes.
    ///
    /// # Panics
    ///
    /// When the file is gone or is no ledger.
    #[must_use]
    pub fn writes(&self) -> u64 {
        self.entry().writes
    }

    /// Number of writes that were refused as stale.
    ///
    /// # Panics
    ///
    /// When the file is gone or is no ledger.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.entry().refused
    }

    /// The entry as it is now, also while a writer that is stopped has the file locked.
    fn entry(&self) -> Entry {
        let give_up = Instant::now() + REREAD;
        loop {
            match self.file().and_then(|mut file| Entry::read(&mut file)) {
                Ok(entry) => return entry,
                Err(error) if Instant::now() >= give_up => self.failed(&error),
                Err(_) => std::thread::sleep(PAUSE),
            }
        }
    }

    /// Reads the entry, lets `change` at it and writes it back, while no other process does: the
    /// resource's own latch, held for no longer than that. The kernel lets go of it when a process
    /// is killed. Waiting for it does not block the runtime.
    async fn latched<T>(&self, change: impl FnOnce(&mut Entry) -> T) -> T {
        let attempt = async || -> IoResult<T> {
            let mut file = self.file()?;
            lock(&file).await?;
            let before = Entry::read(&mut file)?;
            let mut entry = before.clone();
            let result = change(&mut entry);
            if entry != before {
                entry.write(&mut file)?;
            }
            Ok(result)
        };
        attempt().await.unwrap_or_else(|e| self.failed(&e))
    }

    fn file(&self) -> IoResult<File> {
        OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(&self.path)
    }

    fn failed(&self, error: &Error) -> ! {
        panic!("the ledger {}: {error}", self.path.display())
    }
}

impl Entry {
    /// The fence: no token passes that is older than one that has passed.
    fn admit(&mut self, token: u64, holder: &str) -> Result<(), Stale> {
        let is_id = !holder.is_empty() && !holder.contains(char::is_whitespace);
        assert!(is_id && holder.len() <= ID, "no id of a holder: {holder:?}");
        if (token, holder) < (self.newest, &self.holder) {
            self.refused += 1;
            return Err(Stale {
                token,
                newest: self.newest,
            });
        }
        self.newest = token;
        holder.clone_into(&mut self.holder);
        Ok(())
    }

    fn read(file: &mut File) -> IoResult<Self> {
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        if text.is_empty() {
            return Ok(Self::default());
        }
        let mut words = text.split_whitespace();
        let holder = words.next().unwrap_or_default().to_owned();
        let numbers: Vec<u64> = words.map_while(|word| word.parse().ok()).collect();
        match numbers[..] {
            [value, newest, writes, refused, sum] => {
                let entry = Self {
                    value,
                    newest,
                    holder,
                    writes,
                    refused,
                };
                let whole = entry.checksum() == sum;
                whole
                    .then_some(entry)
                    .ok_or_else(|| Error::other(format!("half written: {text:?}")))
            }
            _ => Err(Error::other(format!("not a ledger: {text:?}"))),
        }
    }

    /// One write of a fixed length: a process that is killed leaves the old entry or the new one.
    fn write(&self, file: &mut File) -> IoResult<()> {
        let Self {
            value,
            newest,
            holder,
            writes,
            refused,
        } = self;
        let sum = self.checksum();
        let line = format!(
            "{holder:<ID$} {value:020} {newest:020} {writes:020} {refused:020} {sum:020}\n"
        );
        file.rewind()?;
        file.write_all(line.as_bytes())
    }

    fn checksum(&self) -> u64 {
        let numbers = [self.value, self.newest, self.writes, self.refused];
        let holder = self.holder.bytes().map(u64::from);
        let parts = numbers.into_iter().chain(holder);
        parts.fold(1, |sum, part| sum.wrapping_mul(31).wrapping_add(part))
    }
}

/// Locks the file, as soon as no other process has it locked.
async fn lock(file: &File) -> IoResult<()> {
    let give_up = Instant::now() + BOUND;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) if Instant::now() < give_up => {
                tokio::time::sleep(PAUSE).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

impl fmt::Display for Stale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { token, newest } = self;
        if token == newest {
            return write!(f, "token {token} is stale: it is another holder's, too");
        }
        write!(f, "token {token} is stale: the ledger has seen {newest}")
    }
}

impl std::error::Error for Stale {}
