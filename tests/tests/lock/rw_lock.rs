//! The read-write lock: who is let in beside whom, who waits, and what that takes.
//!
//! Each `Locks` is a process to the server. Leases are 30 s and waits are shorter, unless a test says otherwise: so what gets its
//! turn was let in, and has not waited for an expiry.

use std::time::Duration;

use leasehold::{ErrorKind, Locks, LostReason, ReadGuard, Release, RwLock, WriteGuard};
use leasehold_testkit::{Raw, Server};
use tokio::task::JoinHandle;

use crate::support::{
    assert_everything_expires, exists, fields, keys, line, locks, ms, nobody_in_line, pttl,
    scripts_run, short_locks, tickets, until, within,
};

pub(crate) type Waiting<G> = JoinHandle<Result<G, leasehold::Error>>;

pub(crate) async fn read(lock: &RwLock) -> ReadGuard {
    within("a read", lock.read().into_future()).await.unwrap()
}

pub(crate) async fn write(lock: &RwLock) -> WriteGuard {
    within("a write", lock.write().into_future()).await.unwrap()
}

/// A task that waits to write, with a ticket in line.
pub(crate) async fn writer(raw: &mut Raw, locks: &Locks, name: &str) -> Waiting<WriteGuard> {
    let before = tickets(raw, name).await;
    let waiting = tokio::spawn(locks.rw_lock(name).write().into_future());
    until("a ticket", async || tickets(raw, name).await > before).await;
    waiting
}

/// A task that waits to read, with a ticket in line.
pub(crate) async fn reader(raw: &mut Raw, locks: &Locks, name: &str) -> Waiting<ReadGuard> {
    let before = tickets(raw, name).await;
    let waiting = tokio::spawn(locks.rw_lock(name).read().into_future());
    until("a ticket", async || tickets(raw, name).await > before).await;
    waiting
}

/// Locks whose renewal thread is connected: it renews everything once when that is so.
pub(crate) async fn settled_locks(server: &Server, raw: &mut Raw) -> Locks {
    let locks = locks(server).await;
    let first = locks.mutex("first").lock().await.unwrap();
    let before = scripts_run(raw).await;
    until("its renewal", async || scripts_run(raw).await > before).await;
    first.release().await.unwrap();
    locks
}

pub(crate) async fn turn<G>(waiting: Waiting<G>) -> G {
    within("its turn", waiting).await.unwrap().unwrap()
}

#[tokio::test]
async fn readers_share_and_a_writer_is_alone() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (ours, theirs) = (locks(&server).await, locks(&server).await);
    let (a, b) = (ours.rw_lock("a"), theirs.rw_lock("a"));

    let (one, two) = (read(&a).await, read(&b).await);
    assert_eq!(b.try_write().await.unwrap().map(drop), None);
    assert_eq!(a.try_write_for(ms(50)).await.unwrap().map(drop), None);
    nobody_in_line(&mut raw, "a").await;
    assert_everything_expires(&mut raw).await;
    assert!(a.remaining().await.unwrap().unwrap() > Duration::from_secs(20));
    assert_eq!(one.release().await.unwrap(), Release::Released);
    drop(two);
    until("both are gone", async || !exists(&mut raw, "a").await).await;

    let writing = write(&a).await;
    assert!(writing.is_held());
    assert_eq!(writing.key(), "a");
    assert_eq!(fields(&mut raw, "a").await.matches("mode=write").count(), 1);
    assert_eq!(b.try_read().await.unwrap().map(drop), None);
    assert_eq!(b.try_write().await.unwrap().map(drop), None);
    assert_eq!(a.try_read().await.unwrap().map(drop), None);
    assert_eq!(writing.release().await.unwrap(), Release::Released);
    assert_eq!(a.remaining().await.unwrap(), None);
    assert_eq!(keys(&mut raw).await, ["redisson_lock_token:{a}"]);
}

#[tokio::test]
async fn tokens_grow_with_writers_and_readers_have_that_of_the_latest() {
    let server = Server::start().await;
    let locks = locks(&server).await;
    let lock = locks.rw_lock("a");
    let mutex = locks.mutex("a").lock().await.unwrap();
    let before = mutex.token();
    mutex.release().await.unwrap();
    let writing = write(&lock).await;
    let first = writing.token();
    assert!(first > before);
    writing.release().await.unwrap();
    let reading = read(&lock).await;
    assert_eq!(reading.token(), first);
    reading.release().await.unwrap();
    let writing = write(&lock).await;
    assert!(writing.token() > first);
}

