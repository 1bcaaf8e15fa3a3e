//! What the server executes for each operation of a semaphore, those of scripts and the scripts themselves.

use std::future::IntoFuture;
use std::time::Duration;

use leasehold::{Interop, Locks};
use leasehold_testkit::Server;

use crate::support::{commands, executed, ms, tickets, until, within};

async fn locks(server: &Server, interop: Interop) -> Locks {
    Locks::builder(server.url())
        .interop(interop)
        .lease(Duration::from_secs(600))
        .connect()
        .await
        .unwrap()
}

#[tokio::test]
async fn each_operation_executes_these_commands() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    for (interop, expected) in [
        (Interop::Off, [11, 9, 11, 13, 9]),
        (Interop::Redisson, [9, 10, 9, 11, 10]),
    ] {
        raw.cmd(&["FLUSHALL"]).await;
        let ours = locks(&server, interop).await;
        let semaphore = ours.semaphore("a", 5);
        // The connection of the renewal thread is made, and the keys.
        let first = semaphore.acquire().await.unwrap();
        tokio::time::sleep(ms(200)).await;
        first.release().await.unwrap();

        let try_one = async || semaphore.try_acquire().await.unwrap().unwrap();
        let (take, one) = executed(&mut raw, try_one).await;
        let (give_back, _) = executed(&mut raw, async || one.release().await.unwrap()).await;
        let try_five = async || semaphore.try_acquire_many(5).await.unwrap().unwrap();
        let (take_five, mut five) = executed(&mut raw, try_five).await;
        let two = five.split(2).unwrap();
        let (beside, _) = executed(&mut raw, async || two.release().await.unwrap()).await;
        // The keys' expiry is put off.
        tokio::time::sleep(ms(20)).await;
        let again = async || semaphore.try_acquire_many(2).await.unwrap().unwrap();
        let (take_beside, two) = executed(&mut raw, again).await;
        drop((two, five));
        let all = [take, give_back, take_five, take_beside, beside];
        println!("{interop:?}: {all:?}");
        assert_eq!(all, expected, "{interop:?}");
    }
}

/// A hand-off between two processes: joining the line, and a release that grants; the subscription is there.
#[tokio::test]
async fn a_hand_off_takes_two_requests() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (ours, theirs) = (
        locks(&server, Interop::Off).await,
        locks(&server, Interop::Off).await,
    );
    let (semaphore, other) = (ours.semaphore("a", 1), theirs.semaphore("a", 1));
    let mut counts = Vec::new();
    for _ in 0..3 {
        let held = semaphore.acquire().await.unwrap();
        let before = commands(&mut raw).await;
        let waiter = tokio::spawn(other.acquire().into_future());
        let mut asked = 0;
        until("a ticket", async || {
            asked += 1;
            tickets(&mut raw, "a").await == 1
        })
        .await;
        held.release().await.unwrap();
        let next = within("its turn", waiter).await.unwrap().unwrap();
        counts.push(commands(&mut raw).await - before - asked);
        next.release().await.unwrap();
    }
    println!("{counts:?}");
    // The entry of a process is written in the background, between any two of them.
    assert_eq!(counts.iter().min(), Some(&29), "{counts:?}");
}
