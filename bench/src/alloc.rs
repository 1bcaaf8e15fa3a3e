//! An allocator that counts between two calls.
//!
//! Off, it costs one relaxed load a call, so the clients that allocate most are not slowed by being
//! measured.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

static ON: AtomicBool = AtomicBool::new(false);
static CALLS: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);

/// The global allocator of the benchmark.
pub struct Counting;

/// Allocations of all threads between [`start`] and [`stop`].
#[derive(Clone, Copy, Debug)]
pub struct Allocated {
    /// Calls of `alloc`, `alloc_zeroed` and `realloc`.
    pub calls: u64,
    /// Bytes they asked for.
    pub bytes: u64,
}

/// Counts from here.
pub fn start() {
    CALLS.store(0, Relaxed);
    BYTES.store(0, Relaxed);
    ON.store(true, Relaxed);
}

/// Ends counting.
pub fn stop() -> Allocated {
    ON.store(false, Relaxed);
    Allocated {
        calls: CALLS.load(Relaxed),
        bytes: BYTES.load(Relaxed),
    }
}

fn count(bytes: usize) {
    if ON.load(Relaxed) {
        CALLS.fetch_add(1, Relaxed);
        BYTES.fetch_add(bytes as u64, Relaxed);
    }
}

// SAFETY: every call is handed to the system allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count(new_size);
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}
