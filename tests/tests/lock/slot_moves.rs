//! A lock whose slot is moved to another master while it is in use: step by step with `SETSLOT` and
//! `MIGRATE`, as all servers can, and by the servers themselves, as some can.

use std::future::IntoFuture;
use std::time::Duration;

use leasehold::{ErrorKind, Guard, Locks, Release, Replicas};
use leasehold_testkit::cluster::{AtomicMigration, Step};
use leasehold_testkit::{Cluster, Failover};
use tokio::task::JoinHandle;

use crate::support::{connect, keys, leased, renewed, scripts_run, take, tickets, until, within};

/// Short enough to be renewed soon, long enough for a machine that is busy.
const SHORT: Duration = Duration::from_secs(5);

/// A task that takes the lock.
fn taking(locks: &Locks, name: &str) -> JoinHandle<Guard> {
    let lock = locks.mutex(name).lock();
    tokio::spawn(async move { lock.await.unwrap() })
}

/// A task that waits for the lock, whose name has braces, and is subscribed at the node that serves
/// it.
async fn waiting(cluster: &Cluster, master: usize, locks: &Locks, name: &str) -> JoinHandle<Guard> {
    let channel = format!("leasehold_line:{name}:{}", locks.client_id());
    let waiter = taking(locks, name);
    let mut raw = cluster.raw(master).await;
    until("the waiter listens", async || {
        let counts = raw.cmd(&["PUBSUB", "SHARDNUMSUB", &channel]).await;
        counts.get(&channel).expect("the channel is named").int() >= 1
    })
    .await;
    waiter
}

