//! Holders and waiters of both when a replica takes over: behind sentinels, and in a cluster.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::{Guard, Locks};
use leasehold_testkit::{Cluster, Failover, Raw, Sentinels};
use tokio::task::JoinHandle;

use crate::handing_over::to_and_fro;
use crate::jvm::{self, Client, Jvm, Pending, Thread};
use crate::stage::leased;
use crate::support::{beside, ms, until, within};

/// Of ours and of Redisson's watchdog: longer than a failover takes.
const LEASE: Duration = Duration::from_secs(6);

/// So that a request to the master that died is sent again soon.
const OPTIONS: [&str; 3] = ["watchdog=6000", "timeout=1000", "retryDelay=300"];

/// Locks that are held and waited for while a server dies.
struct Cast {
    java: [Client; 2],
    holders: Locks,
    waiters: Locks,
    names: [String; 4],
    /// Of the first name Java's, with a waiter of ours; of the second ours, with one of Java's.
    theirs: Thread,
    ours: Guard,
    our_turn: JoinHandle<Guard>,
    their_thread: Thread,
    their_turn: Pending,
    queue: Queue,
    /// Of the last fencing token.
    token: u64,
}

/// A fair lock of Java's, with one of ours and then one of Java's in its queue.
struct Queue {
    name: String,
    holder: Thread,
    ours: JoinHandle<Guard>,
    theirs: (Thread, Pending),
}

impl Queue {
    async fn form(java: &[Client; 2], locks: &Locks, name: &str, raw: &mut Raw) -> Self {
        let holder = java[0].thread();
        holder.ok(format!("fair({name}).lock()")).await;
        let queue = beside("redisson_lock_queue", name);
        let waits = locks.fair_mutex(name).lock();
        let ours = tokio::spawn(async move { waits.await.unwrap() });
        until("our marker", async || {
            raw.cmd(&["LLEN", &queue]).await.int() == 1
        })
        .await;
        let thread = java[1].thread();
        let pending = thread.begin(format!("fair({name}).lock()"));
        until("Java's entry", async || {
            raw.cmd(&["LLEN", &queue]).await.int() == 2
        })
        .await;
        Self {
            name: name.into(),
            holder,
            ours,
            theirs: (thread, pending),
        }
    }

    /// Serves them in this order.
    async fn serve(self) {
        let name = &self.name;
        let (thread, theirs) = self.theirs;
        assert!(theirs.is_blocked() && !self.ours.is_finished());
        self.holder.ok(format!("fair({name}).unlock()")).await;
        let guard = within("our turn", self.ours).await.unwrap();
        assert!(theirs.is_blocked());
        guard.release().await.unwrap();
        theirs.answer().await.ok();
        thread.ok(format!("fair({name}).unlock()")).await;
    }
}

impl Cast {
    async fn take_places(jvm: &Arc<Jvm>, url: &str, names: [String; 4], raw: &mut Raw) -> Self {
        let java = [
            jvm.client(url, &OPTIONS).await,
            jvm.client(url, &OPTIONS).await,
        ];
        let (holders, waiters) = (leased(url, LEASE).await, leased(url, LEASE).await);
        let [theirs_name, ours_name, _, fair] = &names;
        let theirs = java[0].thread();
        theirs.ok(format!("lock({theirs_name}).lock()")).await;
        let waits = waiters.mutex(theirs_name).lock();
        let our_turn = tokio::spawn(async move { waits.await.unwrap() });
        let line = beside("leasehold_line", theirs_name);
        until("our ticket", async || {
            raw.cmd(&["ZCARD", &line]).await.int() == 1
        })
        .await;
        let ours = holders.mutex(ours_name).lock().await.unwrap();
        let their_thread = java[1].thread();
        let their_turn = their_thread.begin(format!("lock({ours_name}).lock()"));
        their_thread.sleeps().await;
        let queue = Queue::form(&java, &waiters, fair, raw).await;
        let mut this = Self {
            queue,
            java,
            holders,
            waiters,
            names,
            theirs,
            ours,
            our_turn,
            their_thread,
            their_turn,
            token: 0,
        };
        this.take_tokens().await;
        this
    }

