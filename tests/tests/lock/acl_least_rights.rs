//! The least rights that a user of locks needs, as the README lists them: with all of them
//! everything works, and each missing right has its own effect.

use std::time::{Duration, Instant};

use leasehold::{Error, ErrorKind, Locks, Release};
use leasehold_testkit::{Cluster, Raw, Replicas, Server};

use crate::support::{ms, until, within};

/// For the locks of the namespace `shop`.
const PATTERNS: &[&str] = &[
    "~shop:*",
    "~redisson_lock_token:{shop:*",
    "&redisson_lock__channel:{shop:*",
];
/// Commands that run scripts, commands in the scripts, and reads.
const COMMANDS: &[&str] = &[
    "+eval", "+evalsha", "+hexists", "+pttl", "+get", "+time", "+hset", "+pexpire", "+set",
    "+hdel", "+hscan", "+del",
];
/// Asked before waiters are woken, and at each connect; a denial prevents nothing, but is logged.
const NOTED: &[&str] = &["+exists", "+info"];
/// Pub/sub, which wakes waiters.
const CHANNELS: &[&str] = &["+publish", "+subscribe", "+unsubscribe"];
/// The same where channels belong to slots.
const SHARDED: &[&str] = &["+spublish", "+ssubscribe", "+sunsubscribe"];
/// Commands for a cluster's map and redirects.
const CLUSTER: &[&str] = &["+cluster|slots", "+pubsub|shardnumsub", "+asking"];

/// Further rights of locks that replicas confirm, besides `+info`.
const REPLICAS: &[&str] = &["+wait"];
/// The same in a cluster.
const CLUSTER_REPLICAS: &[&str] = &["+cluster|myid", "+cluster|replicas", "+cluster|nodes"];

/// The lease. A waiter without the message of a release tries again after this time.
const LEASE: Duration = Duration::from_secs(3);

/// Servers on which users are created.
struct Place {
    url: String,
    admins: Vec<Raw>,
    users: usize,
}

impl Place {
    /// Two clients, as a user with only these rights.
    async fn user(&mut self, rights: &[&str]) -> Result<(Locks, Locks), Error> {
        self.users += 1;
        let user = format!("user{}", self.users);
        // Redis 6.2 gives a new user every channel.
        let mut command = vec![
            "ACL",
            "SETUSER",
            &user,
            "reset",
            "resetchannels",
            "on",
            ">secret",
        ];
        command.extend(rights);
        for admin in &mut self.admins {
            let made = admin.cmd(&command).await;
            assert!(made.is_ok(), "{made:?}");
        }
        let url = self.url.replace("://", &format!("://{user}:secret@"));
        let locks = || Locks::builder(&url).namespace("shop").lease(LEASE);
        Ok((locks().connect().await?, locks().connect().await?))
    }

    /// Denials of the first server, for all users.
    async fn denied(&mut self) -> Vec<String> {
        let log = self.admins[0].cmd(&["ACL", "LOG"]).await;
        let mut denied: Vec<String> = log
            .array()
            .iter()
            .map(|entry| entry.get("object").unwrap().str().into())
            .collect();
        // Every handshake tries `CLIENT SETINFO`; its denial has no effect.
        denied.retain(|object| !object.starts_with("client"));
        denied.dedup();
        denied
    }
}

async fn single() -> (Server, Place) {
    let server = Server::start().await;
    let place = Place {
        url: server.url(),
        admins: vec![server.raw().await],
        users: 0,
    };
    (server, place)
}

async fn cluster() -> (Cluster, Place, Vec<&'static str>) {
    let cluster = Cluster::builder().masters(2).replicas(0).start().await;
    let admins = vec![cluster.raw(0).await, cluster.raw(1).await];
    let channels = if cluster.node(0).knows("SPUBLISH").await {
        SHARDED
    } else {
        CHANNELS
    };
    let place = Place {
        url: cluster.url(),
        admins,
        users: 0,
    };
    (
        cluster,
        place,
        [PATTERNS, COMMANDS, NOTED, channels, CLUSTER].concat(),
    )
}

fn without<'a>(rights: &[&'a str], one: &str) -> Vec<&'a str> {
    let fewer: Vec<_> = rights
        .iter()
        .copied()
        .filter(|right| *right != one)
        .collect();
    assert_eq!(
        fewer.len() + 1,
        rights.len(),
        "{one} is not among the rights"
    );
    fewer
}