/// At the source of a migrating slot a key that is gone is "not local", also within the script that
/// has just removed it, and at the target two keys that do not exist yet cannot be used together.
#[tokio::test]
async fn a_lock_goes_from_hand_to_hand_while_its_slot_moves() {
    let cluster = Cluster::builder().masters(2).replicas(0).start().await;
    let (ours, theirs) = (connect(cluster.url()).await, connect(cluster.url()).await);
    let name = cluster.key_at(0, "order:").await;
    let migration = cluster.migration(cluster.slot_of(&name).await, 1).await;

    let first = within("a free lock", ours.mutex(&name).lock().into_future())
        .await
        .unwrap();
    migration.begin().await;
    let waiter = tokio::spawn({
        let mutex = theirs.mutex(&name);
        async move { mutex.lock().await }
    });
    within("the waiter listens", async {
        // Without sharded channels, at whichever node.
        let mut master = 0;
        while !cluster
            .raw(master)
            .await
            .cmd(&["INFO", "commandstats"])
            .await
            .str()
            .contains("subscribe:calls=")
        {
            master = 1 - master;
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(
        within("a release at the source", first.release())
            .await
            .unwrap(),
        Release::Released
    );
    // Sooner than the lease of half a minute ends: by its looks, as nothing is granted now.
    let second = within("a hand-off while the slot moves", waiter)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        within("a release at the target", second.release())
            .await
            .unwrap(),
        Release::Released
    );
    let third = within("another one", ours.mutex(&name).lock().into_future())
        .await
        .unwrap();
    migration.move_all_keys().await;
    migration.finish().await;
    assert_eq!(
        within("a release after the move", third.release())
            .await
            .unwrap(),
        Release::Released
    );
    let fourth = within(
        "a lock after the move",
        theirs.mutex(&name).lock().into_future(),
    )
    .await
    .unwrap();
    assert!(fourth.is_held());
}

/// Who waits in line at the source has been told nothing that is not so: a lock that a script there has
/// just released cannot be granted by it.
#[tokio::test]
async fn a_release_at_the_source_with_tickets_in_line_grants_nothing_that_is_not_there() {
    let cluster = Cluster::builder().masters(2).replicas(0).start().await;
    let (ours, theirs) = (connect(cluster.url()).await, connect(cluster.url()).await);
    let name = cluster.key_at(0, "order:").await;
    let mut raw = cluster.raw(0).await;
    let first = ours.mutex(&name).lock().await.unwrap();
    let second = taking(&theirs, &name);
    until("a ticket in line", async || {
        tickets(&mut raw, &name).await == 1
    })
    .await;
    let third = taking(&ours, &name);
    let migration = cluster.migration(cluster.slot_of(&name).await, 1).await;
    migration.begin().await;
    let turn = async |waiter: JoinHandle<Guard>| {
        let guard = within("its turn", waiter).await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(guard.is_held());
        within("a release", guard.release()).await.unwrap()
    };
    let released = within("a release at the source", first.release()).await;
    assert_eq!(released.unwrap(), Release::Released);
    let turns = tokio::join!(turn(second), turn(third));
    assert_eq!(
        turns,
        (Release::Released, Release::Released),
        "both held it"
    );
}

/// Nothing is granted while a slot migrates, and the slot never arrives in this test.
#[tokio::test]
async fn a_release_at_the_target_is_found_by_a_waiter_elsewhere_long_before_the_lease_ends() {
    let cluster = Cluster::builder().masters(2).replicas(0).start().await;
    let lease = Duration::from_secs(600);
    let (ours, theirs) = (
        leased(cluster.url(), lease).await,
        leased(cluster.url(), lease).await,
    );
    let name = cluster.key_at(0, "order:").await;
    let migration = cluster.migration(cluster.slot_of(&name).await, 1).await;
    migration.begin().await;
    let guard = within(
        "a lock at the target",
        ours.mutex(&name).lock().into_future(),
    )
    .await
    .unwrap();
    assert!(theirs.mutex(&name).try_lock().await.unwrap().is_none());
    let mutex = theirs.mutex(&name);
    let waiter = tokio::spawn(async move { mutex.lock().await });
    let mut target = cluster.raw(1).await;
    let asked = scripts_run(&mut target).await;
    // It asks four times a second.
    until("the waiter asks", async || {
        scripts_run(&mut target).await >= asked + 2
    })
    .await;
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    let next = within("the waiter's turn", waiter).await.unwrap().unwrap();
    assert!(next.is_held());
}

/// The locks that are held during a migration, and the operations at each step of it.
struct Migrating<'a> {
    locks: &'a Locks,
    others: &'a Locks,
    tag: &'a str,
    held: Vec<Guard>,
}

impl Migrating<'_> {
    async fn check(&self, step: &str) {
        let name = format!("{{{}}}{}", self.tag, step.replace(' ', "-"));
        let guard = take(self.locks, &name).await;
        assert!(
            self.others.mutex(&name).try_lock().await.unwrap().is_none(),
            "{step}: two holders"
        );
        for held in &self.held {
            assert!(
                self.others
                    .mutex(held.key())
                    .try_lock()
                    .await
                    .unwrap()
                    .is_none(),
                "{step}: two holders"
            );
        }
        renewed(self.held.iter().chain([&guard])).await;
        assert_eq!(guard.release().await.unwrap(), Release::Released, "{step}");
        // Its lease is longer than any wait here, so the waiter gets its turn by the release.
        let again = take(self.others, &name).await;
        let token = again.token();
        let waiter = taking(self.locks, &name);
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(!waiter.is_finished(), "{step}: two holders");
        assert_eq!(again.release().await.unwrap(), Release::Released, "{step}");
        let next = within(step, waiter).await.unwrap();
        assert!(next.token() > token, "{step}");
        assert_eq!(next.release().await.unwrap(), Release::Released, "{step}");
    }
}

