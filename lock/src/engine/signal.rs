//! Watching what a channel announces: the waiters of one name in this process share a subscription and the looks at the server.
//!
//! One of them makes each look, whichever comes first; the others get what it saw. A look that is given up, or hangs, is made
//! by another one. So no task is spawned, and a thousand waiters cost the server what one does.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex, Weak};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use leasehold_cluster::{Subscription, SubscriptionEvent};

use super::context::Context;
use super::hold::Hold;
use super::queue::poll_alarm;
use super::sync::lock;
use crate::error::{Error, ErrorKind};
use crate::state::names::Name;
use crate::state::waiters::Closed;
use crate::state::watch::{Due, JITTER, Watch};

/// The result of a look.
pub(crate) trait View: Clone + Send + 'static {
    /// When it changes without a message, if that is known. The look before saw `before`.
    fn changes_within(&self, before: Option<&Self>) -> Option<Duration>;

    /// Whether it says anything to a watcher that knows `before`. If not, only those that have seen nothing yet are woken: each
    /// watcher that joins has a look made, and ten thousand that join one by one must not wake each other.
    fn is_news_after(&self, before: &Self) -> bool;
}

/// The signals that are watched in this process, by name.
pub(crate) struct Signals<V> {
    state: Mutex<State<V>>,
}

struct State<V> {
    signals: HashMap<Arc<Name>, Arc<Signal<V>>>,
    closed: bool,
}

/// The watchers of one name, and what they share.
struct Signal<V> {
    state: Mutex<Shared<V>>,
}

struct Shared<V> {
    watch: Watch,
    watchers: HashMap<u64, Entry>,
    /// Those that have seen nothing yet.
    new: HashSet<u64>,
    next_watcher: u64,
    /// The result of the latest look, and its number.
    view: Option<(u64, V)>,
    /// How the latest look failed, its number, and whether that concerns also those who have seen something before.
    failure: Option<(u64, bool, Error)>,
    subscriptions: Vec<Subscription>,
    closed: bool,
}

#[derive(Default)]
struct Entry {
    waker: Option<Waker>,
    /// The hold under which it waits, if it has one.
    hold: Option<Arc<Hold>>,
}

/// One waiter. Dropping it ends its wait; with the last one of a name the subscription ends.
pub(crate) struct Watcher<V: View> {
    context: Arc<Context>,
    signals: fn(&Context) -> &Signals<V>,
    name: Arc<Name>,
    signal: Arc<Signal<V>>,
    number: u64,
    /// The look that it has seen; later ones are news.
    seen: u64,
    /// Whether the server has answered it at all.
    has_seen: bool,
}

/// The next step of a watcher.
enum Step<V> {
    News(u64, V),
    Failed(Error),
    Closed,
    TimeUp,
    Look(u64),
}

/// A look under way. Dropping it lets another watcher look.
struct Looking<'a, V> {
    signal: &'a Signal<V>,
    is_open: bool,
}

impl<V: View> Signals<V> {
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::new(State {
                signals: HashMap::new(),
                closed: false,
            }),
        }
    }

    /// Ends all watching. Returns the holds under which watchers wait.
    pub(crate) fn close(&self) -> Vec<Arc<Hold>> {
        let signals: Vec<_> = {
            let mut state = lock(&self.state);
            state.closed = true;
            state.signals.values().map(Arc::clone).collect()
        };
        let mut holds = Vec::new();
        for signal in signals {
            let mut shared = lock(&signal.state);
            shared.closed = true;
            let parties = shared.watchers.values_mut();
            holds.extend(parties.filter_map(|entry| entry.hold.take()));
            let wakers = shared.wakers();
            let subscriptions = std::mem::take(&mut shared.subscriptions);
            drop(shared);
            drop(subscriptions);
            wakers.into_iter().for_each(Waker::wake);
        }
        holds
    }
}

impl<V: View> Watcher<V> {
    /// Joins the watchers of `name` among the `signals` of `context`.
    pub(crate) fn join(
        context: &Arc<Context>,
        signals: fn(&Context) -> &Signals<V>,
        name: &Arc<Name>,
    ) -> Result<Self, Closed> {
        let mut state = lock(&signals(context).state);
        if state.closed {
            return Err(Closed);
        }
        let signal = state.signals.entry(Arc::clone(name));
        let signal = Arc::clone(signal.or_insert_with(|| Arc::new(Signal::new())));
        // Under the table's mutex, so that a signal which is going has no new watcher.
        let (number, seen) = {
            let mut shared = lock(&signal.state);
            shared.next_watcher += 1;
            let number = shared.next_watcher;
            shared.watchers.insert(number, Entry::default());
            shared.new.insert(number);
            (number, shared.watch.begun())
        };
        drop(state);
        context.registry.presence.watch();
        Ok(Self {
            context: Arc::clone(context),
            signals,
            name: Arc::clone(name),
            signal,
            number,
            seen,
            has_seen: false,
        })
    }

