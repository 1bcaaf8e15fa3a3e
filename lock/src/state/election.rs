//! The leader of an election, and the changes that an observer is told: a state machine without time or I/O.

use std::sync::Arc;
use std::time::Duration;

use super::token::FencingToken;

/// After a look that found a new leader which is not announced yet, the next one follows in this time.
const UNTIL_ANNOUNCED: Duration = Duration::from_millis(250);
/// After the end of a lease, the next look follows in this time.
const AFTER_EXPIRY: Duration = Duration::from_millis(20);

/// A leader, as it announced itself. It may have lost the election meanwhile: its [`token`](Self::token) is for the storage that it
/// writes to, to refuse the older one.
///
/// ```
/// # leasehold_testkit::example::with_locks(async |locks| {
/// let election = locks.election("rebalancer").value("10.0.0.7:8080");
/// let leadership = election.campaign().await?;
/// let leader = election.leader().await?.expect("somebody leads");
/// assert_eq!(leader.value(), Some("10.0.0.7:8080"));
/// assert_eq!(leader.token(), leadership.token());
/// assert_eq!(leader.client(), locks.client_id());
/// assert!(leader.id().starts_with(leader.client()));
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    pub(crate) id: Arc<str>,
    pub(crate) token: FencingToken,
    pub(crate) value: Option<Arc<str>>,
}

impl Leader {
    /// Its term: the fencing token of its leadership, higher than that of every earlier one.
    #[must_use]
    pub const fn token(&self) -> FencingToken {
        self.token
    }

    /// The text it publishes of itself, such as an address; `None` if it publishes nothing.
    #[must_use]
    pub fn value(&self) -> Option<&str> {
        self.value.as_deref()
    }

    /// The whole id of its hold, `<client>:<n>`.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The client: its [`Locks::client_id`](crate::Locks::client_id).
    #[must_use]
    pub fn client(&self) -> &str {
        self.id
            .split_once(':')
            .map_or(&self.id, |(client, _)| client)
    }
}

/// The result of a look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum View {
    /// The lock is free.
    Nobody,
    /// Its holder, which has it for so long more, has not announced itself, or its entry is lost. [`Duration::MAX`] if the lock
    /// has no expiry, which something else must have taken from it.
    Unannounced(Duration),
    /// This leader leads for so long more, if it does not renew that; the same of a lock without an expiry.
    Leads(Duration, Leader),
}

impl View {
    /// The leader. A holder that is not announced is none.
    pub(crate) fn leader(self) -> Option<Leader> {
        match self {
            Self::Leads(_, leader) => Some(leader),
            Self::Nobody | Self::Unannounced(_) => None,
        }
    }

    /// When it changes without a message. The look before saw `before`.
    pub(crate) fn changes_within(&self, before: Option<&Self>) -> Option<Duration> {
        let left = match self {
            Self::Nobody => return None,
            // Nothing says that it ever will be announced.
            Self::Unannounced(left) if matches!(before, Some(Self::Unannounced(_))) => *left,
            Self::Unannounced(left) => UNTIL_ANNOUNCED.min(*left),
            Self::Leads(left, _) => *left,
        };
        Some(left.saturating_add(AFTER_EXPIRY))
    }

    /// Whether an observer that knows `before` learns anything from it. The second look that finds a leader which is not announced
    /// says that nobody leads.
    pub(crate) fn is_news_after(&self, before: &Self) -> bool {
        match (self, before) {
            (Self::Nobody, Self::Nobody) => false,
            (Self::Leads(_, leader), Self::Leads(_, known)) => leader != known,
            _ => true,
        }
    }
}

/// The changes that one observer is told.
#[derive(Debug)]
pub(crate) struct Changes {
    /// The leader it was told last; `None` if nothing yet.
    told: Option<Option<Leader>>,
    /// The highest token that was seen. Older leaders are over, whatever a server says that was restored or fell behind.
    highest: FencingToken,
    /// Whether the latest look found a leader that is not announced.
    is_pending: bool,
}

impl Changes {
    pub(crate) const fn new() -> Self {
        Self {
            told: None,
            highest: FencingToken::NONE,
            is_pending: false,
        }
    }

