//! Locks of several servers: our Redlock and Redisson's, over the same three.

use std::time::Instant;

use leasehold::{Interop, Redlock, RedlockMutex, Release};
use leasehold_testkit::Server;

use crate::jvm::{self, Client, Jvm};
use crate::stage::unique;
use crate::support::{ms, within};

/// Three servers with a client of Redisson's each, and one of ours for all.
struct Three {
    servers: Vec<Server>,
    java: Vec<Client>,
    ours: Redlock,
}

impl Three {
    async fn start(jvm: &std::sync::Arc<Jvm>) -> Self {
        let (mut servers, mut java) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            let server = Server::start().await;
            // Which gives a server up soon that is down.
            let options = ["timeout=500", "retryAttempts=0"];
            java.push(jvm.client(&server.url(), &options).await);
            servers.push(server);
        }
        let urls = servers.iter().map(Server::url);
        let ours = Redlock::builder(urls).interop(Interop::Redisson);
        Self {
            ours: ours.connect().await.expect("the servers are up"),
            servers,
            java,
        }
    }

    /// Redisson's lock of the three.
    fn theirs(&self, name: &str) -> String {
        let part = |client: &Client| format!("{}/lock/{name}", client.name());
        let parts: Vec<_> = self.java.iter().map(part).collect();
        format!("red({})", parts.join(","))
    }

    /// Each has the lock while the other has not, and gets it when that gives it back.
    async fn exclude_each_other(&self, mutex: &RedlockMutex) {
        let [java, other] = [0, 1].map(|n| self.java[n].thread());
        let theirs = self.theirs(mutex.key());

        // Its `lock()` would go on for ever; with a server down each round takes some time.
        assert!(
            java.says(format!("{theirs}.tryLock(5000, 20000, ms)"))
                .await
        );
        assert!(mutex.try_lock().await.unwrap().is_none());
        assert!(mutex.try_lock_for(ms(100)).await.unwrap().is_none());
        let waits = tokio::spawn(mutex.lock().into_future());
        tokio::time::sleep(ms(200)).await;
        assert!(!waits.is_finished());
        java.ok(format!("{theirs}.unlock()")).await;
        let since = Instant::now();
        let guard = within("our turn", waits).await.unwrap().unwrap();
        println!(
            "our Redlock {:?} after Redisson's unlock()",
            since.elapsed()
        );

        assert!(
            !other
                .says(format!("{theirs}.tryLock(200, 20000, ms)"))
                .await
        );
        assert!(guard.is_held());
        let mut waits = other.begin(format!("{theirs}.tryLock(15000, 20000, ms)"));
        waits.is_blocked_for(ms(300)).await;
        assert_eq!(guard.release().await.unwrap(), Release::Released);
        let since = Instant::now();
        assert_eq!(waits.answer().await.ok(), "true");
        println!("Redisson's {:?} after our release", since.elapsed());
        assert!(mutex.try_lock().await.unwrap().is_none());
        other.ok(format!("{theirs}.unlock()")).await;
        let guard = within("all is free", mutex.lock().into_future()).await;
        guard.unwrap().release().await.unwrap();
    }
}

#[tokio::test]
async fn both_locks_of_three_servers_exclude_each_other_also_with_one_down() {
    let Some(jvm) = jvm::shared() else { return };
    let three = Three::start(&jvm).await;
    three
        .exclude_each_other(&three.ours.mutex(unique("red")))
        .await;
    three.servers[2].kill();
    println!("one is down");
    three
        .exclude_each_other(&three.ours.mutex(unique("red")))
        .await;
}

/// A lock of one of the nodes is no majority, and an ordinary lock of Redisson's on two of them is.
#[tokio::test]
async fn a_majority_of_redissons_ordinary_locks_keeps_our_redlock_out() {
    let Some(jvm) = jvm::shared() else { return };
    let three = Three::start(&jvm).await;
    let name = unique("majority");
    let mutex = three.ours.mutex(&name);
    let threads: Vec<_> = three.java.iter().map(Client::thread).collect();
    threads[0].ok(format!("lock({name}).lock()")).await;
    let guard = within("two are free", mutex.lock().into_future()).await;
    let guard = guard.unwrap();
    assert!(!threads[1].says(format!("lock({name}).tryLock()")).await);
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    threads[1].ok(format!("lock({name}).lock()")).await;
    assert!(mutex.try_lock().await.unwrap().is_none());
    for thread in &threads[..2] {
        thread.ok(format!("lock({name}).unlock()")).await;
    }
}