    /// Hears of `channels` from now on, which asks for a look as soon as each is confirmed.
    pub(crate) fn listen(&self, channels: &[&str]) {
        if !lock(&self.signal.state).subscriptions.is_empty() {
            return;
        }
        let subscriptions: Vec<_> = channels
            .iter()
            .map(|channel| self.subscribe(channel))
            .collect();
        let mut shared = lock(&self.signal.state);
        // Another watcher may have been quicker; then these end here, outside of the lock.
        let superfluous = if shared.closed || !shared.subscriptions.is_empty() {
            subscriptions
        } else {
            std::mem::replace(&mut shared.subscriptions, subscriptions)
        };
        drop(shared);
        drop(superfluous);
    }

    fn subscribe(&self, channel: &str) -> Subscription {
        let listening: Weak<Signal<V>> = Arc::downgrade(&self.signal);
        let client = &self.context.client;
        client.listen(channel.as_bytes(), move |event, _| {
            let Some(signal) = listening.upgrade() else {
                return;
            };
            match event {
                SubscriptionEvent::Message(_) => signal.change(Watch::want),
                // Earlier announcements were missed.
                SubscriptionEvent::Subscribed => signal.change(|watch| watch.hears(true)),
                SubscriptionEvent::Refused(_) => signal.change(|watch| watch.hears(false)),
                _ => {}
            }
        })
    }

    /// Asks for a look.
    pub(crate) fn want(&self) {
        lock(&self.signal.state).watch.want();
    }

    /// A look is due at `at` at the latest.
    pub(crate) fn look_by(&self, at: Instant) {
        lock(&self.signal.state).watch.look_by(at);
    }

    /// Looks that have begun by now are not news: this watcher has asked the server itself meanwhile. What they were begun for
    /// is looked for again.
    pub(crate) fn skip(&mut self) {
        self.has_seen = true;
        let mut shared = lock(&self.signal.state);
        if shared.watch.begun() > self.seen {
            self.seen = shared.watch.begun();
            shared.watch.want();
        }
    }

    /// It waits under `hold`, which a shutdown releases.
    pub(crate) fn keep(&self, hold: &Arc<Hold>) -> Result<(), Closed> {
        let mut shared = lock(&self.signal.state);
        if shared.closed {
            return Err(Closed);
        }
        if let Some(entry) = shared.watchers.get_mut(&self.number) {
            entry.hold = Some(Arc::clone(hold));
        }
        Ok(())
    }

    /// The result of the next look that begins after this watcher joined, or after the one whose result it had last; `None` at
    /// `until`. If it is this watcher's turn it makes that look with `look`.
    ///
    /// The first look is not ended by `until`. It fails as soon as it cannot be made; an outage later on is sat out for a while.
    pub(crate) async fn next<F>(
        &mut self,
        mut look: impl FnMut() -> F,
        until: Option<Instant>,
    ) -> Result<Option<V>, Error>
    where
        F: Future<Output = Result<V, Error>>,
    {
        loop {
            let until = until.filter(|_| self.has_seen);
            match self.step(until).await? {
                Step::News(number, view) => {
                    self.seen = number;
                    self.has_seen = true;
                    return Ok(Some(view));
                }
                Step::Failed(error) => return Err(error),
                Step::Closed => return Err(Error::closed()),
                Step::TimeUp => return Ok(None),
                Step::Look(number) => {
                    let mut looking = Looking {
                        signal: &self.signal,
                        is_open: true,
                    };
                    let mut seen = pin!(look());
                    let seen = match until {
                        None => seen.await,
                        Some(until) => {
                            match self.context.clock().timeout_at(until, seen.as_mut()).await {
                                Ok(seen) => seen,
                                Err(_) => return Ok(None),
                            }
                        }
                    };
                    let is_seen = seen.is_ok();
                    let now = self.context.clock().now();
                    looking.end(number, seen, now, self.context.jitter.below(JITTER));
                    if is_seen {
                        let context = &self.context;
                        context.registry.note_use(&context.client, Duration::ZERO);
                    }
                }
            }
        }
    }

    async fn step(&self, until: Option<Instant>) -> Result<Step<V>, Error> {
        let mut alarm = pin!(None);
        poll_fn(|cx| {
            if self.context.registry.home.is_elsewhere() {
                return Poll::Ready(Err(Error::new(ErrorKind::Forked, "")));
            }
            loop {
                let now = self.context.clock().now();
                let is_time_up = until.is_some_and(|until| until <= now);
                let at = match self.position(now, is_time_up, cx.waker()) {
                    Ok(at) => at,
                    Err(step) => return Poll::Ready(Ok(step)),
                };
                let at = until.map_or(at, |until| until.min(at));
                if poll_alarm(self.context.clock(), alarm.as_mut(), at, cx).is_pending() {
                    return Poll::Pending;
                }
            }
        })
        .await
    }