/// Every operation but waiting.
async fn operations((ours, theirs): &(Locks, Locks), name: &str) -> Result<(), Error> {
    // Once with the text of the scripts, and once by their names.
    for _ in 0..2 {
        let guard = ours.mutex(name).lock().await?;
        assert!(theirs.mutex(name).try_lock().await?.is_none());
        assert_eq!(
            theirs.mutex(name).holder().await?.unwrap().client(),
            ours.client_id()
        );
        assert!(theirs.mutex(name).remaining().await?.is_some());
        assert_eq!(guard.release().await?, Release::Released);
        let guard = ours
            .mutex(name)
            .try_lock_for(ms(100))
            .await?
            .expect("it is free");
        assert!(theirs.mutex(name).force_unlock().await?);
        assert_eq!(guard.release().await?, Release::AlreadyGone);
    }
    Ok(())
}

/// One waits, the other one releases. Returns whether the message woke the waiter, rather than the
/// end of the lease.
async fn is_heard((ours, theirs): &(Locks, Locks), name: &str) -> bool {
    let since = Instant::now();
    let guard = ours.mutex(name).lock().lease(LEASE).await.unwrap();
    let lock = theirs.mutex(name).lock();
    let waiter = tokio::spawn(async move { lock.await.unwrap() });
    // Longer than it takes to subscribe.
    tokio::time::sleep(ms(500)).await;
    guard.release().await.unwrap();
    drop(within("the waiter", waiter).await.unwrap());
    since.elapsed() < LEASE
}

async fn everything_works(users: &(Locks, Locks)) {
    operations(users, "a").await.unwrap();
    // On a machine that is very busy it may take as long as the lease.
    until("a release is heard", async || is_heard(users, "a").await).await;
    let guard = users.0.mutex("b").lock().await.unwrap();
    tokio::time::sleep(LEASE + LEASE / 2).await;
    assert!(guard.is_held(), "renewed");
    assert_eq!(guard.release().await.unwrap(), Release::Released);
}

/// Without any of these something is denied, and the error says so.
async fn each_is_missed(place: &mut Place, rights: &[&str], needed: &[&str]) {
    for missing in needed {
        let users = place.user(&without(rights, missing)).await;
        let denied = match &users {
            Ok(users) => operations(users, &format!("without{}", place.users)).await,
            Err(_) => users.map(drop),
        };
        let error = denied.expect_err(missing);
        assert_eq!(
            error.kind(),
            ErrorKind::Denied,
            "without {missing}: {error}"
        );
        assert!(error.to_string().contains("ACL"), "{error}");
    }
}

/// Without any of these everything works, but waiters are late.
async fn each_is_heard_of(place: &mut Place, rights: &[&str], needed: &[&str]) {
    for missing in needed {
        let users = place.user(&without(rights, missing)).await.unwrap();
        let name = format!("without{}", place.users);
        operations(&users, &name)
            .await
            .unwrap_or_else(|error| panic!("without {missing}: {error}"));
        assert!(!is_heard(&users, &name).await, "heard without {missing}");
    }
}

#[tokio::test]
async fn a_user_with_the_least_rights_has_the_whole_mutex() {
    let (_server, mut place) = single().await;
    let rights = [PATTERNS, COMMANDS, NOTED, CHANNELS].concat();
    everything_works(&place.user(&rights).await.unwrap()).await;
    assert_eq!(
        place.denied().await,
        [""; 0],
        "something is missing that nobody misses"
    );

    for missing in NOTED {
        let users = place.user(&without(&rights, missing)).await.unwrap();
        everything_works(&users).await;
        assert_eq!(place.denied().await, [missing.trim_start_matches('+')]);
        place.admins[0].cmd(&["ACL", "LOG", "RESET"]).await;
    }
}

#[tokio::test]
async fn each_missing_right_is_an_error_that_says_so_or_makes_waiters_late() {
    let (_server, mut place) = single().await;
    let rights = [PATTERNS, COMMANDS, NOTED, CHANNELS].concat();
    each_is_missed(&mut place, &rights, &PATTERNS[..2]).await;
    each_is_missed(&mut place, &rights, COMMANDS).await;
    each_is_heard_of(
        &mut place,
        &rights,
        &[PATTERNS[2], "+publish", "+subscribe"],
    )
    .await;
}

