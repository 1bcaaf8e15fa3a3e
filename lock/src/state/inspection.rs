//! A server's account of a primitive: its holders and its waiters.

use std::time::{Duration, SystemTime};

use super::token::FencingToken;

/// The state of a lock or another primitive, as its server had it at one instant. It may be another one already.
///
/// ```
/// # leasehold_testkit::example::with_locks(async |locks| {
/// let order = locks.mutex("order:42");
/// let guard = order.lock().await?;
/// let state = order.inspect().await?;
/// assert_eq!(state.holders().len(), 1);
/// assert!(state.waiters().is_empty());
/// assert_eq!(state.waiting(), 0);
/// # drop(guard);
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inspection {
    pub(crate) holders: Vec<Holder>,
    pub(crate) waiters: Vec<Waiter>,
    pub(crate) waiting: u64,
}

/// A holder.
///
/// ```
/// # leasehold_testkit::example::with_locks(async |locks| {
/// let order = locks.mutex("order:42");
/// let guard = order.lock().await?;
/// let state = order.inspect().await?;
/// let holder = &state.holders()[0];
/// assert_eq!(holder.client(), locks.client_id());
/// assert!(holder.id().starts_with(holder.client()));
/// assert!(!holder.is_kept());
/// assert_eq!((holder.token(), holder.count()), (Some(guard.token()), 1));
/// println!("since {:?}, for {:?} more", holder.since(), holder.remaining());
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    pub(crate) id: String,
    pub(crate) count: u64,
    pub(crate) remaining: Option<Duration>,
    pub(crate) token: Option<FencingToken>,
}

/// A process that waits in line.
///
/// ```
/// # leasehold_testkit::example::with_url(async |url| {
/// # let other = leasehold::Locks::connect(url.clone()).await?;
/// # let locks = leasehold::Locks::connect(url).await?;
/// let order = locks.mutex("order:42");
/// let guard = order.lock().await?;
/// let waiting = tokio::spawn(other.mutex("order:42").lock().into_future()); // in another process
///
/// let waiter = loop {
///     if let Some(waiter) = order.inspect().await?.waiters().first() {
///         break waiter.clone();
///     }
/// #   tokio::time::sleep(std::time::Duration::from_millis(5)).await;
/// };
/// assert_eq!(waiter.client(), other.client_id());
/// assert!(waiter.id().starts_with(waiter.client()));
/// assert_eq!(waiter.permits(), 0); // it is no semaphore
/// println!("waits since {:?}", waiter.since());
/// # drop(guard);
/// # waiting.await??;
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiter {
    pub(crate) id: String,
    pub(crate) since: SystemTime,
    pub(crate) permits: u32,
}

impl Inspection {
    /// The holders. More than about a hundred are not all told.
    #[must_use]
    pub fn holders(&self) -> &[Holder] {
        &self.holders
    }

    /// The first hundred of those that wait in line, in their order. A process has one place there, however many of its tasks
    /// wait, but for fair locks; Redisson's waiters have none, but for those of fair locks.
    #[must_use]
    pub fn waiters(&self) -> &[Waiter] {
        &self.waiters
    }

    /// How many wait in line.
    #[must_use]
    pub const fn waiting(&self) -> u64 {
        self.waiting
    }
}

impl Holder {
    /// The whole id, `<client>:<n>`: `n` counts acquisitions here, and is a thread in Redisson. `:kept` follows where
    /// [`is_kept`](Self::is_kept) says so.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The client: [`Locks::client_id`](crate::Locks::client_id) of ours, or a Redisson instance.
    #[must_use]
    pub fn client(&self) -> &str {
        client_of(&self.id)
    }

    /// Whether it was released and keeps the lock taken only because it asked for that, see
    /// [`Acquire::at_least`](crate::Acquire::at_least): nobody acts under it.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.id.ends_with(":kept")
    }

    /// How often it holds the lock: always 1 with us, more where Redisson nests.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// For how long it stays the holder unless its lease is renewed; `None` if it has no expiry.
    #[must_use]
    pub const fn remaining(&self) -> Option<Duration> {
        self.remaining
    }

    /// Its fencing token, if it has one. Inside a process that passes a lock on among its own tasks it may be a later one of the
    /// same hold, of which the server does not know.
    #[must_use]
    pub const fn token(&self) -> Option<FencingToken> {
        self.token
    }

    /// When the lock was granted by the clock of the server, which its token tells; `None` for a token that is no time, as
    /// Redisson's are.
    #[must_use]
    pub fn since(&self) -> Option<SystemTime> {
        /// In microseconds: long before any lock of ours, and far beyond what is counted one by one.
        const OLDEST: u64 = 1_000_000_000_000_000;
        let micros = self.token?.as_u64();
        (micros >= OLDEST).then(|| SystemTime::UNIX_EPOCH + Duration::from_micros(micros))
    }
}

impl Waiter {
    /// The whole id of the hold that it is to become, `<client>:<n>`.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The client: [`Locks::client_id`](crate::Locks::client_id).
    #[must_use]
    pub fn client(&self) -> &str {
        client_of(&self.id)
    }

    /// Since when it waits, by the clock of the server.
    #[must_use]
    pub const fn since(&self) -> SystemTime {
        self.since
    }

    /// How many permits it waits for; 0 where there are none.
    #[must_use]
    pub const fn permits(&self) -> u32 {
        self.permits
    }
}

fn client_of(id: &str) -> &str {
    id.split_once(':').map_or(id, |(client, _)| client)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_tells_the_time_unless_it_is_a_count() {
        let holder = |token| Holder {
            id: "c:1".into(),
            count: 1,
            remaining: None,
            token,
        };
        assert_eq!(holder(None).since(), None);
        assert_eq!(holder(Some(FencingToken::new(7))).since(), None);
        let time = FencingToken::new(1_763_000_000_000_000);
        let since = holder(Some(time)).since().unwrap();
        let seconds = since.duration_since(SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(seconds.as_secs(), 1_763_000_000);
        assert_eq!(holder(None).client(), "c");
        assert!(!holder(None).is_kept());
    }
}