    /// The next step, or `Ok` with when to ask again. From here on the waker is known to whatever changes that.
    fn position(&self, now: Instant, is_time_up: bool, waker: &Waker) -> Result<Instant, Step<V>> {
        let mut shared = lock(&self.signal.state);
        if shared.closed {
            return Err(Step::Closed);
        }
        if let Some((number, view)) = &shared.view
            && *number > self.seen
        {
            let news = Step::News(*number, view.clone());
            shared.new.remove(&self.number);
            return Err(news);
        }
        if let Some((number, concerns_all, error)) = &shared.failure
            && *number > self.seen
            && (*concerns_all || !self.has_seen)
        {
            return Err(Step::Failed(error.copied()));
        }
        if is_time_up {
            return Err(Step::TimeUp);
        }
        match shared.watch.due(now) {
            Due::Now => Err(Step::Look(shared.watch.begin(now))),
            Due::At(at) => {
                if let Some(entry) = shared.watchers.get_mut(&self.number) {
                    entry.waker = Some(waker.clone());
                }
                Ok(at)
            }
        }
    }
}

impl<V: View> Drop for Watcher<V> {
    fn drop(&mut self) {
        if self.context.registry.home.is_elsewhere() {
            return;
        }
        self.context.registry.presence.unwatch();
        let mut state = lock(&(self.signals)(&self.context).state);
        let mut shared = lock(&self.signal.state);
        let entry = shared.watchers.remove(&self.number);
        shared.new.remove(&self.number);
        let is_last = shared.watchers.is_empty();
        let subscriptions = is_last.then(|| std::mem::take(&mut shared.subscriptions));
        drop(shared);
        let signal = is_last.then(|| state.signals.remove(&self.name));
        drop(state);
        drop((entry, subscriptions, signal));
    }
}

impl<V> Signal<V> {
    fn new() -> Self {
        Self {
            state: Mutex::new(Shared {
                watch: Watch::new(),
                watchers: HashMap::new(),
                new: HashSet::new(),
                next_watcher: 0,
                view: None,
                failure: None,
                subscriptions: Vec::new(),
                closed: false,
            }),
        }
    }

    /// Changes the state of the looks, and wakes the watchers.
    fn change(&self, then: impl FnOnce(&mut Watch)) {
        let mut shared = lock(&self.state);
        then(&mut shared.watch);
        let wakers = shared.wakers();
        drop(shared);
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl<V> Shared<V> {
    /// The wakers of all watchers, to be woken outside of the lock.
    fn wakers(&mut self) -> Vec<Waker> {
        let watchers = self.watchers.values_mut();
        watchers.filter_map(|entry| entry.waker.take()).collect()
    }

    /// The same of those that have seen nothing yet.
    fn wakers_of_new(&mut self) -> Vec<Waker> {
        let Self { new, watchers, .. } = self;
        let entries = new.iter().filter_map(|number| {
            let entry = watchers.get_mut(number)?;
            entry.waker.take()
        });
        entries.collect()
    }
}

impl<V: View> Looking<'_, V> {
    /// The look has its outcome.
    fn end(&mut self, number: u64, seen: Result<V, Error>, now: Instant, jitter: u64) {
        self.is_open = false;
        let mut shared = lock(&self.signal.state);
        let mut is_news = true;
        match seen {
            Ok(view) => {
                let before = shared.view.as_ref().map(|(_, before)| before);
                is_news = before.is_none_or(|before| view.is_news_after(before));
                let within = view.changes_within(before);
                shared.watch.answered(now, within, jitter);
                // A look that hung may be answered after a later one.
                if shared
                    .view
                    .as_ref()
                    .is_none_or(|(known, _)| *known < number)
                {
                    shared.view = Some((number, view));
                }
            }
            Err(error) => {
                let is_too_long = shared.watch.failed(now);
                let may_pass = matches!(
                    error.kind(),
                    ErrorKind::Unavailable | ErrorKind::Unknown | ErrorKind::NotReplicated
                );
                shared.failure = Some((number, is_too_long || !may_pass, error));
            }
        }
        let wakers = if is_news {
            shared.wakers()
        } else {
            shared.wakers_of_new()
        };
        drop(shared);
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl<V> Drop for Looking<'_, V> {
    fn drop(&mut self) {
        if self.is_open {
            self.signal.change(Watch::abandoned);
        }
    }
}

impl<V> fmt::Debug for Signals<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signals").finish_non_exhaustive()
    }
}
