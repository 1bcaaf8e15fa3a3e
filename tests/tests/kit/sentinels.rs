//! The kit's replicas and sentinels do what tests rely on.

use std::time::Instant;

use leasehold_testkit::{Replicas, Sentinels, until};

#[tokio::test]
async fn replicas_follow_as_soon_as_they_have_started() {
    let replicas = Replicas::builder()
        .replicas(2)
        .requirepass("s3cret")
        .start()
        .await;
    let mut master = replicas.node(0).raw().await;
    assert!(master.cmd(&["SET", "k", "1", "PX", "60000"]).await.is_ok());
    assert_eq!(master.cmd(&["WAIT", "2", "10000"]).await.int(), 2);
    assert_eq!(replicas.role(0).await.as_deref(), Some("master"));
    for index in 1..replicas.len() {
        assert_eq!(replicas.role(index).await.as_deref(), Some("slave"));
        let refused = replicas
            .node(index)
            .raw()
            .await
            .cmd(&["SET", "k", "2"])
            .await;
        assert!(refused.error().unwrap().starts_with("READONLY"));
    }
    replicas.node(1).pause();
    assert_eq!(replicas.role(1).await, None);
    assert!(replicas.url().contains(":s3cret@"));
}

#[tokio::test]
async fn sentinels_replace_a_master_that_is_killed_frozen_or_told_to_go() {
    let begun = Instant::now();
    let sentinels = Sentinels::start().await;
    println!(
        "1 + 2 servers with 3 sentinels are ready after {:?}",
        begun.elapsed()
    );
    assert_eq!(sentinels.master().await, Some(0));
    assert!(sentinels.url().ends_with("/mymaster"));

    let second = sentinels.failover().await;
    assert_ne!(second, 0);
    assert_eq!(sentinels.wait_for_writable().await, second);
    sentinels.servers().wait_until_linked(2).await;

    sentinels.node(second).kill();
    let killed = Instant::now();
    let third = sentinels.wait_for_writable().await;
    println!("kill -9 to writable: {:?}", killed.elapsed());
    assert_ne!(third, second);
    sentinels.node(second).restart().await;
    sentinels.servers().wait_until_linked(2).await;

    sentinels.node(third).pause();
    let frozen = Instant::now();
    let fourth = sentinels.wait_for_writable().await;
    println!("SIGSTOP to writable: {:?}", frozen.elapsed());
    assert_ne!(fourth, third);
    sentinels.node(third).resume();
    sentinels.servers().wait_until_linked(2).await;
}

#[tokio::test]
async fn sentinels_have_a_password_of_their_own_and_remember_across_a_restart() {
    let sentinels = Sentinels::builder()
        .requirepass("servers")
        .sentinel_requirepass("theirs")
        .start()
        .await;
    assert!(
        sentinels.url().starts_with("redis-sentinel://:servers@"),
        "{}",
        sentinels.url()
    );
    assert!(
        sentinels
            .url()
            .ends_with("/mymaster?sentinel_password=theirs"),
        "{}",
        sentinels.url()
    );
    let mut stranger = leasehold_testkit::Raw::connect(sentinels.sentinel(0).addr())
        .await
        .unwrap();
    assert!(
        stranger
            .cmd(&["SENTINEL", "MASTERS"])
            .await
            .error()
            .unwrap()
            .starts_with("NOAUTH")
    );

    let master = sentinels.failover().await;
    sentinels.sentinel(1).kill();
    assert_eq!(sentinels.named_by(1).await, None);
    // Of the others one may not have heard of the new master yet.
    until("two of three are enough", async || {
        match sentinels.master().await {
            Some(named) if named == master => Ok(()),
            named => Err(format!("{named:?}")),
        }
    })
    .await;
    sentinels.restart_sentinel(1).await;
    until("it remembers, or hears of it", async || {
        match sentinels.named_by(1).await {
            Some(named) if named == master => Ok(()),
            named => Err(format!("{named:?}")),
        }
    })
    .await;
}
