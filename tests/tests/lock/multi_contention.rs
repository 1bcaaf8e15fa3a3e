//! Several locks at once among others that want some of them: nobody holds beside another, nobody waits for ever.

use std::collections::HashMap;
use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use leasehold::Locks;
use leasehold_testkit::chance::Chance;
use leasehold_testkit::{Cluster, Server, ms};

use crate::support::{connect, exists, locks, scripts_run, take, tickets, until, within};

/// Who holds what, as the holders themselves see it.
#[derive(Default)]
struct Held(HashMap<String, AtomicBool>);

impl Held {
    fn of(names: &[String]) -> Arc<Self> {
        let free = |name: &String| (name.clone(), AtomicBool::new(false));
        Arc::new(Self(names.iter().map(free).collect()))
    }

    fn enter(&self, names: &[String]) {
        for name in names {
            let was = self.0[name].swap(true, Ordering::SeqCst);
            assert!(!was, "{name} has two holders");
        }
    }

    fn leave(&self, names: &[String]) {
        for name in names {
            self.0[name].store(false, Ordering::SeqCst);
        }
    }
}

/// A task that takes some of `names` again and again, one of them alone or several, in any order.
async fn user(locks: Locks, names: Vec<String>, held: Arc<Held>, seed: u64, rounds: usize) {
    let mut chance = Chance::new(seed);
    for round in 0..rounds {
        let mut some = names.clone();
        chance.shuffle(&mut some);
        some.truncate(1 + chance.below(4) as usize);
        let what = format!("user {seed}, round {round}: {some:?}");
        if some.len() == 1 {
            let guard = within(&what, locks.mutex(&some[0]).lock().into_future()).await;
            let guard = guard.unwrap();
            held.enter(&some);
            tokio::time::sleep(chance.millis(0, 2)).await;
            assert!(guard.is_held());
            held.leave(&some);
        } else {
            let guard = within(&what, locks.multi(&some).lock().into_future()).await;
            let guard = guard.unwrap();
            held.enter(&some);
            tokio::time::sleep(chance.millis(0, 2)).await;
            assert!(guard.is_held());
            held.leave(&some);
            if chance.percent(50) {
                guard.release().await.unwrap();
            }
        }
    }
}

async fn contend(clients: Vec<Locks>, names: Vec<String>, users: usize, rounds: usize) {
    let held = Held::of(&names);
    let seed = Chance::seed();
    println!("LEASEHOLD_SEED={seed}");
    let tasks: Vec<_> = (0..users)
        .map(|n| {
            let locks = clients[n % clients.len()].clone();
            let (names, held) = (names.clone(), Arc::clone(&held));
            tokio::spawn(user(
                locks,
                names,
                held,
                seed.wrapping_add(n as u64),
                rounds,
            ))
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_whatever_order_locks_are_named_nobody_waits_for_ever() {
    let server = Server::start().await;
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(locks(&server).await);
    }
    let names = ["a", "b", "c", "d", "e", "f"].map(String::from).to_vec();
    contend(clients, names.clone(), 9, 25).await;
    let mut raw = server.raw().await;
    until("nothing is left", async || {
        let mut left = 0;
        for name in &names {
            left += raw
                .cmd(&["EXISTS", name, &format!("leasehold_line:{{{name}}}")])
                .await
                .int();
        }
        left == 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_cluster_with_locks_of_many_slots_too() {
    let cluster = Cluster::builder().replicas(0).start().await;
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(connect(cluster.url()).await);
    }
    let mut names = Vec::new();
    for master in 0..3 {
        let tag = cluster.key_at(master, "t").await;
        names.extend([format!("{{{tag}}}a"), format!("{{{tag}}}b")]);
    }
    contend(clients, names, 6, 20).await;
}

/// Two that name the same two locks the other way round, each with another user of one of them.
#[tokio::test]
async fn opposite_orders_do_not_wait_in_a_circle() {
    let server = Server::start().await;
    let (ours, theirs) = (locks(&server).await, locks(&server).await);
    let turns = Arc::new(AtomicU64::new(0));
    let task = |locks: Locks, names: [&'static str; 2]| {
        let turns = Arc::clone(&turns);
        tokio::spawn(async move {
            for _ in 0..100 {
                let guard = within("both", locks.multi(names).lock().into_future()).await;
                turns.fetch_add(1, Ordering::Relaxed);
                drop(guard.unwrap());
            }
        })
    };
    let tasks = [task(ours, ["a", "b"]), task(theirs, ["b", "a"])];
    for task in tasks {
        within("a hundred turns each", task).await.unwrap();
    }
    assert_eq!(turns.load(Ordering::Relaxed), 200);
}

/// Somebody takes single locks one after another without a pause: the one who wants all of them takes them in order in the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn among_users_of_single_locks_several_are_had_in_the_end() {
    let server = Server::start().await;
    let ours = locks(&server).await;
    let stop = Arc::new(AtomicBool::new(false));
    let mut tasks = Vec::new();
    for name in ["a", "b", "c"] {
        let (theirs, stop) = (locks(&server).await, Arc::clone(&stop));
        tasks.push(tokio::spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let guard = theirs.mutex(name).lock().await.unwrap();
                tokio::time::sleep(ms(3)).await;
                guard.release().await.unwrap();
            }
        }));
    }
    for _ in 0..5 {
        let guard = within(
            "all three",
            ours.multi(["a", "b", "c"]).lock().into_future(),
        )
        .await;
        assert!(guard.unwrap().is_held());
    }
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        within("its end", task).await.unwrap();
    }
}

