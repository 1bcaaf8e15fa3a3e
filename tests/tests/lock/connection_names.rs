//! The names that `CLIENT LIST` shows for the connections of a process.

use std::collections::BTreeSet;

use leasehold::{Locks, Redlock};
use leasehold_testkit::{Cluster, Raw, Sentinels, Server};

use crate::support::{connect, take, until, within};

/// The names of the connections to a server, without that of the test.
async fn names(raw: &mut Raw) -> BTreeSet<String> {
    let clients = raw.cmd(&["CLIENT", "LIST"]).await;
    let lines = clients.str().lines();
    // The test's own is the one that asks; those between servers are no clients of ours.
    lines
        .filter(|line| !line.contains("cmd=client") && !line.contains("flags=S"))
        .filter_map(|line| line.split(' ').find_map(|part| part.strip_prefix("name=")))
        // One that has no name yet is about to shake hands.
        .filter(|name| !name.is_empty() && !name.starts_with("sentinel-"))
        .map(str::to_owned)
        .collect()
}

fn own() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    format!("leasehold:{}:{}", host.trim(), std::process::id())
}

/// Waits until exactly these connections are there.
async fn are_named(raw: &mut Raw, expected: &[&str]) {
    let expected: BTreeSet<String> = expected.iter().map(|name| (*name).to_owned()).collect();
    until("the names", async || {
        let found = names(raw).await;
        if found == expected {
            Ok(())
        } else {
            Err(format!("{found:?} instead of {expected:?}"))
        }
    })
    .await;
}

#[tokio::test]
async fn connections_tell_host_and_process_and_those_for_renewals_that_too() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (own, renewal) = (own(), own() + ":renewal");
    let locks = connect(server.url()).await;
    are_named(&mut raw, &[&own]).await;
    let guard = take(&locks, "a").await;
    are_named(&mut raw, &[&own, &renewal]).await;
    drop((guard, locks));
    are_named(&mut raw, &[]).await;

    let given = connect(server.url() + "?client_name=billing").await;
    let guard = take(&given, "a").await;
    are_named(&mut raw, &["billing", "billing:renewal"]).await;
    drop((guard, given));

    let redlock = Redlock::connect([server.url()]).await.unwrap();
    are_named(&mut raw, &[&own]).await;
    drop(redlock);
}

#[tokio::test]
async fn connections_to_clusters_and_sentinels_are_named_too() {
    let cluster = Cluster::builder().masters(2).replicas(0).start().await;
    let locks = connect(cluster.url()).await;
    for master in [0, 1] {
        let mut raw = cluster.raw(master).await;
        let guard = take(&locks, &cluster.key_at(master, "k").await).await;
        until("the names", async || {
            let found = names(&mut raw).await;
            found.contains(&own()) && found.contains(&(own() + ":renewal"))
        })
        .await;
        let found = names(&mut raw).await;
        assert!(
            found.iter().all(|name| name.starts_with(&own())),
            "{found:?}"
        );
        drop(guard);
    }

    let sentinels = Sentinels::start().await;
    let locks = within("the master", Locks::connect(sentinels.url()))
        .await
        .unwrap();
    let _guard = take(&locks, "a").await;
    let master = sentinels.master().await.unwrap();
    for server in [sentinels.node(master), sentinels.sentinel(0)] {
        let mut raw = server.raw().await;
        until("the names", async || names(&mut raw).await.contains(&own())).await;
        let found = names(&mut raw).await;
        assert!(
            found.iter().all(|name| name.starts_with(&own())),
            "{found:?}"
        );
    }
}