#[tokio::test]
async fn locks_are_taken_renewed_and_released_at_every_step_of_a_migration() {
    let cluster = Cluster::builder().replicas(0).start().await;
    let (ours, others) = (
        leased(cluster.url(), SHORT).await,
        connect(cluster.url()).await,
    );
    let tag = cluster.key_at(0, "k").await;
    let slot = cluster.slot_of(&tag).await;
    let name = |n: &str| format!("{{{tag}}}{n}");
    // Two, so that a batch of renewals has keys on both sides.
    let held = vec![
        take(&ours, &name("moves")).await,
        take(&ours, &name("stays")).await,
    ];
    let checks = Migrating {
        locks: &ours,
        others: &others,
        tag: &tag,
        held,
    };

    let migration = cluster.migration(slot, 1).await;
    migration.import().await;
    checks.check("importing").await;
    migration.migrate().await;
    checks.check("migrating").await;
    migration.move_keys(&[name("moves")]).await;
    checks.check("key moved").await;
    migration
        .move_keys(&[format!("redisson_lock_token:{{{tag}}}moves")])
        .await;
    checks.check("token moved").await;
    migration.move_all_keys().await;
    checks.check("all moved").await;
    let (slot_text, target) = (slot.to_string(), cluster.id(1));
    for (step, node) in [
        ("node at target", 1),
        ("node at source", 0),
        ("node at the third", 2),
    ] {
        // The rest of the check before, at the source.
        migration.move_all_keys().await;
        let told = cluster
            .raw(node)
            .await
            .cmd(&["CLUSTER", "SETSLOT", &slot_text, "NODE", target])
            .await;
        assert!(told.is_ok(), "{told:?}");
        checks.check(step).await;
    }
    for guard in checks.held {
        assert_eq!(guard.release().await.unwrap(), Release::Released);
    }
}

/// The migration of `slot` from node 0 to node 1 by the servers themselves, where they can.
async fn atomic(cluster: &Cluster, slot: u16) -> Option<AtomicMigration<'_>> {
    let migration = cluster.atomic_migration(slot, 1).await;
    if migration.is_none() {
        println!("skipped: the server does not know CLUSTER MIGRATESLOTS");
    }
    migration
}

#[tokio::test]
async fn locks_are_taken_renewed_and_released_at_every_step_of_an_atomic_migration() {
    let cluster = Cluster::builder().replicas(0).start().await;
    let tag = cluster.key_at(0, "k").await;
    let Some(migration) = atomic(&cluster, cluster.slot_of(&tag).await).await else {
        return;
    };
    let (ours, others) = (
        leased(cluster.url(), SHORT).await,
        connect(cluster.url()).await,
    );
    let name = |n: &str| format!("{{{tag}}}{n}");
    let held = vec![
        take(&ours, &name("one")).await,
        take(&ours, &name("two")).await,
    ];
    let checks = Migrating {
        locks: &ours,
        others: &others,
        tag: &tag,
        held,
    };

    migration.start_until(Step::Streaming).await;
    checks.check("streaming").await;
    migration.cancel().await;
    checks.check("called off").await;
    migration.start_until(Step::Streaming).await;
    checks.check("streaming again").await;
    migration.finish().await;
    checks.check("moved").await;
    for guard in checks.held {
        assert_eq!(guard.release().await.unwrap(), Release::Released);
    }
}

