//! A fake for the tests of code that uses a [`Redlock`].

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OnceCell;

use super::held::{Held, HeldAs, held};
use super::world::{Event, World};
use crate::client::{Locks, LocksBuilder};
use crate::error::{Error, ErrorKind, LostReason};
use crate::primitives::redlock::{Redlock, RedlockBuilder};

/// Independent nodes for the tests of code that uses a [`Redlock`], in memory and with one clock. Clones are the same nodes.
///
/// As with [`Fake`](super::Fake), the code that runs is that of the locks. It does so on the runtime of the test, where that of
/// real nodes has a thread of its own.
///
/// ```
/// use leasehold::testing::FakeRedlock;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), leasehold::Error> {
/// let fake = FakeRedlock::new(3);
/// let red = fake.redlock().await?; // what your code is given instead of Redlock::connect
/// fake.stop(0).await; // one of three may be away
/// let guard = red.mutex("order:42").lock().await?;
/// guard.release().await?;
/// fake.start(0).await;
///
/// let theirs = fake.hold("order:42", [1, 2]).await; // a majority
/// assert!(red.mutex("order:42").try_lock().await?.is_none());
/// # drop(theirs);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct FakeRedlock(Arc<Inner>);

struct Inner {
    world: Arc<World>,
    /// At each node, those who hold what [`FakeRedlock::hold`] holds.
    others: Box<[OnceCell<Locks>]>,
}

impl FakeRedlock {
    /// So many nodes, where nothing is held. They were started long ago, so that each may grant locks.
    ///
    /// # Panics
    ///
    /// Without any node.
    #[must_use]
    pub fn new(nodes: usize) -> Self {
        assert!(nodes > 0, "a Redlock has one node at least");
        Self(Arc::new(Inner {
            world: World::new(nodes),
            others: (0..nodes).map(|_| OnceCell::new()).collect(),
        }))
    }

