//! Faults of Redisson's in waiting and waking, on demand: rows of the table in `leasehold::guides::beside_others`.

use std::path::Path;
use std::time::Instant;

use leasehold::FairMutex;
use leasehold_testkit::process::Watched;
use leasehold_testkit::{Fault, Proxy, Scratch};

use crate::jvm::{self, Client, Pending, Thread};
use crate::monitor::{Line, Monitor};
use crate::stage::{Stage, beside_redisson, leased, server};
use crate::support::{beside, fields, ms, queue, until, within};

/// Lines of the shared server that have to do with this name.
async fn watched(name: &str) -> Monitor {
    let name = name.to_owned();
    let about = move |line: &Line| line.words.iter().any(|word| word.contains(&name));
    Monitor::start(server().await.addr(), about).await
}

/// How many scripts this thread has sent.
async fn scripts_of(monitor: &Monitor, thread: &Thread) -> usize {
    let id = thread.id().await;
    monitor.count(|line| line.is_script() && line.has(&id))
}

/// One of Redisson's that waits, asleep.
async fn waiter(client: &Client, lock: &str) -> (Thread, Pending) {
    let thread = client.thread();
    let pending = thread.begin(format!("{lock}.lock()"));
    thread.sleeps().await;
    (thread, pending)
}

/// Each of three clients sends a request for a lock that one of them can have. Of three of ours one is told, and has it by then.
#[tokio::test]
async fn every_client_of_redissons_asks_after_a_release_and_one_of_ours_is_told() {
    let Some(jvm) = jvm::shared() else { return };
    let url = server().await.url();
    let stage = Stage::with(&jvm, "herd", &url, &[]).await;
    let name = stage.name("herd");
    let (lock, monitor) = (format!("lock({name})"), watched(&name).await);
    let holder = stage.java[0].thread();
    holder.ok(format!("{lock}.lock()")).await;
    let third = jvm.client(&url, &[]).await;
    let mut waiting = Vec::new();
    for client in [&stage.java[0], &stage.java[1], &third] {
        let (thread, pending) = waiter(client, &lock).await;
        let asked = scripts_of(&monitor, &thread).await;
        waiting.push((thread, pending, asked));
    }
    holder.ok(format!("{lock}.unlock()")).await;
    for (thread, _, asked) in &waiting {
        let again = async || scripts_of(&monitor, thread).await > *asked;
        until("each has asked", again).await;
    }
    let mut raw = server().await.raw().await;
    while !waiting.is_empty() {
        let holder = until("the next one", async || {
            let held = fields(&mut raw, &name).await;
            let id = held.split_once('=').map(|(id, _)| id.to_owned());
            id.ok_or_else(|| String::from("nobody has it"))
        })
        .await;
        let mut next = 0;
        while waiting[next].0.id().await != holder {
            next += 1;
        }
        let (thread, pending, _) = waiting.remove(next);
        pending.answer().await.ok();
        thread.ok(format!("{lock}.unlock()")).await;
    }
    stage.locks.shutdown().await.unwrap();
    one_of_ours_is_told(&url, &stage.name("line")).await;
}

async fn one_of_ours_is_told(url: &str, name: &str) {
    let holder = beside_redisson(url).await;
    let guard = holder.mutex(name).lock().await.unwrap();
    let (mut clients, mut turns) = (Vec::new(), Vec::new());
    for place in 1..=3 {
        let locks = beside_redisson(url).await;
        turns.push(tokio::spawn(locks.mutex(name).lock().into_future()));
        clients.push(locks);
        let line = async || holder.mutex(name).inspect().await.unwrap();
        until("a ticket more", async || {
            line().await.waiters().len() == place
        })
        .await;
    }
    let inboxes: Vec<_> = clients
        .iter()
        .map(|locks| format!("leasehold:{}", locks.client_id()))
        .collect();
    let inbox = inboxes.clone();
    let to_them = move |line: &Line| line.is("PUBLISH") && inbox.contains(&line.words[1]);
    let messages = Monitor::start(server().await.addr(), to_them).await;
    let mut guard = Some(guard);
    for (place, (turn, inbox)) in turns.into_iter().zip(&inboxes).enumerate() {
        drop(guard.take());
        guard = Some(within("its turn", turn).await.unwrap().unwrap());
        until("the message", async || {
            let told = messages.lines();
            let is_there = told.last().is_some_and(|line| line.has(inbox));
            if is_there && told.len() == place + 1 {
                Ok(())
            } else {
                Err(format!("{told:?}"))
            }
        })
        .await;
    }
}