/// Before the slot changes hands its source keeps all writes waiting. They are not lost, and not
/// executed twice: clients are redirected to the target, and no lease ends for it.
#[tokio::test]
async fn what_is_asked_for_while_a_migration_holds_back_writes_is_done_at_the_target() {
    let cluster = Cluster::builder().replicas(0).start().await;
    let tag = cluster.key_at(0, "k").await;
    let Some(migration) = atomic(&cluster, cluster.slot_of(&tag).await).await else {
        return;
    };
    let lease = Duration::from_secs(9);
    let (ours, theirs) = (
        leased(cluster.url(), lease).await,
        connect(cluster.url()).await,
    );
    let name = |n: &str| format!("{{{tag}}}{n}");
    let (kept, passed) = (
        take(&ours, &name("kept")).await,
        take(&ours, &name("passed")).await,
    );
    let waiter = waiting(&cluster, 0, &theirs, &name("passed")).await;
    let token = passed.token();

    migration.start_until(Step::Paused).await;
    let fresh = taking(&theirs, &name("fresh"));
    let passing = tokio::spawn(passed.release());
    // Of three connections: that of the new lock, that of the release, and the keeper's with a
    // renewal.
    await_held_back(&cluster, 0, 3).await;
    assert!(!fresh.is_finished() && !passing.is_finished() && !waiter.is_finished());
    migration.finish().await;

    assert_eq!(
        within("the release", passing).await.unwrap().unwrap(),
        Release::Released
    );
    assert!(within("the waiter", waiter).await.unwrap().token() > token);
    let fresh = within("the new lock", fresh).await.unwrap();
    assert!(
        ours.mutex(name("fresh"))
            .try_lock()
            .await
            .unwrap()
            .is_none()
    );
    assert_eq!(fresh.release().await.unwrap(), Release::Released);
    until("the lock is renewed", async || {
        kept.valid_for() > lease * 3 / 4
    })
    .await;
    assert_eq!(kept.release().await.unwrap(), Release::Released);
    assert_eq!(keys(&mut cluster.raw(0).await).await, [""; 0]);
}

/// Waits until a node has this many blocked connections.
async fn await_held_back(cluster: &Cluster, node: usize, connections: usize) {
    let mut raw = cluster.raw(node).await;
    until("writes are held back", async || {
        let info = raw.cmd(&["INFO", "clients"]).await;
        let count = info
            .str()
            .lines()
            .find_map(|line| line.strip_prefix("blocked_clients:"))
            .expect("a number");
        count.trim().parse::<usize>().unwrap() >= connections
    })
    .await;
}

#[tokio::test]
async fn replicas_confirm_at_every_step_of_an_atomic_migration() {
    let cluster = Cluster::builder().masters(2).start().await;
    let tag = cluster.key_at(0, "k").await;
    let Some(migration) = atomic(&cluster, cluster.slot_of(&tag).await).await else {
        return;
    };
    let safe = Locks::builder(cluster.url())
        .replicated(Replicas::All)
        .restart_guard(Duration::from_millis(10))
        .connect()
        .await
        .unwrap();
    let mut guards = vec![take(&safe, &format!("{{{tag}}}before")).await];
    migration.start_until(Step::Streaming).await;
    guards.push(take(&safe, &format!("{{{tag}}}streaming")).await);
    migration.cancel().await;
    migration.start_until(Step::Paused).await;
    let paused = taking(&safe, &format!("{{{tag}}}paused"));
    await_held_back(&cluster, 0, 1).await;
    migration.finish().await;
    guards.push(within("the one that was held back", paused).await.unwrap());
    guards.push(take(&safe, &format!("{{{tag}}}moved")).await);
    for guard in guards {
        assert_eq!(guard.acknowledged(), 1, "{}", guard.key());
        assert_eq!(guard.release().await.unwrap(), Release::Released);
    }
}