    /// A Redlock as of one process. Further ones are as of other processes.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`] while no majority of the nodes runs.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn redlock(&self) -> Result<Redlock, Error> {
        self.builder().connect().await
    }

    /// Settings for a Redlock as of one process, such as a namespace or another lease.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// let fake = leasehold::testing::FakeRedlock::new(3);
    /// let red = fake.builder().namespace("shop").lease(Duration::from_secs(60)).connect().await?;
    /// assert_eq!(red.mutex("order:42").key(), "shop:order:42");
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder(&self) -> RedlockBuilder {
        RedlockBuilder::of_fake(&self.0.world)
    }

    /// Moves the clock on, as [`Fake::advance`](super::Fake::advance) does.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let fake = leasehold::testing::FakeRedlock::new(3);
    /// # let red = fake.redlock().await?;
    /// let renewed = red.mutex("a").lock().await?;
    /// let fixed = red.mutex("b").lock().lease(Duration::from_secs(10)).await?;
    /// fake.advance(Duration::from_secs(11)).await;
    /// assert!(renewed.is_held() && !fixed.is_held());
    ///
    /// fake.stop(0).await;
    /// fake.stop(1).await;
    /// fake.advance(Duration::from_secs(11)).await; // one of three renews it
    /// assert!(!renewed.is_held());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the clock where it is by then.
    pub async fn advance(&self, time: Duration) {
        self.0.world.advance(time).await;
    }

    /// The node with this number, from 0, goes away with its connections: it answers nothing until [`start`](Self::start).
    ///
    /// ```
    /// # use leasehold::ErrorKind;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let fake = leasehold::testing::FakeRedlock::new(3);
    /// # let red = fake.redlock().await?;
    /// fake.stop(0).await;
    /// assert!(red.mutex("order:42").try_lock().await?.is_some());
    /// fake.stop(1).await;
    /// let failed = red.mutex("order:42").try_lock().await; // after a twentieth of the lease
    /// assert_eq!(failed.unwrap_err().kind(), ErrorKind::Unavailable);
    /// fake.start(1).await;
    /// assert!(red.mutex("order:42").lock().await.is_ok());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    ///
    /// If there is no such node.
    pub async fn stop(&self, node: usize) {
        self.0.world.servers[node].stop();
        self.0.world.settle().await;
    }

    /// The node with this number answers again, and knows what it knew: call [`flush`](Self::flush) before for one that forgot.
    ///
    /// # Panics
    ///
    /// If there is no such node.
    pub async fn start(&self, node: usize) {
        self.0.world.servers[node].start();
        self.0.world.settle().await;
    }

    /// The node with this number forgets everything, as one without persistence does. A hold outlives that at a minority of the
    /// nodes, which take it again.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let fake = leasehold::testing::FakeRedlock::new(3);
    /// # let red = fake.redlock().await?;
    /// let guard = red.mutex("order:42").lock().await?;
    /// fake.flush(0);
    /// fake.advance(Duration::from_secs(10)).await; // two renewals, at a third of the lease each
    /// fake.flush(1);
    /// fake.advance(Duration::from_secs(10)).await;
    /// assert!(guard.is_held());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    ///
    /// If there is no such node.
    pub fn flush(&self, node: usize) {
        self.0.world.servers[node].forget();
    }

    /// Somebody else holds the lock called `name`, namespace included, at these nodes, until what this returns is dropped.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let fake = leasehold::testing::FakeRedlock::new(3);
    /// # let red = fake.redlock().await?;
    /// let theirs = fake.hold("order:42", [0]).await; // a minority, as of one who is about to give up
    /// let guard = red.mutex("order:42").try_lock().await?;
    /// assert!(guard.is_some());
    /// # drop((theirs, guard));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    ///
    /// If it is held already at one of them, or one of them is stopped, or there is no such node.
    pub async fn hold(
        &self,
        name: impl AsRef<str>,
        nodes: impl IntoIterator<Item = usize>,
    ) -> Held {
        let name = name.as_ref();
        let mut guards = Vec::new();
        for node in nodes {
            let taken = self.others(node).await.mutex(name).try_lock().await;
            guards.push(held(name, taken));
        }
        Held(HeldAs::Mutexes(guards))
    }

    /// Whoever holds `name`, namespace included, by a majority loses it now for `reason`: `is_held()` turns false, `lost()`
    /// resolves. It is free for others then. Returns how many holds were lost; those of [`hold`](Self::hold) stay.
    ///
    /// ```
    /// # use leasehold::LostReason;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let fake = leasehold::testing::FakeRedlock::new(3);
    /// # let red = fake.redlock().await?;
    /// let guard = red.mutex("order:42").lock().await?;
    /// let work = guard.run(std::future::pending::<()>());
    /// assert_eq!(fake.lose("order:42", LostReason::NoMajority).await, 1);
    /// assert_eq!(work.await.unwrap_err().reason(), LostReason::NoMajority);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn lose(&self, name: impl AsRef<str>, reason: LostReason) -> usize {
        let lost = self.0.world.lose_majority(name.as_ref(), reason);
        self.0.world.settle().await;
        lost
    }

    /// The next call at the node with this number ends with an error of this kind, and does nothing: taking, releasing or
    /// inspecting. Taking a lock fails if a majority fails; a release is finished in the background. That of a guard which was just
    /// dropped is such a call, too: await [`release`](crate::RedlockGuard::release) before.
    ///
    /// ```
    /// # use leasehold::ErrorKind;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let fake = leasehold::testing::FakeRedlock::new(3);
    /// # let red = fake.redlock().await?;
    /// fake.fail_next(0, ErrorKind::Denied);
    /// red.mutex("order:42").lock().await?.release().await?;
    ///
    /// fake.fail_next(0, ErrorKind::Denied);
    /// fake.fail_next(1, ErrorKind::Denied);
    /// let failed = red.mutex("order:42").lock().await;
    /// assert_eq!(failed.unwrap_err().kind(), ErrorKind::Denied);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    ///
    /// If there is no such node.
    pub fn fail_next(&self, node: usize, kind: ErrorKind) {
        let world = &self.0.world;
        assert!(node < world.nodes(), "there is no node {node}");
        world.fail_next_at(node, kind);
    }

    /// What was taken, released and lost so far, in that order. A hold of a majority is one entry, and one of
    /// [`hold`](Self::hold) an entry for each of its nodes.
    ///
    /// ```
    /// # use leasehold::testing::What;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let fake = leasehold::testing::FakeRedlock::new(3);
    /// # let red = fake.redlock().await?;
    /// let guard = red.mutex("order:42").lock().fenced().await?;
    /// let taken = &fake.history()[0];
    /// assert_eq!((taken.what(), taken.name()), (What::Taken, "order:42"));
    /// assert_eq!((taken.client(), taken.token()), (red.client_id(), guard.token()));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn history(&self) -> Vec<Event> {
        self.0.world.history()
    }

    async fn others(&self, node: usize) -> &Locks {
        let world = &self.0.world;
        let connected = self.0.others[node].get_or_init(|| async {
            let connected = LocksBuilder::of_fake(world.link(node)).connect().await;
            let locks = connected.unwrap_or_else(|error| panic!("node {node} is stopped: {error}"));
            world.add_others(locks.client_id());
            locks
        });
        connected.await
    }
}

impl fmt::Debug for FakeRedlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeRedlock")
            .field("nodes", &self.0.world.nodes())
            .finish_non_exhaustive()
    }
}