#[tokio::test]
async fn a_writer_that_waits_keeps_readers_behind_it() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (a, b, c) = (
        locks(&server).await,
        locks(&server).await,
        locks(&server).await,
    );
    let reading = read(&a.rw_lock("a")).await;
    let waiting = writer(&mut raw, &b, "a").await;
    assert_eq!(c.rw_lock("a").try_read().await.unwrap().map(drop), None);
    let behind = reader(&mut raw, &c, "a").await;
    let order = line(&mut raw, "a").await;
    assert!(
        order[0].ends_with('w') && order[1].ends_with('r'),
        "{order:?}"
    );

    drop(reading);
    let writing = turn(waiting).await;
    assert!(!behind.is_finished());
    drop(writing);
    let reading = turn(behind).await;
    assert_eq!(tickets(&mut raw, "a").await, 0);
    reading.release().await.unwrap();
    assert!(!exists(&mut raw, "a").await);
}

#[tokio::test]
async fn readers_in_line_enter_together_up_to_the_next_writer() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let mut clients = Vec::new();
    for _ in 0..5 {
        clients.push(locks(&server).await);
    }
    let writing = write(&clients[0].rw_lock("a")).await;
    let one = reader(&mut raw, &clients[1], "a").await;
    let two = reader(&mut raw, &clients[2], "a").await;
    let next = writer(&mut raw, &clients[3], "a").await;
    let last = reader(&mut raw, &clients[4], "a").await;
    drop(writing);
    let (one, two) = (turn(one).await, turn(two).await);
    assert!(!next.is_finished() && !last.is_finished());
    drop(one);
    tokio::time::sleep(ms(50)).await;
    assert!(!next.is_finished());
    drop(two);
    let writing = turn(next).await;
    assert!(!last.is_finished());
    drop(writing);
    drop(turn(last).await);
    until("the end", async || !exists(&mut raw, "a").await).await;
}

#[tokio::test]
async fn a_writer_that_gives_up_lets_the_readers_behind_it_in() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (a, b, c) = (
        locks(&server).await,
        locks(&server).await,
        locks(&server).await,
    );
    let reading = read(&a.rw_lock("a")).await;
    let waiting = writer(&mut raw, &b, "a").await;
    let behind = reader(&mut raw, &c, "a").await;
    waiting.abort();
    let beside = turn(behind).await;
    drop((reading, beside));
}

#[tokio::test]
async fn reads_of_one_process_share_a_hold_at_no_command() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = settled_locks(&server, &mut raw).await;
    let lock = locks.rw_lock("a");
    let first = read(&lock).await;
    // Listens from here on, and asks once more.
    let second = read(&lock).await;
    let before = scripts_run(&mut raw).await;
    let mut more = Vec::new();
    for _ in 0..100 {
        more.push(read(&lock).await);
        more.push(lock.try_read().await.unwrap().expect("a read"));
    }
    assert_eq!(scripts_run(&mut raw).await, before);
    assert_eq!(
        more.pop().unwrap().release().await.unwrap(),
        Release::StillHeld
    );
    drop(more);
    assert_eq!(scripts_run(&mut raw).await, before);
    assert_eq!(first.release().await.unwrap(), Release::Released);
    assert_eq!(second.release().await.unwrap(), Release::Released);
    assert!(!exists(&mut raw, "a").await);

    // Who listens already shares at once.
    let first = read(&lock).await;
    let before = scripts_run(&mut raw).await;
    let second = read(&lock).await;
    assert_eq!(scripts_run(&mut raw).await, before);
    drop((first, second));
}

#[tokio::test]
async fn a_writer_that_waits_elsewhere_closes_the_gate_to_local_reads() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (a, b) = (locks(&server).await, locks(&server).await);
    let lock = a.rw_lock("a");
    let reads = [read(&lock).await, read(&lock).await, read(&lock).await];
    let waiting = writer(&mut raw, &b, "a").await;
    until("the gate is closed", async || {
        lock.try_read().await.unwrap().is_none()
    })
    .await;
    let behind = tokio::spawn(lock.read().into_future());
    until("it is in line", async || tickets(&mut raw, "a").await == 2).await;
    drop(reads);
    let writing = turn(waiting).await;
    assert!(!behind.is_finished());
    drop(writing);
    drop(turn(behind).await);
}

