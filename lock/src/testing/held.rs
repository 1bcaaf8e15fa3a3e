//! What somebody else holds in a test.

use crate::engine::release::Release;
use crate::error::Error;
use crate::guard::Guard;
use crate::primitives::permit::Permit;
use crate::primitives::rw_lock::{ReadGuard, WriteGuard};

/// What somebody else holds. Dropping it releases it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), leasehold::Error> {
/// # let fake = leasehold::testing::Fake::new();
/// # let locks = fake.locks().await?;
/// let theirs = fake.hold("order:42").await;
/// theirs.release().await; // and it is free
/// assert!(locks.mutex("order:42").try_lock().await?.is_some());
/// # Ok(())
/// # }
/// ```
#[must_use = "dropping it releases it"]
#[derive(Debug)]
pub struct Held(pub(super) HeldAs);

#[derive(Debug)]
pub(super) enum HeldAs {
    /// At one server each.
    Mutexes(Vec<Guard>),
    Read(ReadGuard),
    Write(WriteGuard),
    Permits(Permit),
}

impl Held {
    /// Releases it, and returns when that is done.
    ///
    /// # Panics
    ///
    /// If the server refuses, which no test need expect.
    pub async fn release(self) {
        let released = match self.0 {
            HeldAs::Mutexes(guards) => release_all(guards).await,
            HeldAs::Read(guard) => guard.release().await,
            HeldAs::Write(guard) => guard.release().await,
            HeldAs::Permits(permit) => permit.release().await,
        };
        // It may have been lost, by a force or a flush.
        if let Err(error) = released {
            panic!("what somebody else holds cannot be released: {error}");
        }
    }
}

async fn release_all(guards: Vec<Guard>) -> Result<Release, Error> {
    for guard in guards {
        guard.release().await?;
    }
    Ok(Release::Released)
}

/// The guard of what somebody else is to hold.
pub(super) fn held<G>(name: &str, taken: Result<Option<G>, Error>) -> G {
    match taken {
        Ok(Some(guard)) => guard,
        Ok(None) => panic!("`{name}` is held already"),
        Err(error) => panic!("`{name}` cannot be held: {error}"),
    }
}
