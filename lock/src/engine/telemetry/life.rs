//! The life of one hold as observers know it: from the grant they were told to its end, each once.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Instant;

/// Not granted yet as far as observers know: it may be given back without a word.
const NEW: u8 = 0;
/// The grant was told.
const BEGUN: u8 = 1;
/// It is over.
const OVER: u8 = 2;

/// Part of each hold.
#[derive(Debug, Default)]
pub(crate) struct Life {
    stage: AtomicU8,
    begun: OnceLock<Begun>,
}

/// The acquisition of the hold, if there are observers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begun {
    pub(super) acquisition: u64,
    pub(super) since: Instant,
}

impl Life {
    pub(super) fn note(&self, begun: Begun) {
        let _ = self.begun.set(begun);
    }

    /// The acquisition, once the grant was told.
    pub(super) fn begun(&self) -> Option<Begun> {
        let is_told = self.stage.load(Ordering::Acquire) != NEW;
        self.begun.get().copied().filter(|_| is_told)
    }

    /// The grant was told. Returns false if it is over already: then that is to be told.
    pub(super) fn begin(&self) -> bool {
        let begun = self
            .stage
            .compare_exchange(NEW, BEGUN, Ordering::AcqRel, Ordering::Acquire);
        begun.is_ok()
    }

    /// It is over. Returns whether that is to be told now.
    pub(super) fn end(&self) -> bool {
        self.stage.swap(OVER, Ordering::AcqRel) == BEGUN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_told_once_and_behind_the_grant() {
        let usual = Life::default();
        assert!(usual.begin());
        assert!(usual.end());
        assert!(!usual.end());

        let early = Life::default();
        assert!(!early.end(), "nobody knows of it yet");
        assert!(!early.begin(), "whoever tells the grant tells the end");

        let unknown = Life::default();
        assert!(!unknown.end() && !unknown.end());
    }
}