/// Eight readers in loops never leave the lock, and a writer gets it all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_that_overlap_without_end_do_not_starve_a_writer() {
    let server = Server::start().await;
    let clients = [locks(&server).await, locks(&server).await];
    let mut readers = Vec::new();
    for index in 0..8 {
        let lock = clients[index % 2].rw_lock("a");
        readers.push(tokio::spawn(async move {
            let mut turns = 0;
            loop {
                let reading = lock.read().await.unwrap();
                tokio::time::sleep(ms(5 + index as u64)).await;
                drop(reading);
                turns += 1;
                if turns == 1_000_000 {
                    return;
                }
            }
        }));
    }
    let writers = locks(&server).await;
    let lock = writers.rw_lock("a");
    let mut waits = Vec::new();
    for _ in 0..20 {
        tokio::time::sleep(ms(20)).await;
        let start = std::time::Instant::now();
        let writing = write(&lock).await;
        waits.push(start.elapsed());
        assert!(writing.is_held());
        drop(writing);
    }
    waits.sort();
    println!(
        "writer's waits: median {:?}, longest {:?}",
        waits[10], waits[19]
    );
    for reader in readers {
        reader.abort();
    }
}

#[tokio::test]
async fn a_writer_of_the_process_waits_at_the_server_while_it_reads() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (a, b) = (locks(&server).await, locks(&server).await);
    let reading = read(&a.rw_lock("a")).await;
    let waiting = writer(&mut raw, &a, "a").await;
    assert_eq!(a.rw_lock("a").try_read().await.unwrap().map(drop), None);
    let behind = reader(&mut raw, &b, "a").await;
    drop(reading);
    drop(turn(waiting).await);
    drop(turn(behind).await);
}

#[tokio::test]
async fn leases_of_readers_are_renewed_with_their_timeout_keys() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = short_locks(&server, ms(600)).await;
    let (reading, other) = (
        read(&locks.rw_lock("a")).await,
        write(&locks.rw_lock("b")).await,
    );
    let id = fields(&mut raw, "a").await;
    let id = id.split('=').next().unwrap();
    let timeout_key = format!("{{a}}:{id}:rwlock_timeout:1");
    for _ in 0..20 {
        tokio::time::sleep(ms(100)).await;
        assert!(reading.is_held() && other.is_held());
        assert!(pttl(&mut raw, &timeout_key).await > 0);
        assert!(pttl(&mut raw, "a").await > 0);
        assert!(pttl(&mut raw, "b").await > 0);
    }
    // A key that got lost is written anew, and one that was cut is extended.
    raw.cmd(&["DEL", &timeout_key]).await;
    until("it is back", async || exists(&mut raw, &timeout_key).await).await;
    raw.cmd(&["PEXPIRE", "a", "250"]).await;
    tokio::time::sleep(ms(500)).await;
    assert!(reading.is_held() && exists(&mut raw, "a").await);
}

#[tokio::test]
async fn the_lease_of_a_reader_ends_by_itself_and_only_its_own() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (a, b) = (locks(&server).await, locks(&server).await);
    let short = within("a read", a.rw_lock("a").read().lease(ms(300)).into_future())
        .await
        .unwrap();
    let long = read(&a.rw_lock("a")).await;
    assert_eq!(short.lost().await, LostReason::Expired);
    assert!(long.is_held());
    assert_eq!(long.release().await.unwrap(), Release::Released);
    // Its field is there still, under the expiry of the other; a writer does not mind.
    assert!(exists(&mut raw, "a").await);
    let writing = write(&b.rw_lock("a")).await;
    assert!(writing.is_held());
    assert_eq!(short.release().await.unwrap(), Release::AlreadyGone);
    assert!(writing.is_held());
}

#[tokio::test]
async fn a_hold_that_is_gone_is_lost() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = short_locks(&server, ms(600)).await;
    let (reading, writing) = (
        read(&locks.rw_lock("a")).await,
        write(&locks.rw_lock("b")).await,
    );
    raw.cmd(&["DEL", "a", "b"]).await;
    let lost = within("the loss", async {
        (reading.lost().await, writing.lost().await)
    })
    .await;
    assert_eq!(lost, (LostReason::Stolen, LostReason::Stolen));
    let error = writing.downgrade().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    let error = reading.try_upgrade().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert!(!exists(&mut raw, "a").await);
}

