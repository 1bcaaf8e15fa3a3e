//! The least rights that a user of locks needs, as the guide `operating` lists them: with all of them
//! everything works, and each missing right has its own effect.

use std::time::Duration;

use leasehold::{Error, ErrorKind, Interop, Locks, Release};
use leasehold_testkit::statistics::subscribers;
use leasehold_testkit::{Cluster, Cut, Fault, Proxy, Raw, Replicas, Server};

use crate::support::{ms, scripts_run, until, within};

/// For the locks of the namespace `shop`.
const PATTERNS: &[&str] = &["~shop:*", "~redisson_lock_token:{shop:*"];
/// Commands that run scripts, commands in the scripts, and reads.
const COMMANDS: &[&str] = &[
    "+eval", "+evalsha", "+hexists", "+pttl", "+time", "+hset", "+pexpire", "+set", "+hdel",
    "+hscan", "+del",
];
/// A denial prevents nothing, but is logged: asked at each connect, taking a ticket back, and the
/// end of the locks.
const NOTED: &[&str] = &["+info", "+zrem", "+unsubscribe"];
/// The entry that tells whose a lock is; a denial is logged, and prevents nothing else.
const PROCESS: &str = "~lockp:*";
/// After an answer that was lost.
const REPEATED: &str = "+get";

/// The tickets of those who wait, without which they ask again and again.
const LINE: &[&str] = &["~leasehold_line:{shop:*", "+zcard", "+zadd", "+zrank"];
/// The end of the line, behind tickets of a later time: the server's clock was set back.
const CLOCK: &str = "+zrevrange";
/// The place of a ticket that waits for long.
const PLACE: &str = "+zscore";
/// Granting the lock to the first ticket, and its message; without them waiters look by themselves.
const GRANTS: &[&str] = &["+exists", "+zpopmin"];
const MESSAGES: &[&str] = &["&leasehold:*", "+publish", "+subscribe"];
/// The same where channels belong to slots.
const SHARDED_MESSAGES: &[&str] = &["&leasehold_line:{shop:*", "+spublish", "+ssubscribe"];
/// Commands for a cluster's map and redirects.
const CLUSTER: &[&str] = &["+cluster|slots", "+pubsub|shardnumsub", "+asking"];

/// Further rights beside Redisson.
const REDISSON: &[&str] = &[
    "&redisson_lock__channel:{shop:*",
    "+publish",
    "+subscribe",
    "+unsubscribe",
    "+pubsub|numsub",
];

/// Further rights of locks that replicas confirm, besides `+info`.
const REPLICAS: &[&str] = &["+wait"];
/// The same in a cluster.
const CLUSTER_REPLICAS: &[&str] = &["+cluster|myid", "+cluster|replicas", "+cluster|nodes"];

/// The lease. It is renewed while a test waits for longer.
const LEASE: Duration = Duration::from_secs(3);

/// The rights to the whole mutex at one server.
fn all_rights() -> Vec<&'static str> {
    let line = [LINE, &[PLACE, CLOCK], GRANTS, MESSAGES].concat();
    [PATTERNS, COMMANDS, NOTED, &[REPEATED, PROCESS], &line].concat()
}

/// Servers on which users are created.
struct Place {
    url: String,
    admins: Vec<Raw>,
    users: usize,
    /// In a cluster without sharded channels a grant may come from another node than the one that
    /// was asked, whose clock it is dated by: it is confirmed first.
    asks_after_a_grant: bool,
}

impl Place {
    /// Two clients, as a user with only these rights.
    async fn user(&mut self, rights: &[&str]) -> Result<(Locks, Locks), Error> {
        self.user_beside(Interop::Off, rights).await
    }

    async fn user_beside(
        &mut self,
        interop: Interop,
        rights: &[&str],
    ) -> Result<(Locks, Locks), Error> {
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
        let locks = || {
            Locks::builder(&url)
                .namespace("shop")
                .lease(LEASE)
                .interop(interop)
        };
        Ok((locks().connect().await?, locks().connect().await?))
    }

