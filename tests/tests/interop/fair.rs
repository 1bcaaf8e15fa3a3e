//! The fair mutex and Redisson's fair lock: one order for both.

use std::sync::{Arc, Mutex, PoisonError};

use leasehold::{FairMutex, Release};

use crate::handing_over::hand_over;
use crate::jvm::{Client, Pending, Thread};
use crate::stage::{Stage, beside_redisson, everywhere};
use crate::support::{beside, fields, ms, until, within};

#[tokio::test]
async fn a_fair_lock_of_the_one_is_held_for_the_other() {
    everywhere(async |stage| {
        let name = stage.name("fair");
        let (java, lock) = (stage.java[0].thread(), format!("fair({name})"));
        let fair = stage.locks.fair_mutex(&name);
        let mut raw = stage.raw(&name).await;

        java.ok(format!("{lock}.lock()")).await;
        java.ok(format!("{lock}.lock()")).await;
        assert!(fair.try_lock().await.unwrap().is_none());
        assert!(fair.try_lock_for(ms(30)).await.unwrap().is_none());
        assert_eq!(
            fields(&mut raw, &name).await,
            format!("{}=2", java.id().await)
        );
        java.ok(format!("{lock}.unlock()")).await;
        assert!(fair.try_lock().await.unwrap().is_none(), "held once more");
        java.ok(format!("{lock}.unlock()")).await;

        let guard = fair.lock().await.unwrap();
        assert!(!java.says(format!("{lock}.tryLock()")).await);
        assert!(!java.says(format!("{lock}.tryLock(30, ms)")).await);
        let unlocked = java.call(format!("{lock}.unlock()")).await;
        assert!(
            unlocked.threw("IllegalMonitorStateException"),
            "{unlocked:?}"
        );
        assert_eq!(guard.release().await.unwrap(), Release::Released);
        // Those who gave up left nothing that would be in somebody's way.
        assert!(java.says(format!("{lock}.tryLock()")).await);
        assert!(java.says(format!("{lock}.forceUnlock()")).await);
        drop(fair.try_lock().await.unwrap().expect("it is free"));
    })
    .await;
}

#[tokio::test]
async fn a_release_of_a_fair_lock_wakes_a_waiter_of_the_other() {
    everywhere(async |stage| {
        let name = stage.name("fair");
        let fair = stage.locks.fair_mutex(&name);
        hand_over(stage, &name, &format!("fair({name})"), 3, || fair.lock()).await;
    })
    .await;
}

/// Who was served, in order.
type Served = Arc<Mutex<Vec<String>>>;

/// Waiters of both kinds, who hold for a moment and write down that they did.
struct Queue<'a> {
    stage: &'a Stage,
    name: String,
    served: Served,
    tasks: Vec<tokio::task::JoinHandle<()>>,
    theirs: Vec<(String, Thread, Pending)>,
}

impl<'a> Queue<'a> {
    fn new(stage: &'a Stage) -> Self {
        Self {
            stage,
            name: stage.name("order"),
            served: Served::default(),
            tasks: Vec::new(),
            theirs: Vec::new(),
        }
    }

    /// A waiter of Redisson's joins behind all others.
    async fn java(&mut self, who: &str, client: &Client) {
        let (stage, name) = (self.stage, &self.name);
        let thread = client.thread();
        let (queue, id) = (beside("redisson_lock_queue", name), thread.id().await);
        let pending = thread.begin(format!("fair({name}).lock()"));
        until("Java stands in the queue", async || {
            let mut raw = stage.raw(name).await;
            let all = raw.cmd(&["LRANGE", &queue, "0", "-1"]).await;
            all.array().iter().any(|one| one.str() == id)
        })
        .await;
        self.theirs.push((who.into(), thread, pending));
    }

    /// One of ours joins behind all others.
    async fn ours(&mut self, who: &str, fair: &FairMutex) {
        let (served, who) = (Arc::clone(&self.served), who.to_owned());
        let before = self.stage.tickets(&self.name).await;
        let waits = fair.lock();
        self.tasks.push(tokio::spawn(async move {
            let guard = waits.await.unwrap();
            note(&served, &who);
            guard.release().await.unwrap();
        }));
        let (stage, name) = (self.stage, &self.name);
        until("our ticket", async || stage.tickets(name).await > before).await;
    }

    /// Lets them go, after a release, and says who was served in which order.
    async fn order(self) -> String {
        for (who, thread, pending) in self.theirs {
            pending.answer().await.ok();
            note(&self.served, &who);
            thread.ok(format!("fair({}).unlock()", self.name)).await;
        }
        for task in self.tasks {
            within("our turns", task).await.unwrap();
        }
        let served = self.served.lock().unwrap_or_else(PoisonError::into_inner);
        served.join(" ")
    }
}

fn note(served: &Served, who: &str) {
    let mut served = served.lock().unwrap_or_else(PoisonError::into_inner);
    served.push(who.to_owned());
}

#[tokio::test]
async fn waiters_of_both_kinds_are_served_in_the_order_of_their_calls() {
    everywhere(async |stage| {
        let mut queue = Queue::new(stage);
        let others = beside_redisson(&stage.url).await;
        let [here, there] = [&stage.locks, &others].map(|locks| locks.fair_mutex(&queue.name));
        let [java, other] = &stage.java;

        let guard = here.lock().await.unwrap();
        queue.java("J1", java).await;
        queue.ours("R1", &here).await;
        queue.java("J2", other).await;
        queue.ours("R2", &here).await;
        queue.ours("R3", &there).await;
        queue.java("J3", java).await;
        queue.java("J4", other).await;
        queue.ours("R4", &there).await;
        guard.release().await.unwrap();
        let order = queue.order().await;
        assert_eq!(order, "J1 R1 J2 R2 R3 J3 J4 R4", "{}", stage.label);
        others.shutdown().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn the_order_stands_when_somebody_gives_up() {
    everywhere(async |stage| {
        let mut queue = Queue::new(stage);
        let fair = stage.locks.fair_mutex(&queue.name);
        let name = queue.name.clone();
        let [java, other] = &stage.java;

        let holder = java.thread();
        holder.ok(format!("fair({name}).lock()")).await;
        queue.ours("R1", &fair).await;
        let gives_up = other
            .thread()
            .begin(format!("fair({name}).tryLock(400, ms)"));
        queue.java("J1", java).await;
        let before = stage.tickets(&name).await;
        let dropped = tokio::spawn(fair.lock().into_future());
        until("our ticket", async || stage.tickets(&name).await > before).await;
        queue.java("J2", other).await;
        queue.ours("R2", &fair).await;
        dropped.abort();
        assert_eq!(gives_up.answer().await.ok(), "false");
        until("it is taken back", async || stage.tickets(&name).await == 2).await;

        holder.ok(format!("fair({name}).unlock()")).await;
        assert_eq!(queue.order().await, "R1 J1 J2 R2", "{}", stage.label);
    })
    .await;
}
