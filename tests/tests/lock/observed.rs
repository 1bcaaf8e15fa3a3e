//! An observer that writes down what it is told, and checks that each acquisition is told as it must be.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use leasehold::observer::{
    GaveUp, Granted, LeaseLost, MapChanged, Observer, Primitive, Reconnected, Released,
    RenewalFailed, Renewed, Waiting,
};
use leasehold::{Locks, LocksBuilder};
use leasehold_testkit::Server;

use crate::support::until;

/// What an observer was told, in this order. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Record(Arc<Mutex<Vec<Told>>>);

/// One event.
#[derive(Clone, Debug)]
struct Told {
    /// 0 if it is of none.
    acquisition: u64,
    key: String,
    /// `mutex granted at_once`.
    text: String,
}

impl Record {
    /// Locks that tell what they do, and the record of it.
    pub(crate) async fn of(builder: LocksBuilder) -> (Locks, Self) {
        let record = Self::default();
        let locks = builder.observer(record.clone()).connect().await;
        (locks.expect("the server is up"), record)
    }

    /// The same with the default settings.
    pub(crate) async fn at(server: &Server) -> (Locks, Self) {
        Self::of(Locks::builder(server.url())).await
    }

    /// What was told of this key, without renewals.
    pub(crate) fn events(&self, key: &str) -> Vec<String> {
        let told = self.told();
        let of_key = told.iter().filter(|told| told.key == key);
        let events = of_key.map(|told| told.text.clone());
        events.filter(|text| !text.contains("renew")).collect()
    }

    /// How many events of this key, or of no key if it is empty, begin like this behind the primitive.
    pub(crate) fn count(&self, key: &str, what: &str) -> usize {
        let told = self.told();
        let of_key = told.iter().filter(|told| told.key == key);
        of_key.filter(|told| told.what().starts_with(what)).count()
    }

    /// Waits until these are the events of the key, which are told on a thread of their own in part. No other follows.
    pub(crate) async fn is(&self, key: &str, expected: &[&str]) {
        until("the events", async || {
            let events = self.events(key);
            let is_end = events.len() >= expected.len();
            is_end
                .then_some(())
                .ok_or_else(|| format!("{key}: {events:?}"))
        })
        .await;
        assert_eq!(self.events(key), expected, "of {key}");
        self.check();
    }

    /// Every acquisition waits, and is granted or gives up; what is granted is renewed, and ends once at most.
    pub(crate) fn check(&self) {
        let mut acquisitions: BTreeMap<u64, Vec<Told>> = BTreeMap::new();
        for told in self.told().iter().filter(|told| told.acquisition != 0) {
            let events = acquisitions.entry(told.acquisition).or_default();
            events.push(told.clone());
        }
        for events in acquisitions.values() {
            let mut stage = "begin";
            for told in events {
                assert_eq!(told.key, events[0].key);
                let what = told.what();
                let word = what.split(' ').next().unwrap_or_default();
                let ends_at_once = what.ends_with("nested") || what.ends_with("opened");
                stage = match (stage, word) {
                    ("begin", "waiting") => "waits",
                    ("waits", "gave_up") => "over",
                    ("waits", "granted") if ends_at_once => "over",
                    ("waits", "granted") => "held",
                    ("held", "renewed" | "renewal_failed") => "held",
                    ("held", "released" | "lost") => "ended",
                    // It was answered while the lock was released.
                    ("ended", "renewed" | "renewal_failed") => "ended",
                    _ => panic!("`{what}` in the stage `{stage}`: {events:#?}"),
                };
            }
        }
    }

    /// The acquisitions that are told to be held.
    pub(crate) fn held(&self) -> usize {
        let told = self.told();
        let count = |is: fn(&str) -> bool| told.iter().filter(|told| is(told.what())).count();
        let begun = count(|what| {
            what.starts_with("granted") && !what.ends_with("nested") && !what.ends_with("opened")
        });
        begun - count(|what| what.starts_with("released") || what.starts_with("lost"))
    }

    fn told(&self) -> MutexGuard<'_, Vec<Told>> {
        self.0.lock().expect("no panic under it")
    }

    fn put(&self, acquisition: u64, key: &str, text: String) {
        self.told().push(Told {
            acquisition,
            key: key.into(),
            text,
        });
    }

    fn put_of(&self, (acquisition, key, primitive): (u64, &str, Primitive), what: &str) {
        self.put(acquisition, key, format!("{primitive} {what}"));
    }
}

impl Told {
    /// The text without the primitive.
    fn what(&self) -> &str {
        self.text.split_once(' ').map_or("", |(_, what)| what)
    }
}

impl Observer for Record {
    fn waiting(&self, event: &Waiting<'_>) {
        assert!(event.acquisition > 0 && event.database == 0);
        let subject = (event.acquisition, event.key, event.primitive);
        self.put_of(subject, "waiting");
    }

    fn granted(&self, event: &Granted<'_>) {
        assert!(event.waited < Duration::from_secs(60));
        let subject = (event.acquisition, event.key, event.primitive);
        self.put_of(subject, &format!("granted {}", event.way));
    }

    fn gave_up(&self, event: &GaveUp<'_>) {
        let subject = (event.acquisition, event.key, event.primitive);
        self.put_of(subject, &format!("gave_up {}", event.reason));
    }

    fn renewed(&self, event: &Renewed<'_>) {
        assert!(event.late < event.lease, "{event:?}");
        let subject = (event.acquisition, event.key, event.primitive);
        self.put_of(subject, "renewed");
    }

    fn renewal_failed(&self, event: &RenewalFailed<'_>) {
        let subject = (event.acquisition, event.key, event.primitive);
        self.put_of(subject, "renewal_failed");
    }

    fn lost(&self, event: &LeaseLost<'_>) {
        let subject = (event.acquisition, event.key, event.primitive);
        self.put_of(subject, &format!("lost {}", event.reason.as_str()));
    }

    fn released(&self, event: &Released<'_>) {
        let what = if event.forgotten {
            "released forgotten"
        } else {
            "released"
        };
        self.put_of((event.acquisition, event.key, event.primitive), what);
    }

    fn map_changed(&self, event: &MapChanged) {
        self.put(0, "", format!("- map_changed {}", event.masters));
    }

    fn reconnected(&self, event: &Reconnected<'_>) {
        let whose = if event.for_renewals {
            "renewals"
        } else {
            "all"
        };
        self.put(0, "", format!("- reconnected {whose} {}", event.server));
    }
}
