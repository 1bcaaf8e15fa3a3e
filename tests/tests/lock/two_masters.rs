//! Two servers that both take themselves for the master, as a failover leaves them for moments.

use leasehold::{Guard, Locks};
use leasehold_testkit::{Ledger, Replicas, Scratch, until};

use crate::support::within;

/// A master and its replica, which has just been told to be a master itself. Both go on from the same token.
async fn two_masters() -> Replicas {
    let servers = Replicas::builder().replicas(1).start().await;
    servers.wait_until_linked(1).await;
    let mut old = servers.node(0).raw().await;
    let mut new = servers.node(1).raw().await;
    // An hour ahead, so that neither takes the time for its next token.
    let time = old.cmd(&["TIME"]).await;
    let seconds: u64 = time.array()[0].str().parse().unwrap();
    let ahead = ((seconds + 3_600) * 1_000_000).to_string();
    let counter = "redisson_lock_token:{a}";
    old.cmd(&["SET", counter, &ahead, "PX", "600000"]).await;
    until("the replica has the counter", async || {
        match new.cmd(&["GET", counter]).await {
            counter if counter.is_null() => Err("it has none".into()),
            _ => Ok(()),
        }
    })
    .await;
    new.cmd(&["REPLICAOF", "NO", "ONE"]).await;
    servers
}

#[tokio::test]
async fn the_pair_of_token_and_id_tells_their_holders_apart() {
    let servers = two_masters().await;
    let mut guards: Vec<Guard> = Vec::new();
    for index in 0..2 {
        let locks = Locks::connect(servers.node(index).url()).await.unwrap();
        guards.push(
            within("a lock", locks.mutex("a").lock().into_future())
                .await
                .unwrap(),
        );
    }
    let [one, other] = [&guards[0], &guards[1]];
    // What the documentation says of it: without replicas that confirm, this cannot be kept.
    assert_eq!(one.token(), other.token());
    assert!(one.is_held() && other.is_held());
    assert_ne!(one.id(), other.id());

    let dir = Scratch::new();
    let ledger = Ledger::open(dir.join("ledger"));
    let token = one.token().as_u64();
    for guard in &guards {
        // Which of them is refused by now depends on their ids.
        _ = ledger.begin(token, guard.id()).await;
    }
    let first = ledger.write(token, one.id(), 1).await;
    let second = ledger.write(token, other.id(), 1).await;
    assert!(first.is_ok() != second.is_ok(), "{first:?}, {second:?}");
    assert_eq!(ledger.lost_updates(), 0);
}