#[tokio::test]
async fn whoever_may_not_unsubscribe_goes_on_listening() {
    let (server, mut place) = single().await;
    let rights = [PATTERNS, COMMANDS, NOTED, CHANNELS].concat();
    for (rights, left) in [(rights.clone(), 0), (without(&rights, "+unsubscribe"), 1)] {
        let users = place.user(&rights).await.unwrap();
        let mut raw = server.raw().await;
        let guard = users.0.mutex("a").lock().await.unwrap();
        assert!(
            users
                .1
                .mutex("a")
                .try_lock_for(ms(500))
                .await
                .unwrap()
                .is_none()
        );
        guard.release().await.unwrap();
        // Answered after everything that the waiter sent when it gave up.
        assert!(users.1.mutex("a").holder().await.unwrap().is_none());
        assert_eq!(crate::support::listeners(&mut raw, "shop:a").await, left);
    }
}

#[tokio::test]
async fn a_user_with_the_least_rights_has_the_whole_mutex_in_a_cluster() {
    let (cluster, mut place, rights) = cluster().await;
    let users = place.user(&rights).await.unwrap();
    everything_works(&users).await;

    // A new lock in a migrating slot.
    let key = cluster.key_at(0, "shop:k").await;
    let name = key.strip_prefix("shop:").unwrap();
    let slot = cluster.slot_of(&key).await;
    cluster.migration(slot, 1).await.begin().await;
    operations(&users, name).await.unwrap();
    let rights = [&rights[..], REPLICAS, CLUSTER_REPLICAS].concat();
    let unasked = place.user(&without(&rights, "+asking")).await.unwrap();
    // The servers are too young to grant anything that replicas confirm.
    tokio::time::sleep(LEASE).await;
    // The denial is reported at once, not its consequence: two nodes that redirect to each other.
    for replicas in [leasehold::Replicas::None, leasehold::Replicas::AtLeast(1)] {
        let error = unasked
            .0
            .mutex(name)
            .try_lock()
            .replicated(replicas)
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(
            error.to_string().contains("'asking'") && error.to_string().contains("ACL"),
            "{error}"
        );
        assert_eq!(error.node(), cluster.addr(1).to_string());
    }
}

#[tokio::test]
async fn each_missing_right_shows_in_a_cluster_too() {
    let (_cluster, mut place, rights) = cluster().await;
    each_is_missed(&mut place, &rights, &["+cluster|slots"]).await;
    each_is_missed(&mut place, &rights, &PATTERNS[..2]).await;
    each_is_missed(&mut place, &rights, COMMANDS).await;
    if rights.contains(&"+spublish") {
        each_is_missed(&mut place, &rights, &["+pubsub|shardnumsub"]).await;
        let needed = [PATTERNS[2], "+spublish", "+ssubscribe"];
        each_is_heard_of(&mut place, &rights, &needed).await;
    }
}

#[tokio::test]
async fn replicas_and_the_age_of_a_server_are_asked_for_with_rights_of_their_own() {
    let servers = Replicas::builder().replicas(1).start().await;
    let mut place = Place {
        url: servers.url(),
        admins: vec![servers.node(0).raw().await],
        users: 0,
    };
    let rights = [PATTERNS, COMMANDS, NOTED, CHANNELS, REPLICAS].concat();
    let take = async |users: &(Locks, Locks), name: &str| {
        loop {
            let attempt = users.0.mutex(name).try_lock();
            match attempt.replicated(leasehold::Replicas::All).await {
                // The server is too young.
                Ok(None) => tokio::time::sleep(ms(100)).await,
                other => return other,
            }
        }
    };
    let users = place.user(&rights).await.unwrap();
    until("the replica confirms", async || {
        match take(&users, "a").await {
            Ok(Some(guard)) if guard.acknowledged() == 1 => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    let users = place.user(&without(&rights, "+info")).await.unwrap();
    let error = take(&users, "b").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(
        error.to_string().contains("'info'") && error.to_string().contains("ACL"),
        "{error}"
    );
    // The lock was taken by then, and is released.
    let users = place.user(&without(&rights, "+wait")).await.unwrap();
    let error = take(&users, "c").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(
        error.to_string().contains("'wait'") && error.to_string().contains("ACL"),
        "{error}"
    );
    assert_eq!(error.node(), servers.node(0).addr().to_string());
    until("it is given back", async || {
        users.1.mutex("c").holder().await.unwrap().is_none()
    })
    .await;

    // A user without the right to ask for the age.
    place.user(&without(&rights, "+info")).await.unwrap();
    let guarded = |user: &str| {
        let url = servers.url().replace("://", &format!("://{user}:secret@"));
        Locks::builder(url).restart_guard(LEASE).connect()
    };
    let error = guarded("user2").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    place.user(&["+info"]).await.unwrap();
    guarded("user5").await.unwrap();
}