/// The head of the queue hears nothing and gives up. The lock is free, and the next one sleeps for the lease that it saw.
#[tokio::test]
async fn a_waiter_of_redissons_that_gives_up_tells_nobody_and_ours_that_comes_tells_the_next() {
    let Some(jvm) = jvm::shared() else { return };
    let url = server().await.url();
    let stage = Stage::with(&jvm, "gives-up", &url, &[]).await;
    let proxy = Proxy::start(server().await.addr());
    // Messages are told from replies by RESP3.
    let deaf = jvm.client(&proxy.url(), &["protocol=RESP3"]).await;
    let name = stage.name("gives-up");
    let lock = format!("fair({name})");
    let (holder, first) = (stage.java[0].thread(), deaf.thread());
    holder.ok(format!("{lock}.lock()")).await;
    let gives_up = first.begin(format!("{lock}.tryLock(4000, ms)"));
    first.sleeps().await;
    let (second, waits) = waiter(&stage.java[1], &lock).await;
    proxy.to_client(Fault::DropMessages);
    holder.ok(format!("{lock}.unlock()")).await;
    let mut raw = server().await.raw().await;
    let queued = queue(&mut raw, &name).await;
    assert_eq!(queued.len(), 2, "the first one has not given up so far");
    assert_eq!(gives_up.answer().await.ok(), "false");
    assert_eq!(queue(&mut raw, &name).await, [second.id().await]);
    assert_eq!(fields(&mut raw, &name).await, "", "it is free");
    second.sleeps().await;
    assert!(waits.is_blocked());

    let fair = stage.locks.fair_mutex(&name);
    assert!(fair.try_lock().await.unwrap().is_none(), "it has a queue");
    // One that waits tells the first when it finds the lock free.
    let ours = tokio::spawn(fair.lock().into_future());
    waits.answer().await.ok();
    second.ok(format!("{lock}.unlock()")).await;
    drop(within("our turn", ours).await.unwrap().unwrap());
    for _ in 0..5 {
        give_up_at_the_release(&stage, &fair).await;
    }
    stage.locks.shutdown().await.unwrap();
}

/// Ours leaves at the moment at which it is its turn: the one of Redisson's behind it has its own long before a lease ends.
async fn give_up_at_the_release(stage: &Stage, fair: &FairMutex) {
    let guard = fair.lock().await.unwrap();
    let ours = tokio::spawn(fair.lock().into_future());
    until("a ticket", async || stage.tickets(fair.key()).await == 1).await;
    let lock = format!("fair({})", fair.key());
    let (next, waits) = waiter(&stage.java[0], &lock).await;
    drop(guard);
    ours.abort();
    waits.answer().await.ok();
    next.ok(format!("{lock}.unlock()")).await;
}

/// With more in the queue each acquire of Redisson's runs more commands. However many of ours stand there are one entry.
#[tokio::test]
async fn an_acquire_costs_redisson_a_command_for_each_in_the_queue_and_ours_are_one() {
    let Some(jvm) = jvm::shared() else { return };
    let url = server().await.url();
    let stage = Stage::with(&jvm, "length", &url, &[]).await;
    for many in [3, 9] {
        let theirs = acquire_behind(&stage, &vec![true; many]).await;
        let kinds = [&[true], &vec![false; many][..], &[true]].concat();
        let ours = acquire_behind(&stage, &kinds).await;
        println!("{many} behind the first: {theirs} commands, of ours {ours}");
        assert_eq!(theirs, many - 1);
        assert_eq!(ours, 2);
    }
    stage.locks.shutdown().await.unwrap();
}

/// How many times are changed when the first of a queue has the lock. Of Redisson's are those that are `true`.
async fn acquire_behind(stage: &Stage, kinds: &[bool]) -> usize {
    let name = stage.name("length");
    let (lock, fair) = (format!("fair({name})"), stage.locks.fair_mutex(&name));
    let holder = stage.java[0].thread();
    holder.ok(format!("{lock}.lock()")).await;
    let (mut theirs, mut ours) = (Vec::new(), Vec::new());
    for is_theirs in kinds {
        if *is_theirs {
            theirs.push(waiter(&stage.java[1], &lock).await);
        } else {
            let before = stage.tickets(&name).await;
            ours.push(tokio::spawn(fair.lock().into_future()));
            until("a ticket", async || stage.tickets(&name).await > before).await;
        }
    }
    let times = beside("redisson_lock_timeout", &name);
    let monitor = watched(&name).await;
    holder.ok(format!("{lock}.unlock()")).await;
    let mut theirs = theirs.into_iter();
    let (first, pending) = theirs.next().expect("the first one is Redisson's");
    pending.answer().await.ok();
    let id = first.id().await;
    let changed = until("the acquire", async || {
        // What a script runs follows it.
        let seen = monitor.lines();
        let mut lines = seen.iter();
        let asks = |line: &&Line| line.is_script() && line.has(&id);
        lines.find(asks).ok_or("it has not asked")?;
        let run: Vec<_> = lines.take_while(|line| line.from == "lua").collect();
        let changes = |line: &&&Line| line.is("ZINCRBY") && line.has(&times);
        let is_whole = run.last().is_some_and(|line| line.is("PEXPIRE"));
        let changed = run.iter().filter(changes).count();
        if is_whole {
            Ok(changed)
        } else {
            Err(format!("{run:?}"))
        }
    })
    .await;
    first.ok(format!("{lock}.unlock()")).await;
    for guard in ours {
        drop(within("our turn", guard).await.unwrap().unwrap());
    }
    for (thread, pending) in theirs {
        pending.answer().await.ok();
        thread.ok(format!("{lock}.unlock()")).await;
    }
    changed
}

