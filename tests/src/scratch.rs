//! A private directory that goes away with its owner.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::SystemTime;

/// A fresh directory under the system's temporary directory, removed on drop.
///
/// Its path is short on purpose: a unix socket inside it must fit into the 104 to 108 bytes the
/// kernel allows.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Creates a directory that no other process and no other test uses.
    ///
    /// # Panics
    ///
    /// When the temporary directory cannot be written.
    #[must_use]
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        // A process id comes back after a crash that left its directory behind; the clock tells the
        // two apart.
        let clock = SystemTime::UNIX_EPOCH
            .elapsed()
            .map_or(0, |since| since.subsec_nanos());
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("leasehold-{}-{n}-{clock:x}", std::process::id()));
        std::fs::create_dir(&path)
            .unwrap_or_else(|e| panic!("cannot create {}: {e}", path.display()));
        Self { path }
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A path inside the directory.
    #[must_use]
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Already gone is as good as removed; anything else is not worth a panic inside a panic.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}