    /// Tokens of both, by turns.
    async fn take_tokens(&mut self) {
        let name = &self.names[2];
        let (java, lock) = (self.java[0].thread(), format!("fenced({name})"));
        for _ in 0..2 {
            let token: u64 = java
                .ok(format!("{lock}.lockAndGetToken()"))
                .await
                .parse()
                .unwrap();
            assert!(token > self.token, "Java: {token} after {}", self.token);
            java.ok(format!("{lock}.unlock()")).await;
            let guard = within(
                "the fenced lock",
                self.holders.mutex(name).lock().into_future(),
            );
            let guard = guard.await.unwrap();
            self.token = guard.token().as_u64();
            assert!(self.token > token, "ours: {} after {token}", self.token);
            guard.release().await.unwrap();
        }
    }

    /// After the failover, for longer than a lease: the holds are renewed where the locks are now.
    async fn hold_on(&mut self) {
        let [theirs, ours, ..] = self.names.clone();
        let strangers = self.java[0].thread();
        let end = Instant::now() + LEASE + LEASE / 3;
        while Instant::now() < end {
            assert!(self.ours.is_held());
            let held = format!("lock({theirs}).isHeldByCurrentThread()");
            assert!(self.theirs.says(held).await);
            assert!(!strangers.says(format!("lock({ours}).tryLock()")).await);
            assert!(
                self.holders
                    .mutex(&theirs)
                    .try_lock()
                    .await
                    .unwrap()
                    .is_none()
            );
            assert!(!self.our_turn.is_finished());
            assert!(self.their_turn.is_blocked());
            tokio::time::sleep(ms(300)).await;
        }
    }

    /// Everybody gets a turn, and messages are heard as before.
    async fn change_over(self, label: &str) {
        let [theirs, ours, ..] = &self.names;
        self.theirs.ok(format!("lock({theirs}).unlock()")).await;
        let guard = within("our turn", self.our_turn).await.unwrap();
        assert!(guard.is_held());
        guard.release().await.unwrap();

        self.ours.release().await.unwrap();
        self.their_turn.answer().await.ok();
        self.their_thread.ok(format!("lock({ours}).unlock()")).await;
        self.queue.serve().await;
        let label = format!("{label}, after a failover");
        let mutex = self.waiters.mutex(ours);
        let in_line = async || mutex.inspect().await.unwrap().waiters().len() == 1;
        let lock = format!("lock({ours})");
        to_and_fro(&label, &self.their_thread, &lock, 3, in_line, || {
            mutex.lock()
        })
        .await;
        self.holders.shutdown().await.unwrap();
        self.waiters.shutdown().await.unwrap();
    }
}

fn names() -> [String; 4] {
    ["theirs", "ours", "tokens", "fair"].map(str::to_owned)
}

/// The replicas have what was written so far.
async fn replicated(raw: &mut Raw, probe: &str, replicas: &str) {
    raw.cmd(&["SET", probe, "1", "PX", "60000"]).await;
    let confirmed = raw.cmd(&["WAIT", replicas, "20000"]).await.int();
    assert_eq!(confirmed.to_string(), replicas);
}

#[tokio::test]
async fn holds_waiters_and_tokens_of_both_outlive_a_crash_of_the_master_behind_sentinels() {
    let Some(jvm) = jvm::shared() else { return };
    let sentinels = Sentinels::start().await;
    let mut raw = sentinels.node(0).raw().await;
    let mut cast = Cast::take_places(&jvm, &sentinels.url(), names(), &mut raw).await;
    replicated(&mut raw, "probe", "2").await;
    sentinels.node(0).kill();
    sentinels.wait_for_writable().await;
    cast.hold_on().await;
    cast.take_tokens().await;
    cast.change_over("sentinels").await;
}

#[tokio::test]
async fn holds_waiters_and_tokens_of_both_outlive_a_crash_of_a_master_in_a_cluster() {
    let Some(jvm) = jvm::shared() else { return };
    let cluster = Cluster::start().await;
    let tag = cluster.key_at(0, "k").await;
    let names = names().map(|name| format!("{{{tag}}}{name}"));
    let mut raw = cluster.raw(0).await;
    let mut cast = Cast::take_places(&jvm, &cluster.url(), names, &mut raw).await;
    replicated(&mut raw, &tag, "1").await;
    cluster.kill(0);
    cluster.failover(3, Failover::Force).await;
    cluster.wait_for_writable(&tag).await;
    cast.hold_on().await;
    cast.take_tokens().await;
    cast.change_over("a cluster").await;
}