/// An interrupted thread stays in the queue until its time is over. If that is lost, Redisson would wait for it without end.
#[tokio::test]
async fn an_interrupted_waiter_of_redissons_holds_up_a_fair_lock_for_its_time() {
    let Some(jvm) = jvm::shared() else { return };
    let url = server().await.url();
    let stage = Stage::with(&jvm, "interrupted", &url, &["fairWait=4000"]).await;
    // Both take some seconds.
    tokio::join!(
        a_dead_one_is_first(&stage, false),
        a_dead_one_is_first(&stage, true)
    );
    stage.locks.shutdown().await.unwrap();
}

/// Behind the dead one stand one of ours and one of Redisson's.
async fn a_dead_one_is_first(stage: &Stage, its_time_is_lost: bool) {
    let name = stage.name("interrupted");
    let lock = format!("fair({name})");
    let mut raw = stage.raw(&name).await;
    // Redisson's waiters ask again after that long.
    let holder = leased(&stage.url, ms(1_500)).await;
    let guard = holder.fair_mutex(&name).lock().await.unwrap();
    let dead = stage.java[0].thread();
    let dies = dead.begin(format!("{lock}.lockInterruptibly()"));
    dead.sleeps().await;
    dead.begin("interrupt").answer().await.ok();
    assert!(dies.answer().await.threw("InterruptedException"));
    assert_eq!(queue(&mut raw, &name).await, [dead.id().await], "it stays");
    let ours = tokio::spawn(stage.locks.fair_mutex(&name).lock().into_future());
    until("a ticket", async || stage.tickets(&name).await == 1).await;
    let (theirs, waits) = waiter(&stage.java[1], &lock).await;
    let monitor = watched(&name).await;
    if its_time_is_lost {
        let times = beside("redisson_lock_timeout", &name);
        raw.cmd(&["ZREM", &times, &dead.id().await]).await;
    }
    guard.release().await.unwrap();
    let since = Instant::now();
    let guard = within("our turn", ours).await.unwrap().unwrap();
    let (their_id, our_id) = (theirs.id().await, stage.locks.client_id());
    let of_theirs = monitor.count(|line| line.is_script() && line.has(&their_id));
    let is_ours = |line: &Line| line.words.iter().any(|word| word.contains(our_id));
    let of_ours = monitor.count(|line| line.is_script() && is_ours(line));
    println!(
        "behind a dead one for {:?}: Redisson asked {of_theirs} times, ours {of_ours}",
        since.elapsed()
    );
    assert!(of_theirs > 5 * of_ours, "{of_theirs}, {of_ours}");
    guard.release().await.unwrap();
    waits.answer().await.ok();
    theirs.ok(format!("{lock}.unlock()")).await;
    assert_eq!(queue(&mut raw, &name).await, [""; 0]);
    holder.shutdown().await.unwrap();
}

/// A process of ours that died stands first, for seconds and not for Redisson's five minutes.
#[tokio::test]
async fn a_waiter_of_ours_that_died_holds_up_redissons_for_seconds() {
    let Some(jvm) = jvm::shared() else { return };
    let url = server().await.url();
    let stage = Stage::with(&jvm, "died", &url, &["watchdog=3000"]).await;
    let name = stage.name("died");
    // As the process calls it.
    let fair = format!("{name}-fair");
    let lock = format!("fair({fair})");
    let holder = stage.java[0].thread();
    holder.ok(format!("{lock}.lock()")).await;
    let dir = Scratch::new();
    let program = Path::new(env!("CARGO_BIN_EXE_interop_worker"));
    let args = ["hold".into(), url, "3000".into(), name];
    let mut process = Watched::spawn(program, &args, dir.path(), &dir.join("log"));
    until("its ticket", async || stage.tickets(&fair).await == 1).await;
    let (behind, waits) = waiter(&stage.java[1], &lock).await;
    process.kill();
    holder.ok(format!("{lock}.unlock()")).await;
    let since = Instant::now();
    waits.answer().await.ok();
    println!("Redisson after {:?}", since.elapsed());
    behind.ok(format!("{lock}.unlock()")).await;
    let mut raw = stage.raw(&fair).await;
    assert_eq!(queue(&mut raw, &fair).await, [""; 0]);
    stage.locks.shutdown().await.unwrap();
}