#[tokio::test]
async fn waiters_hear_of_their_grants_at_every_step_of_an_atomic_migration() {
    let cluster = Cluster::builder().masters(2).replicas(0).start().await;
    let tag = cluster.key_at(0, "k").await;
    let Some(migration) = atomic(&cluster, cluster.slot_of(&tag).await).await else {
        return;
    };
    // As two processes. With this lease a waiter without a message is too late.
    let (ours, theirs) = (connect(cluster.url()).await, connect(cluster.url()).await);
    let name = |n: &str| format!("{{{tag}}}{n}");
    let hand_over = async |step: &str, guard: Guard, waiter: JoinHandle<Guard>| {
        assert_eq!(
            within(step, guard.release()).await.unwrap(),
            Release::Released,
            "{step}"
        );
        drop(within(step, waiter).await.unwrap());
    };
    let mut steps = Vec::new();
    for step in ["streaming", "called-off", "moved"] {
        let guard = take(&ours, &name(step)).await;
        let waiter = waiting(&cluster, 0, &theirs, &name(step)).await;
        steps.push((step, guard, waiter));
    }
    let mut steps = steps.into_iter();
    migration.start_until(Step::Streaming).await;
    let (step, guard, waiter) = steps.next().unwrap();
    hand_over(step, guard, waiter).await;
    // A new waiter subscribes at the source as well.
    let guard = take(&ours, &name("late")).await;
    let waiter = waiting(&cluster, 0, &theirs, &name("late")).await;
    migration.cancel().await;
    let (step, early, its_waiter) = steps.next().unwrap();
    hand_over(step, early, its_waiter).await;
    migration.start_until(Step::Streaming).await;
    migration.finish().await;
    let (step, early, its_waiter) = steps.next().unwrap();
    hand_over(step, early, its_waiter).await;
    hand_over("late", guard, waiter).await;
}

#[tokio::test]
async fn a_target_that_dies_leaves_all_locks_where_they_were() {
    let cluster = Cluster::builder()
        .masters(2)
        .replicas(0)
        .spares(1)
        .start()
        .await;
    let tag = cluster.key_at(0, "k").await;
    let slot = cluster.slot_of(&tag).await;
    let Some(migration) = cluster.atomic_migration(slot, 2).await else {
        return println!("skipped: the server does not know CLUSTER MIGRATESLOTS");
    };
    let (ours, others) = (
        leased(cluster.url(), SHORT).await,
        connect(cluster.url()).await,
    );
    let checks = Migrating {
        locks: &ours,
        others: &others,
        tag: &tag,
        held: vec![take(&ours, &tag).await],
    };
    migration.start_until(Step::Streaming).await;
    cluster.kill(2);
    migration.failed().await;
    checks.check("failed").await;

    // And when it was about to take over: the source keeps all writes waiting for it, ten seconds
    // long.
    cluster.restart(2).await;
    cluster.wait_until_ok().await;
    let name = format!("{{{tag}}}patient");
    let held = take(&others, &name).await;
    migration.start_until(Step::Paused).await;
    cluster.kill(2);
    let asked = ours.mutex(&name).try_lock().await;
    assert!(
        asked
            .as_ref()
            .is_err_and(|error| error.kind() == ErrorKind::Unknown),
        "{asked:?}"
    );
    migration.failed().await;
    assert!(ours.mutex(&name).try_lock().await.unwrap().is_none());
    assert!(held.is_held());
    assert_eq!(held.release().await.unwrap(), Release::Released);
    // The attempt that timed out was withdrawn in the background.
    let again = take(&ours, &name).await;
    assert_eq!(again.release().await.unwrap(), Release::Released);
}

#[tokio::test]
async fn a_failover_in_the_middle_of_an_atomic_migration_costs_no_lock() {
    let cluster = Cluster::builder().masters(2).start().await;
    let tag = cluster.key_at(0, "k").await;
    let slot = cluster.slot_of(&tag).await;
    let Some(migration) = atomic(&cluster, slot).await else {
        return;
    };
    let (ours, others) = (
        leased(cluster.url(), SHORT).await,
        connect(cluster.url()).await,
    );
    let checks = Migrating {
        locks: &ours,
        others: &others,
        tag: &tag,
        held: vec![take(&ours, &tag).await],
    };
    migration.start_until(Step::Streaming).await;
    let replica = cluster.replicas_of(0).await[0];
    cluster.failover(replica, Failover::Graceful).await;
    checks.check("another source").await;
    cluster.wait_until_ok().await;
    assert_eq!(cluster.master_of_slot(slot).await, Some(replica));
    assert!(cluster.migrate_slot_atomically(slot, 1).await);
    checks.check("moved").await;
}