    /// Number of scripts that were asked for, of all servers.
    async fn asked(&mut self) -> u64 {
        let mut asked = 0;
        for admin in &mut self.admins {
            asked += scripts_run(admin).await;
        }
        asked
    }

    /// Denials of the first server, for all users.
    async fn denied(&mut self) -> Vec<String> {
        let log = self.admins[0].cmd(&["ACL", "LOG"]).await;
        let mut denied: Vec<String> = log
            .array()
            .iter()
            .map(|entry| entry.get("object").unwrap().str().into())
            .collect();
        // Every handshake tries `CLIENT SETINFO`, and a connection that was idle for long `PING`: their
        // denial has no effect.
        denied.retain(|object| !object.starts_with("client") && object != "ping");
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
        asks_after_a_grant: false,
    };
    (server, place)
}

async fn cluster() -> (Cluster, Place, Vec<&'static str>) {
    let cluster = Cluster::builder().masters(2).replicas(0).start().await;
    let admins = vec![cluster.raw(0).await, cluster.raw(1).await];
    let mut rights = all_rights();
    let sharded = cluster.node(0).knows("SPUBLISH").await;
    if sharded {
        rights.retain(|right| !MESSAGES.contains(right) && *right != "+unsubscribe");
        rights.extend(SHARDED_MESSAGES);
        rights.push("+sunsubscribe");
    }
    rights.extend(CLUSTER);
    let place = Place {
        url: cluster.url(),
        admins,
        users: 0,
        asks_after_a_grant: !sharded,
    };
    (cluster, place, rights)
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

/// One waits, in line or by asking, and the other one releases. Returns whether the waiter got its turn
/// without asking again.
async fn is_heard(place: &mut Place, (ours, theirs): &(Locks, Locks), name: &str) -> bool {
    let guard = ours.mutex(name).lock().await.unwrap();
    let lock = theirs.mutex(name).lock();
    let waiter = tokio::spawn(async move { lock.await.unwrap() });
    // Longer than it takes to subscribe and to stand in line.
    tokio::time::sleep(ms(400)).await;
    let asked = place.asked().await;
    guard.release().await.unwrap();
    let next = within("the waiter", waiter).await.unwrap();
    let asked = place.asked().await - asked;
    assert_eq!(next.release().await.unwrap(), Release::Released);
    asked == 1
}

async fn everything_works(place: &mut Place, users: &(Locks, Locks)) {
    operations(users, "a").await.unwrap();
    if place.asks_after_a_grant {
        is_heard(place, users, "a").await;
    } else {
        // A look may come in between.
        until("a grant is heard", async || {
            is_heard(place, users, "a").await
        })
        .await;
    }
    let gives_up = users.1.mutex("a").try_lock_for(ms(300));
    let guard = users.0.mutex("a").lock().await.unwrap();
    assert!(gives_up.await.unwrap().is_none());
    assert_eq!(guard.release().await.unwrap(), Release::Released);
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

/// Without any of these everything works, but waiters have to ask again.
async fn each_is_asked_for(place: &mut Place, rights: &[&str], needed: &[&str]) {
    for missing in needed {
        let users = place.user(&without(rights, missing)).await.unwrap();
        let name = format!("without{}", place.users);
        operations(&users, &name)
            .await
            .unwrap_or_else(|error| panic!("without {missing}: {error}"));
        for _ in 0..2 {
            let heard = is_heard(place, &users, &name).await;
            assert!(!heard, "heard without {missing}");
        }
    }
}

#[tokio::test]
async fn a_user_with_the_least_rights_has_the_whole_mutex() {
    let (_server, mut place) = single().await;
    let rights = all_rights();
    let users = place.user(&rights).await.unwrap();
    everything_works(&mut place, &users).await;
    assert_eq!(
        place.denied().await,
        [""; 0],
        "something is missing that nobody misses"
    );

    for missing in NOTED {
        let users = place.user(&without(&rights, missing)).await.unwrap();
        everything_works(&mut place, &users).await;
        drop(users);
        until("the denial", async || {
            let denied = place.denied().await;
            let (denied, expected) = (denied.join(" "), missing.trim_start_matches('+'));
            if denied == expected {
                Ok(())
            } else {
                Err(denied)
            }
        })
        .await;
        place.admins[0].cmd(&["ACL", "LOG", "RESET"]).await;
    }
}

#[tokio::test]
async fn each_missing_right_is_an_error_that_says_so_or_makes_waiters_ask() {
    let (_server, mut place) = single().await;
    let rights = all_rights();
    each_is_missed(&mut place, &rights, PATTERNS).await;
    each_is_missed(&mut place, &rights, COMMANDS).await;
    each_is_asked_for(&mut place, &rights, LINE).await;
    each_is_asked_for(&mut place, &rights, GRANTS).await;
    each_is_asked_for(&mut place, &rights, MESSAGES).await;
}

/// A ticket that cannot be put behind one of a later time has no place: its waiter asks.
#[tokio::test]
async fn after_the_clock_was_set_back_the_end_of_the_line_is_asked_for() {
    let (server, mut place) = single().await;
    let mut raw = server.raw().await;
    for (rights, is_in_line) in [(all_rights(), true), (without(&all_rights(), CLOCK), false)] {
        let users = place.user(&rights).await.unwrap();
        until("a grant is heard", async || {
            is_heard(&mut place, &users, "a").await
        })
        .await;
        let guard = users.0.mutex("a").lock().await.unwrap();
        let later = ["ZADD", "leasehold_line:{shop:a}", "9000000000000000"];
        raw.cmd(&[&later[..], &["dead:1"]].concat()).await;
        let waiter = tokio::spawn(users.1.mutex("a").lock().into_future());
        if is_in_line {
            until("it stands behind", async || {
                let line = raw.cmd(&["ZRANGE", "leasehold_line:{shop:a}", "0", "-1"]);
                let line = line.await;
                line.array().len() == 2 && line.array()[0].str() == "dead:1"
            })
            .await;
        } else {
            until("it is denied", async || {
                place.denied().await == [CLOCK.trim_start_matches('+')]
            })
            .await;
        }
        guard.release().await.unwrap();
        let next = within("its turn", waiter).await.unwrap().unwrap();
        assert_eq!(next.release().await.unwrap(), Release::Released);
        raw.cmd(&["DEL", "leasehold_line:{shop:a}"]).await;
    }
}

/// A user of locks as they were before there was a line.
#[tokio::test]
async fn without_any_right_to_the_line_locks_are_taken_released_and_waited_for() {
    let (server, mut place) = single().await;
    let mut raw = server.raw().await;
    let others = place.user(&all_rights()).await.unwrap();
    let line = [LINE, &[PLACE, CLOCK, "+zrem"], GRANTS, MESSAGES].concat();
    for missing in [&LINE[..1], &line[..]] {
        let mut rights = all_rights();
        rights.retain(|right| !missing.contains(right));
        let users = place.user(&rights).await.unwrap();
        for _ in 0..2 {
            assert!(!is_heard(&mut place, &users, "a").await);
        }
        // Dropped, and many at once.
        let mut guards = Vec::new();
        for n in 0..50 {
            let guard = users.0.mutex(format!("n{n}")).lock().await.unwrap();
            assert!(guard.token().as_u64() > 0);
            guards.push(guard);
        }
        drop(guards);
        until("all of them are released", async || {
            raw.cmd(&["KEYS", "shop:n*"]).await.array().is_empty()
        })
        .await;
        // It finds a lock free beside others who stand in line, and they find it after each release.
        let held = others.0.mutex("a").lock().await.unwrap();
        let poor = tokio::spawn(users.0.mutex("a").lock().into_future());
        let rich = tokio::spawn(others.1.mutex("a").lock().into_future());
        tokio::time::sleep(ms(400)).await;
        held.release().await.unwrap();
        for waiter in [rich, poor] {
            let guard = within("its turn", waiter).await.unwrap().unwrap();
            guard.release().await.unwrap();
        }
        let guard = others.0.mutex("a").lock().await.unwrap();
        assert!(users.0.mutex("a").force_unlock().await.unwrap());
        assert_eq!(guard.release().await.unwrap(), Release::AlreadyGone);
    }
}

/// A waiter whose answer was lost asks again; one that waits for long looks for its place.
#[tokio::test]
async fn rights_that_are_needed_rarely_are_missed_then_and_no_sooner() {
    let (server, mut place) = single().await;
    let rights = all_rights();
    for missing in [REPEATED, PLACE] {
        let users = place.user(&without(&rights, missing)).await.unwrap();
        operations(&users, "a").await.unwrap();
        let guard = users.0.mutex("a").lock().await.unwrap();
        let waiter = tokio::spawn(users.1.mutex("a").lock().into_future());
        tokio::time::sleep(ms(2_500)).await;
        guard.release().await.unwrap();
        let next = within("its turn", waiter).await.unwrap().unwrap();
        assert_eq!(next.release().await.unwrap(), Release::Released);
    }
    let proxy = Proxy::start(server.addr());
    place.url = proxy.url();
    let users = place.user(&without(&rights, REPEATED)).await.unwrap();
    // With fixed leases no connection for renewals loses its reply instead; the entry of the process, which is sent with the first
    // lock, is answered before `holder`.
    let lease = Duration::from_secs(10);
    let lock = users.0.mutex("b");
    let first = lock.lock().lease(lease).await.unwrap();
    assert_eq!(first.release().await.unwrap(), Release::Released);
    assert!(lock.holder().await.unwrap().is_none());
    proxy.to_client(Fault::LoseReply {
        nth: 1,
        how: Cut::Rst,
    });
    let error = lock.lock().lease(lease).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    // It is released.
    until("the lock is free", async || {
        users.1.mutex("b").holder().await.unwrap().is_none()
    })
    .await;
}

#[tokio::test]
async fn beside_redisson_its_channel_is_listened_to_and_counted() {
    let (server, mut place) = single().await;
    let mut raw = server.raw().await;
    let mut rights = all_rights();
    rights.retain(|right| !REDISSON.contains(right));
    rights.extend(REDISSON);
    let channel = "redisson_lock__channel:{shop:a}";
    for missing in ["", "+pubsub|numsub", "+zcard", "+unsubscribe"] {
        let mut rights = rights.clone();
        rights.retain(|right| *right != missing);
        let users = place.user_beside(Interop::Redisson, &rights).await.unwrap();
        for _ in 0..2 {
            operations(&users, "a").await.unwrap();
            is_heard(&mut place, &users, "a").await;
        }
        let guard = users.0.mutex("a").lock().await.unwrap();
        let tried = users.1.mutex("a").try_lock_for(ms(500));
        assert!(tried.await.unwrap().is_none());
        guard.release().await.unwrap();
        // Answered after everything that the waiter sent when it gave up.
        assert!(users.1.mutex("a").holder().await.unwrap().is_none());
        let left = i64::from(missing == "+unsubscribe");
        assert_eq!(subscribers(&mut raw, channel).await, left, "{missing}");
    }
}

#[tokio::test]
async fn a_user_with_the_least_rights_has_the_whole_mutex_in_a_cluster() {
    let (cluster, mut place, rights) = cluster().await;
    let users = place.user(&rights).await.unwrap();
    everything_works(&mut place, &users).await;

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
    each_is_missed(&mut place, &rights, PATTERNS).await;
    each_is_missed(&mut place, &rights, COMMANDS).await;
    each_is_asked_for(&mut place, &rights, LINE).await;
    each_is_asked_for(&mut place, &rights, GRANTS).await;
    if rights.contains(&"+spublish") {
        each_is_missed(&mut place, &rights, &["+pubsub|shardnumsub"]).await;
        each_is_asked_for(&mut place, &rights, SHARDED_MESSAGES).await;
    }
}

#[tokio::test]
async fn replicas_and_the_age_of_a_server_are_asked_for_with_rights_of_their_own() {
    let servers = Replicas::builder().replicas(1).start().await;
    let mut place = Place {
        url: servers.url(),
        admins: vec![servers.node(0).raw().await],
        users: 0,
        asks_after_a_grant: false,
    };
    let rights = [&all_rights(), REPLICAS].concat();
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