#[tokio::test]
async fn a_forced_unlock_takes_it_from_readers_and_serves_the_line() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (a, b) = (locks(&server).await, locks(&server).await);
    let lock = a.rw_lock("a");
    let (one, two) = (read(&lock).await, read(&lock).await);
    let waiting = writer(&mut raw, &b, "a").await;
    assert!(lock.force_unlock().await.unwrap());
    assert_eq!(one.lost().await, LostReason::Stolen);
    assert_eq!(two.lost().await, LostReason::Stolen);
    let writing = turn(waiting).await;
    assert!(b.rw_lock("a").force_unlock().await.unwrap());
    assert_eq!(writing.lost().await, LostReason::Stolen);
    assert!(!lock.force_unlock().await.unwrap());
}

#[tokio::test]
async fn reads_and_writes_of_an_owner_nest() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = settled_locks(&server, &mut raw).await;
    let owner = locks.owner();
    let lock = owner.rw_lock("a");

    let writing = write(&lock).await;
    let before = scripts_run(&mut raw).await;
    let (again, reading) = (write(&lock).await, read(&lock).await);
    assert_eq!(scripts_run(&mut raw).await, before);
    assert_eq!(locks.rw_lock("a").try_read().await.unwrap().map(drop), None);
    assert_eq!(again.release().await.unwrap(), Release::StillHeld);
    let reading = reading.try_upgrade().await.unwrap().unwrap();
    assert_eq!(reading.release().await.unwrap(), Release::StillHeld);
    assert_eq!(writing.release().await.unwrap(), Release::Released);

    let reading = read(&lock).await;
    let before = scripts_run(&mut raw).await;
    let again = read(&lock).await;
    let error = lock.write().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Nested);
    assert!(error.to_string().contains("try_upgrade"), "{error}");
    assert_eq!(scripts_run(&mut raw).await, before);
    let again = again.try_upgrade().await.unwrap().unwrap_err();
    drop(again);
    let writing = reading.try_upgrade().await.unwrap().unwrap();
    drop(write(&lock).await);
    let reading = writing.downgrade().await.unwrap();
    drop(read(&lock).await);
    assert_eq!(reading.release().await.unwrap(), Release::Released);
    assert!(!exists(&mut raw, "a").await);
}

#[tokio::test]
async fn a_key_of_another_type_is_an_error_and_stays_what_it_is() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = locks(&server).await;
    raw.cmd(&["SET", "text", "mine"]).await;
    raw.cmd(&["HSET", "hash", "field", "mine"]).await;
    raw.cmd(&["PEXPIRE", "hash", "60000"]).await;
    for name in ["text", "hash"] {
        let lock = locks.rw_lock(name);
        let errors = [
            lock.read().await.unwrap_err(),
            lock.write().await.unwrap_err(),
            lock.try_read().await.unwrap_err(),
            lock.try_write().await.unwrap_err(),
            lock.force_unlock().await.unwrap_err(),
            lock.remaining().await.unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::WrongType, "{error}");
        }
    }
    assert_eq!(raw.cmd(&["GET", "text"]).await.str(), "mine");
    assert_eq!(fields(&mut raw, "hash").await, "field=mine");
}

#[tokio::test]
async fn a_mutex_of_the_name_excludes_readers_and_is_excluded_by_them() {
    let server = Server::start().await;
    let locks = locks(&server).await;
    let held = locks.mutex("a").lock().await.unwrap();
    assert_eq!(locks.rw_lock("a").try_read().await.unwrap().map(drop), None);
    assert_eq!(
        locks.rw_lock("a").try_write().await.unwrap().map(drop),
        None
    );
    held.release().await.unwrap();
    let reading = read(&locks.rw_lock("a")).await;
    assert!(locks.mutex("a").try_lock().await.unwrap().is_none());
    reading.release().await.unwrap();
    assert!(locks.mutex("a").try_lock().await.unwrap().is_some());
}

