//! The guarded ledger: the resource that a lock protects, kept outside of the lock server.
//!
//! A file with a number in it. To add one, a client reads it, changes it and writes it back, and
//! nothing but the lock keeps two clients from doing so at once: if they do, an increment is lost,
//! and the count shows it. What the ledger itself guarantees is only the fence: a write with a
//! token older than the newest it has seen is refused, and that check and the write are one step.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

/// A ledger on disk, shared by any number of processes.
#[derive(Debug, Clone)]
pub struct Ledger {
    path: PathBuf,
}

/// A token was refused because the ledger has seen a newer one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stale {
    /// The token that was refused.
    pub token: u64,
    /// The newest token the ledger has taken.
    pub newest: u64,
}

/// Contents of a ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Entry {
    value: u64,
    newest: u64,
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
        ledger.latched(|_| ());
        ledger
    }

    /// The value.
    ///
    /// # Panics
    ///
    /// When the file is gone or is no ledger.
    #[must_use]
    pub fn read(&self) -> u64 {
        self.latched(|entry| entry.value)
    }

    /// Reads the value for a change, unless a newer token was seen before: from now on older tokens
    /// are refused, so that none of them writes between this and the [`write`](Self::write) that
    /// follows.
    ///
    /// # Errors
    ///
    /// [`Stale`] when the token is too old.
    ///
    /// # Panics
    ///
    /// When the file is gone or is no ledger.
    pub fn begin(&self, token: u64) -> Result<u64, Stale> {
        self.latched(|entry| {
            entry.admit(token)?;
            Ok(entry.value)
        })
    }

    /// Replaces the value, unless a newer token was seen before. The same token may write again.
    ///
    /// # Errors
    ///
    /// [`Stale`] when the token is too old; nothing is changed then.
    ///
    /// # Panics
    ///
    /// When the file is gone or is no ledger.
    pub fn write(&self, token: u64, value: u64) -> Result<(), Stale> {
        self.latched(|entry| {
            entry.admit(token)?;
            *entry = Entry {
                value,
                writes: entry.writes + 1,
                ..*entry
            };
            Ok(())
        })
    }

    /// Number of lost increments, if every write taken meant to add one to what it had read: 0 when
    /// the lock did its work.
    ///
    /// # Panics
    ///
    /// When the file is gone or is no ledger.
    #[must_use]
    pub fn lost_updates(&self) -> u64 {
        self.latched(|entry| entry.writes.abs_diff(entry.value))
    }

    /// Number of accepted writes.
    ///
    /// # Panics
    ///
    /// When the file is gone or is no ledger.
    #[must_use]
    pub fn writes(&self) -> u64 {
        self.latched(|entry| entry.writes)
    }

    /// Number of writes that were refused as stale.
    ///
    /// # Panics
    ///
    /// When the file is gone or is no ledger.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.latched(|entry| entry.refused)
    }

    /// Reads the entry, lets `change` at it and writes it back, while no other process does: the
    /// resource's own latch, held for no longer than that. The kernel lets go of it when a process
    /// is killed.
    fn latched<T>(&self, change: impl FnOnce(&mut Entry) -> T) -> T {
        let attempt = || -> std::io::Result<T> {
            let mut file = OpenOptions::new()
                .create(true)
                .truncate(false)
                .read(true)
                .write(true)
                .open(&self.path)?;
            file.lock()?;
            let before = Entry::read(&mut file)?;
            let mut entry = before;
            let result = change(&mut entry);
            if entry != before {
                entry.write(&mut file)?;
            }
            Ok(result)
        };
        attempt().unwrap_or_else(|e| panic!("the ledger {}: {e}", self.path.display()))
    }
}

impl Entry {
    /// The fence: no token passes that is older than one that has passed.
    fn admit(&mut self, token: u64) -> Result<(), Stale> {
        if token < self.newest {
            self.refused += 1;
            return Err(Stale {
                token,
                newest: self.newest,
            });
        }
        self.newest = token;
        Ok(())
    }

    fn read(file: &mut File) -> std::io::Result<Self> {
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        if text.is_empty() {
            return Ok(Self::default());
        }
        let numbers: Vec<u64> = text
            .split_whitespace()
            .map_while(|word| word.parse().ok())
            .collect();
        match numbers[..] {
            [value, newest, writes, refused] => Ok(Self {
                value,
                newest,
                writes,
                refused,
            }),
            _ => Err(std::io::Error::other(format!("not a ledger: {text:?}"))),
        }
    }

    /// One write of a fixed length: a process that is killed leaves the old entry or the new one.
    fn write(self, file: &mut File) -> std::io::Result<()> {
        let Self {
            value,
            newest,
            writes,
            refused,
        } = self;
        file.rewind()?;
        file.write_all(format!("{value:020} {newest:020} {writes:020} {refused:020}\n").as_bytes())
    }
}

impl fmt::Display for Stale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "token {} is stale: the ledger has seen {}",
            self.token, self.newest
        )
    }
}

impl std::error::Error for Stale {}