    /// The news of this view for the observer, if there are any. Between two leaders it is not told that nobody leads, if the
    /// second announces itself before the next look.
    pub(crate) fn news(&mut self, view: View) -> Option<Option<Leader>> {
        let was_pending = self.is_pending;
        self.is_pending = matches!(view, View::Unannounced(_));
        if self.is_pending && !was_pending && self.told.is_some() {
            return None;
        }
        let highest = self.highest;
        let leader = view.leader().filter(|leader| leader.token >= highest);
        if let Some(leader) = &leader {
            self.highest = leader.token;
        }
        if self.told.as_ref() == Some(&leader) {
            return None;
        }
        self.told = Some(leader.clone());
        Some(leader)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEFT: Duration = Duration::from_secs(9);

    fn leader(token: u64, value: Option<&str>) -> Leader {
        Leader {
            id: format!("client-{token}:{token}").into(),
            token: FencingToken::new(token),
            value: value.map(Arc::from),
        }
    }

    fn leads(token: u64, value: Option<&str>) -> View {
        View::Leads(LEFT, leader(token, value))
    }

    #[test]
    fn an_observer_is_told_what_is_there_and_then_what_changes() {
        let mut changes = Changes::new();
        assert_eq!(changes.news(View::Nobody), Some(None));
        assert_eq!(changes.news(View::Nobody), None);
        let first = leader(1, Some("a"));
        assert_eq!(changes.news(leads(1, Some("a"))), Some(Some(first)));
        assert_eq!(changes.news(leads(1, Some("a"))), None);
        let renamed = leader(1, Some("b"));
        assert_eq!(changes.news(leads(1, Some("b"))), Some(Some(renamed)));
        let second = leader(2, None);
        assert_eq!(changes.news(leads(2, None)), Some(Some(second)));
        assert_eq!(changes.news(View::Nobody), Some(None));
        assert_eq!(leader(1, None).client(), "client-1");
    }

    #[test]
    fn a_leader_that_was_followed_is_never_told_again() {
        let mut changes = Changes::new();
        assert!(changes.news(leads(7, Some("new"))).is_some());
        // A master that fell behind.
        assert_eq!(changes.news(leads(6, Some("old"))), Some(None));
        assert_eq!(changes.news(leads(6, Some("old"))), None);
        assert!(matches!(changes.news(leads(8, None)), Some(Some(_))));
    }

    #[test]
    fn a_leader_that_announces_itself_soon_follows_at_once() {
        let mut changes = Changes::new();
        let pending = View::Unannounced(LEFT);
        assert_eq!(
            pending.changes_within(Some(&View::Nobody)),
            Some(UNTIL_ANNOUNCED + AFTER_EXPIRY)
        );
        assert_eq!(
            pending.changes_within(Some(&pending)),
            Some(LEFT + AFTER_EXPIRY),
            "it may stay so"
        );
        assert_eq!(
            changes.news(pending.clone()),
            Some(None),
            "nothing was told yet"
        );
        assert!(changes.news(leads(1, None)).is_some());
        assert_eq!(changes.news(pending.clone()), None);
        assert!(changes.news(leads(2, None)).is_some());
        assert_eq!(changes.news(pending.clone()), None);
        assert_eq!(changes.news(pending), Some(None), "it is not announced");
    }

    #[test]
    fn an_observer_is_woken_by_what_may_be_news_to_it() {
        let later = |view: &View| match view.clone() {
            View::Leads(_, leader) => View::Leads(LEFT / 2, leader),
            other => other,
        };
        for same in [View::Nobody, leads(1, None), leads(1, Some("a"))] {
            assert!(!later(&same).is_news_after(&same), "{same:?}");
        }
        let pending = View::Unannounced(LEFT);
        for (before, view) in [
            (View::Nobody, leads(1, None)),
            (leads(1, None), View::Nobody),
            (leads(1, Some("a")), leads(1, Some("b"))),
            (leads(1, None), leads(2, None)),
            (leads(1, None), pending.clone()),
            (pending.clone(), pending),
        ] {
            assert!(view.is_news_after(&before), "{view:?} after {before:?}");
        }
    }

    #[test]
    fn the_end_of_a_lease_is_looked_at() {
        assert_eq!(View::Nobody.changes_within(None), None);
        let within = leads(1, None).changes_within(None);
        assert_eq!(within, Some(LEFT + AFTER_EXPIRY));
    }
}
