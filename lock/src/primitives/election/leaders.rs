//! Observing who leads.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::context::Context;
use crate::engine::handle::Handle;
use crate::engine::operation::ask;
use crate::engine::signal::{self, Watcher};
use crate::error::Error;
use crate::protocol::election;
use crate::state::election::{Changes, Leader, View};
use crate::state::names::Name;

/// The leaders of an election, one after the other: see [`Election::observe`](crate::Election::observe).
///
/// ```
/// # leasehold_testkit::example::with_locks(async |locks| {
/// let mut leaders = locks.election("rebalancer").observe();
/// assert_eq!(leaders.next().await?, None); // nobody leads
/// # Ok(())
/// # });
/// ```
#[must_use = "an observer does nothing unless `next` is awaited"]
pub struct Leaders {
    context: Arc<Handle>,
    name: Arc<Name>,
    /// `None` before the first look, and after one that failed.
    watcher: Option<Watcher<View>>,
    changes: Changes,
}

impl Leaders {
    pub(super) fn new(context: &Arc<Handle>, name: &Arc<Name>) -> Self {
        Self {
            context: Arc::clone(context),
            name: Arc::clone(name),
            watcher: None,
            changes: Changes::new(),
        }
    }

    /// The leader, at the first call; then waits for each change of that: another leader, another value of the same, or `None`
    /// while nobody leads.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if the server cannot be asked at the first call, or later for 30
    /// seconds: who leads is not known then. [`ErrorKind::WrongType`](crate::ErrorKind::WrongType) if the key is no lock;
    /// [`ErrorKind::Closed`](crate::ErrorKind::Closed) and those of asking a server. It can be called again.
    ///
    /// # Panics
    ///
    /// When polled outside of a Tokio runtime with time enabled.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a change that was not returned is returned by the next call.
    pub async fn next(&mut self) -> Result<Option<Leader>, Error> {
        let seen = self.next_change().await;
        if seen.is_err() {
            // The next call begins with a look of its own.
            self.watcher = None;
        }
        seen.map_err(|error| self.context.about(&self.name, error))
    }

    async fn next_change(&mut self) -> Result<Option<Leader>, Error> {
        let (context, name) = (&self.context, &self.name);
        context.check_name(name)?;
        let watcher = match &mut self.watcher {
            Some(watcher) => watcher,
            none => {
                let watcher = Watcher::join(context, |context| &context.elections, name)?;
                watcher.want();
                none.insert(watcher)
            }
        };
        loop {
            let Some(view) = watcher.next(|| look(context, name), None).await? else {
                // Without a time to wait until there is always something.
                continue;
            };
            watcher.listen(&[election::channel(name)]);
            if let Some(news) = self.changes.news(view) {
                return Ok(news);
            }
        }
    }
}

impl signal::View for View {
    fn changes_within(&self, before: Option<&Self>) -> Option<Duration> {
        Self::changes_within(self, before)
    }

    fn is_news_after(&self, before: &Self) -> bool {
        Self::is_news_after(self, before)
    }
}

/// Looks who leads.
pub(super) async fn look(context: &Context, name: &Name) -> Result<View, Error> {
    let call = election::leader(name);
    let call = call.slices();
    let reply = ask(context, name, &call.call()).await?;
    election::read_leader(&reply).ok_or_else(|| context.about(name, Error::unexpected(&reply)))
}

impl fmt::Debug for Leaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leaders")
            .field("key", &self.name.key())
            .field("changes", &self.changes)
            .finish_non_exhaustive()
    }
}