#[tokio::test]
async fn inspecting_tells_readers_writers_and_who_waits() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (a, b) = (locks(&server).await, locks(&server).await);
    let lock = a.rw_lock("a");
    assert_eq!(lock.inspect().await.unwrap().holders().len(), 0);
    let (one, two) = (read(&lock).await, read(&b.rw_lock("a")).await);
    let waiting = writer(&mut raw, &b, "a").await;
    let seen = lock.inspect().await.unwrap();
    let clients: Vec<_> = seen.holders().iter().map(|one| one.client()).collect();
    assert!(clients.contains(&a.client_id()) && clients.contains(&b.client_id()));
    let most = Duration::from_secs(30);
    for holder in seen.holders() {
        assert_eq!(holder.count(), 1);
        assert!(holder.remaining().unwrap() <= most);
    }
    assert_eq!(seen.waiting(), 1);
    assert_eq!(seen.waiters()[0].client(), b.client_id());
    drop((one, two));
    let writing = turn(waiting).await;
    let seen = lock.inspect().await.unwrap();
    let [holder] = seen.holders() else {
        panic!("{seen:?}");
    };
    assert_eq!(holder.token(), Some(writing.token()));
    assert!(!holder.id().contains("write"));
    assert_eq!(seen.waiting(), 0);
}

#[tokio::test]
async fn the_locks_of_an_owner_are_handed_to_another_process() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (here, there) = (locks(&server).await, locks(&server).await);
    let owner = here.owner();
    let writing = write(&owner.rw_lock("a")).await;
    let reading = read(&owner.rw_lock("b")).await;
    let heir = there.owner_from(owner.id());
    let token = writing.token();
    let writing_there = within("a write", heir.rw_lock("a").write().into_future()).await;
    let writing_there = writing_there.unwrap();
    assert!(writing_there.token() > token);
    let reading_there = read(&heir.rw_lock("b")).await;
    assert_eq!(fields(&mut raw, "a").await.matches('=').count(), 2);
    assert_eq!(fields(&mut raw, "b").await.matches('=').count(), 2);
    assert_eq!(raw.cmd(&["KEYS", "*rwlock*"]).await.array().len(), 1);
    assert_eq!(writing.release().await.unwrap(), Release::AlreadyGone);
    assert_eq!(reading.release().await.unwrap(), Release::AlreadyGone);
    assert_eq!(writing_there.release().await.unwrap(), Release::Released);
    assert_eq!(reading_there.release().await.unwrap(), Release::Released);
}

#[tokio::test]
async fn tickets_of_processes_that_are_gone_are_skipped() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (ours, theirs) = (locks(&server).await, locks(&server).await);
    let held = write(&ours.rw_lock("a")).await;
    let gone = "0190c0de-0000-7000-8000-00000000000a";
    let dead = [
        format!("{gone}:7r"),
        format!("{gone}:8r"),
        format!("{gone}:9w"),
    ];
    for ticket in &dead {
        raw.cmd(&["ZADD", "leasehold_line:{a}", "1", ticket]).await;
    }
    let waiting = reader(&mut raw, &theirs, "a").await;
    held.release().await.unwrap();
    let reading = turn(waiting).await;
    assert_eq!(tickets(&mut raw, "a").await, 0);
    assert_eq!(
        raw.cmd(&["HLEN", "a"]).await.int(),
        2,
        "its mode and the reader"
    );
    reading.release().await.unwrap();
    assert!(!exists(&mut raw, "a").await);
    assert_everything_expires(&mut raw).await;
}

/// A ticket that somebody else writes, with a number that servers refuse as a time.
#[tokio::test]
async fn a_ticket_with_zeros_before_its_lease_leaves_no_lock_without_an_expiry() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let locks = locks(&server).await;
    let gone = "0190c0de-0000-7000-8000-00000000000a";
    for (ticket, is_granted) in [
        (format!("{gone}:7|00500w"), true),
        (format!("{gone}:7|00500r"), true),
        (format!("{gone}:7|00w"), false),
        (format!("{gone}:7|0r"), false),
    ] {
        let held = write(&locks.rw_lock("a")).await;
        raw.cmd(&["ZADD", "leasehold_line:{a}", "1", &ticket]).await;
        raw.cmd(&["PEXPIRE", "leasehold_line:{a}", "60000"]).await;
        assert_eq!(held.release().await.unwrap(), Release::Released);
        assert_eq!(exists(&mut raw, "a").await, is_granted, "{ticket}");
        assert_everything_expires(&mut raw).await;
        raw.cmd(&["DEL", "a"]).await;
    }
}
