//! `rediss-cluster://`: certificates are issued for names, so nodes must be addressed by the names
//! that they announce.

use std::time::Duration;

use leasehold::{Error, ErrorKind, Locks};
use leasehold_cluster::{Client, Target};
use leasehold_resp::Command;
use leasehold_testkit::cluster::ClusterBuilder;
use leasehold_testkit::tls::{Identity, knows, speaks_tls};
use leasehold_testkit::{Cluster, Failover, until};

use crate::support::{ms, taken, within};

const LEASE: Duration = Duration::from_secs(5);

/// Settings with which servers announce names.
const NAMES: [&str; 2] = [
    "cluster-announce-hostname localhost",
    "cluster-preferred-endpoint-type hostname",
];

/// Nodes that show `identity` to each other and to clients.
fn nodes(identity: &Identity, more: &[&str]) -> ClusterBuilder {
    let lines = identity
        .lines()
        .into_iter()
        .chain(more.iter().map(|line| (*line).to_owned()));
    lines.fold(Cluster::builder().tls(), ClusterBuilder::config)
}

/// Whether nodes can announce names. Redis 6.2 cannot.
async fn can_announce() -> bool {
    if !speaks_tls().await {
        return false;
    }
    let can = knows("cluster-announce-hostname").await;
    if !can {
        eprintln!("skipped: nodes of this server cannot announce names");
    }
    can
}

async fn locks(
    cluster: &Cluster,
    identity: &Identity,
    host: &str,
    seeds: &[usize],
) -> Result<Locks, Error> {
    let builder = Locks::builder(cluster.tls_url_of(host, seeds)).tls(identity.authority.trusted());
    builder
        .lease(LEASE)
        .command_timeout(ms(2000))
        .connect()
        .await
}

/// One holds a lock at every master, another one waits for it, and is woken by the release.
async fn use_everywhere(cluster: &Cluster, ours: &Locks, theirs: &Locks, prefix: &str) {
    for master in 0..cluster.masters() {
        let name = cluster.key_at(master, prefix).await;
        let guard = taken(ours, &name).await;
        assert!(theirs.mutex(&name).try_lock().await.unwrap().is_none());
        let lock = theirs.mutex(&name).lock();
        let waiter = tokio::spawn(async move { lock.await });
        guard.release().await.unwrap();
        let theirs = within("the waiter", waiter).await.unwrap().unwrap();
        theirs.release().await.unwrap();
    }
}

#[tokio::test]
async fn nodes_are_called_by_the_names_they_announce_and_a_failover_changes_nothing_about_it() {
    if !can_announce().await {
        return;
    }
    let identity = Identity::new(&["localhost"]);
    let cluster = nodes(&identity, &NAMES).start().await;
    let ours = locks(&cluster, &identity, "localhost", &[0]).await.unwrap();
    let theirs = locks(&cluster, &identity, "localhost", &[1, 2])
        .await
        .unwrap();
    use_everywhere(&cluster, &ours, &theirs, "before").await;

    let name = cluster.key_at(0, "held").await;
    let guard = taken(&ours, &name).await;
    cluster.failover(3, Failover::Graceful).await;
    assert!(theirs.mutex(&name).try_lock().await.unwrap().is_none());
    guard.release().await.unwrap();

    cluster.kill(3);
    cluster.wait_for_writable(&name).await;
    let guard = taken(&theirs, &name).await;
    assert!(guard.is_held());
}

