//! What the server executes for each operation of a read-write lock, those of scripts and the scripts themselves.

use std::time::Duration;

use leasehold::{Interop, Locks};
use leasehold_testkit::Server;

use crate::rw_lock::{read, write};
use crate::support::{commands, executed, ms, tickets, until, within};

/// Locks whose scripts the server knows, and whose renewal thread is connected.
async fn warm_locks(server: &Server, interop: Interop) -> Locks {
    let locks = Locks::builder(server.url())
        .interop(interop)
        .lease(Duration::from_secs(600))
        .connect()
        .await
        .unwrap();
    let lock = locks.rw_lock("warm");
    let (one, two) = (read(&lock).await, read(&lock).await);
    tokio::time::sleep(ms(200)).await;
    two.release().await.unwrap();
    let upgraded = one.try_upgrade().await.unwrap().unwrap();
    upgraded.downgrade().await.unwrap().release().await.unwrap();
    write(&lock).await.release().await.unwrap();
    locks
}

#[tokio::test]
async fn each_operation_executes_these_commands() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    for (interop, expected) in [
        (Interop::Off, [7, 5, 7, 5, 0, 0, 10, 12]),
        (Interop::Redisson, [7, 6, 7, 6, 0, 0, 10, 14]),
    ] {
        let locks = warm_locks(&server, interop).await;
        let lock = locks.rw_lock("a");
        let (take_write, writing) = executed(&mut raw, async || write(&lock).await).await;
        let (end_write, _) = executed(&mut raw, async || writing.release().await).await;
        let (take_read, reading) = executed(&mut raw, async || read(&lock).await).await;
        let (share, beside) = executed(&mut raw, async || read(&lock).await).await;
        let (end_share, _) = executed(&mut raw, async || beside.release().await).await;
        let (upgrade, writing) = executed(&mut raw, async || {
            reading.try_upgrade().await.unwrap().unwrap()
        })
        .await;
        let (downgrade, reading) =
            executed(&mut raw, async || writing.downgrade().await.unwrap()).await;
        let (end_read, _) = executed(&mut raw, async || reading.release().await).await;
        let all = [
            take_read, end_read, take_write, end_write, share, end_share, upgrade, downgrade,
        ];
        println!("{interop:?}: {all:?}");
        assert_eq!(all, expected, "{interop:?}");
    }
}

/// A writer that waits for a reader elsewhere: its place in line with the notice, and the release that lets it in.
#[tokio::test]
async fn a_hand_off_takes_two_requests() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (ours, theirs) = (
        warm_locks(&server, Interop::Off).await,
        warm_locks(&server, Interop::Off).await,
    );
    let (lock, other) = (ours.rw_lock("a"), theirs.rw_lock("a"));
    let mut counts = Vec::new();
    for _ in 0..3 {
        let held = read(&lock).await;
        let before = commands(&mut raw).await;
        let waiting = tokio::spawn(other.write().into_future());
        let mut asked = 0;
        until("a ticket", async || {
            asked += 1;
            tickets(&mut raw, "a").await == 1
        })
        .await;
        held.release().await.unwrap();
        let next = within("its turn", waiting).await.unwrap().unwrap();
        counts.push(commands(&mut raw).await - before - asked);
        next.release().await.unwrap();
    }
    println!("{counts:?}");
    assert_eq!(counts, [31, 31, 31]);
}