/// After rounds in which others came first the locks are taken in order, each held while the next is waited for. One that others
/// keep does not block those before it for longer than that.
#[tokio::test]
async fn one_that_others_keep_is_waited_for_with_nothing_in_hand_again() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (ours, theirs) = (locks(&server).await, locks(&server).await);
    // In the order in which they are taken.
    let names = ["b", "a"];
    let mut held = take(&theirs, names[0]).await;
    let waiter = tokio::spawn(ours.multi(names).lock().into_future());
    for round in 0..11 {
        until("it waits for the one that is held", async || {
            tickets(&mut raw, names[round % 2]).await == 1
        })
        .await;
        let next = take(&theirs, names[(round + 1) % 2]).await;
        drop(held);
        held = next;
    }
    let mut free_since = Instant::now();
    until("the first of them is left to others", async || {
        if exists(&mut raw, names[0]).await {
            free_since = Instant::now();
        }
        free_since.elapsed() > ms(1_500)
    })
    .await;
    drop(held);
    assert!(within("both", waiter).await.unwrap().unwrap().is_held());
}

/// A thousand tasks of one process cost the server as much as one.
#[tokio::test]
async fn waiters_of_one_process_ask_one_at_a_time() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (ours, theirs) = (locks(&server).await, locks(&server).await);
    let held = within("all", theirs.multi(["a", "b"]).lock().into_future()).await;
    let waiters: Vec<_> = (0..200)
        .map(|_| {
            let lock = ours.multi(["a", "b"]).lock();
            tokio::spawn(async move { drop(lock.await.unwrap()) })
        })
        .collect();
    let lines = ["EXISTS", "leasehold_line:{a}", "leasehold_line:{b}"];
    until("one stands in line", async || {
        raw.cmd(&lines).await.int() == 1
    })
    .await;
    tokio::time::sleep(ms(100)).await;
    let before = scripts_run(&mut raw).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let asked = scripts_run(&mut raw).await - before;
    assert!(asked <= 10, "{asked} scripts while nothing changes");
    assert_eq!(
        raw.cmd(&lines).await.int(),
        1,
        "for one lock, holding nothing"
    );
    drop(held);
    for waiter in waiters {
        within("its turn", waiter).await.unwrap();
    }
}