/// The servers' default: the map has addresses with names beside them, and a redirect has an
/// address alone.
#[tokio::test]
async fn a_redirect_to_an_address_reaches_the_node_that_the_map_has_by_name() {
    if !can_announce().await {
        return;
    }
    let identity = Identity::new(&["localhost"]);
    let cluster = nodes(&identity, &NAMES[..1]).replicas(0).start().await;
    let mut target =
        Target::parse(&(cluster.tls_url_of("localhost", &[0]) + "?client_name=ours")).unwrap();
    target
        .endpoints_mut()
        .into_iter()
        .for_each(|seed| seed.tls_config = Some(identity.authority.trusted()));
    let client = Client::connect(target).await.unwrap();

    for master in 0..cluster.masters() {
        let key = cluster.key_at(master, "used").await;
        client
            .call(key.as_bytes(), &Command::new("GET").arg(&key))
            .await
            .unwrap();
    }
    // Redirected once, and permanently.
    let (asked, moved) = (
        cluster.key_at(0, "asked").await,
        cluster.key_at(0, "moved").await,
    );
    let migration = cluster.migration(cluster.slot_of(&asked).await, 1).await;
    migration.begin().await;
    let set = Command::new("SET")
        .arg(&asked)
        .arg("1")
        .arg("PX")
        .arg("60000");
    client.call(asked.as_bytes(), &set).await.unwrap();
    let migration = cluster.migration(cluster.slot_of(&moved).await, 1).await;
    migration.begin().await;
    migration.move_all_keys().await;
    migration.finish().await;
    let set = Command::new("SET")
        .arg(&moved)
        .arg("1")
        .arg("PX")
        .arg("60000");
    client.call(moved.as_bytes(), &set).await.unwrap();
    // One node, whichever way it was named.
    assert_eq!(
        client.node(moved.as_bytes()).as_ref(),
        format!("localhost:{}", cluster.node(1).tls_port())
    );
    until("there is one connection to it", async || {
        // A node that was only asked for the map is dropped at the next refresh.
        let list = cluster
            .raw(1)
            .await
            .cmd(&["CLIENT", "LIST", "TYPE", "normal"])
            .await;
        let ours: Vec<_> = list
            .str()
            .lines()
            .filter(|line| line.contains(" name=ours "))
            .collect();
        if ours.len() == 1 {
            Ok(())
        } else {
            Err(format!("{ours:?}"))
        }
    })
    .await;
}

#[tokio::test]
async fn a_certificate_for_another_name_is_refused_and_the_node_is_named() {
    if !can_announce().await {
        return;
    }
    let identity = Identity::new(&["elsewhere.example"]);
    let cluster = nodes(&identity, &NAMES)
        .masters(1)
        .replicas(0)
        .start()
        .await;
    let error = within("a refusal", locks(&cluster, &identity, "localhost", &[0]))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    let (text, node) = (
        error.to_string(),
        format!("localhost:{}", cluster.node(0).tls_port()),
    );
    assert!(
        text.contains(&node) && text.contains("certificate") && text.contains("elsewhere.example"),
        "{text}"
    );
}

/// No node announces a name: the seed is reached by the name in the URL, and the other nodes by
/// their addresses.
#[tokio::test]
async fn addresses_with_certificates_for_names_are_an_error_that_says_so() {
    if !speaks_tls().await {
        return;
    }
    let identity = Identity::new(&["localhost"]);
    let cluster = nodes(&identity, &[]).masters(2).replicas(0).start().await;
    let name = cluster.key_at(1, "lock").await;
    let connected = within("the seed", locks(&cluster, &identity, "localhost", &[0]))
        .await
        .unwrap();
    let error = within("a refusal", connected.mutex(&name).try_lock().into_future())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    let (text, node) = (
        error.to_string(),
        format!("127.0.0.1:{}", cluster.node(1).tls_port()),
    );
    assert!(
        text.contains(&node) && text.contains("certificate") && text.contains("localhost"),
        "{text}"
    );
    println!("{text}");

    // A certificate may have addresses as well.
    let identity = Identity::new(&["localhost", "127.0.0.1"]);
    let cluster = nodes(&identity, &[]).masters(2).replicas(0).start().await;
    let connected = locks(&cluster, &identity, "localhost", &[0]).await.unwrap();
    let name = cluster.key_at(1, "lock").await;
    drop(taken(&connected, &name).await);
}
