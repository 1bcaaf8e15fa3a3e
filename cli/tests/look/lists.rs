//! `ls`, `inspect`, `who` and `break`.

use std::time::Duration;

use leasehold_testkit::{Cluster, Server, until};

use crate::support::{MADE_UP, client, hold, locks, program, register, run, until_waiting};

const LEASE: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_lock_is_listed_and_nothing_else() {
    let server = Server::start().await;
    let (url, mut raw) = (server.url(), server.raw().await);
    let locks = locks(&url).await;
    let mutex = locks.mutex("a-mutex").lock().lease(LEASE).await.unwrap();
    let fair = locks
        .fair_mutex("b-fair")
        .lock()
        .lease(LEASE)
        .await
        .unwrap();
    let read = locks.rw_lock("c-read").read().lease(LEASE).await.unwrap();
    let write = locks.rw_lock("d-write").write().lease(LEASE).await.unwrap();
    let plain = locks
        .plain_mutex("e-plain")
        .lock()
        .lease(LEASE)
        .await
        .unwrap();
    let permit = locks
        .semaphore("f-sem", 5)
        .acquire_many(2)
        .lease(LEASE)
        .await
        .unwrap();
    locks.latch("g-latch").try_set_count(3).await.unwrap();
    let party = tokio::spawn(locks.barrier("h-barrier", 2).wait());
    until("a party", async || {
        !locks
            .barrier("h-barrier", 2)
            .inspect()
            .await
            .unwrap()
            .holders()
            .is_empty()
    })
    .await;
    // Foreign keys of each type, some of which look alike.
    let foreign: &[&[&str]] = &[
        &["HSET", "user", "name", "Ann"],
        &["HSET", "hits", "2026:11", "7", "user:1", "3"],
        &["HSET", "mixed", &format!("{MADE_UP}:1"), "1", "name", "Ann"],
        &["SET", "text", "x"],
        &["SET", "number", "7"],
        &["ZADD", "http:timeout", "1", "m"],
        &["RPUSH", "list", "x"],
        &["ZADD", "leasehold_line", "1", "m"],
    ];
    for command in foreign {
        raw.cmd(command).await;
    }
    // May look and nothing else: the server notes what it tries beside that.
    let rights = ["+@all", "-@write", "-@scripting", "-keys", "-monitor"];
    let looker = ["ACL", "SETUSER", "looker", "on", ">secret", "~*", "&*"];
    assert!(raw.cmd(&[&looker[..], &rights].concat()).await.is_ok());
    raw.cmd(&["ACL", "LOG", "RESET"]).await;

    let looker = format!("redis://looker:secret@{}", server.addr());
    let ran = run(&looker, &["ls", "--json"]).await;
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    let tried = raw.cmd(&["ACL", "LOG"]).await;
    assert!(tried.array().is_empty(), "{tried:?}");
    let kinds: Vec<_> = ran
        .rows()
        .iter()
        .map(|row| format!("{}={}", row["key"], row["kind"]))
        .collect();
    let kinds = kinds.join(" ").replace('"', "");
    assert_eq!(
        kinds,
        "a-mutex=mutex b-fair=mutex c-read=rw-lock d-write=rw-lock e-plain=plain f-sem=semaphore g-latch=latch h-barrier=barrier"
    );
    let row = ran.row("a-mutex");
    assert_eq!(row["token"], mutex.token().as_u64());
    assert_eq!(row["holders"][0]["client"], locks.client_id());
    assert!(row["ttl_ms"].as_u64().unwrap() <= 60_000 && row["held_ms"].as_u64().is_some());
    assert_eq!(
        (
            ran.row("c-read")["mode"].as_str(),
            ran.row("d-write")["mode"].as_str()
        ),
        (Some("read"), Some("write"))
    );
    let sem = ran.row("f-sem");
    assert_eq!(
        (
            sem["holding"].as_u64(),
            sem["left"].as_i64(),
            sem["all"].as_i64()
        ),
        (Some(2), Some(3), Some(5))
    );
    assert_eq!(ran.row("g-latch")["left"], 3);
    assert_eq!(
        (
            ran.row("h-barrier")["holding"].as_u64(),
            ran.row("h-barrier")["all"].as_i64()
        ),
        (Some(1), Some(2))
    );
    for (key, kind) in [
        ("a-mutex", "mutex"),
        ("e-plain", "plain"),
        ("f-sem", "semaphore"),
        ("h-barrier", "barrier"),
    ] {
        let ran = run(&url, &["inspect", key]).await;
        assert!(
            ran.code == 0 && ran.out.contains(kind) && ran.out.contains("holders"),
            "{ran:?}"
        );
    }
    assert_eq!(run(&url, &["inspect", "user"]).await.code, 65);
    assert_eq!(run(&url, &["inspect", "nothing"]).await.code, 1);
    drop((mutex, fair, read, write, plain, permit));
    party.abort();
}

#[tokio::test]
async fn tables_fit_patterns_select_and_odd_bytes_are_escaped() {
    let server = Server::start().await;
    let (url, mut raw) = (server.url(), server.raw().await);
    let odd: &[u8] = b"odd\n\x1b[2J\xff";
    for key in [odd, b"shop:1", b"shop:2", b"other:1"] {
        let holder = format!("{MADE_UP}:7");
        raw.cmd(&[b"HSET", key, holder.as_bytes(), b"1"]).await;
        raw.cmd(&[b"PEXPIRE", key, b"60000"]).await;
    }
    register(&mut raw, MADE_UP, "web-1").await;
    let all = run(&url, &["ls"]).await;
    assert!(
        all.out.starts_with("KEY") && all.out.contains("web-1:4711 shop"),
        "{}",
        all.out
    );
    assert!(
        all.out.contains("odd\\n\\x1b[2J\\xff") && !all.out.contains('\x1b'),
        "{}",
        all.out
    );
    assert_eq!(
        run(&url, &["ls", "shop:*", "--json"]).await.keys(),
        ["shop:1", "shop:2"]
    );
    assert_eq!(
        run(&url, &["--namespace", "shop", "ls", "[2-9]", "--json"])
            .await
            .keys(),
        ["shop:2"]
    );
    // What a table shows can be given back.
    let ran = run(&url, &["inspect", "odd\\n\\x1b[2J\\xff"]).await;
    assert!(ran.code == 0 && ran.out.contains("web-1:4711"), "{ran:?}");
    assert_eq!(run(&url, &["inspect", "odd\\q"]).await.code, 64);
}

#[tokio::test]
async fn inspect_tells_the_line_and_who_tells_a_host() {
    let server = Server::start().await;
    let (url, mut raw) = (server.url(), server.raw().await);
    let (first, second) = (locks(&url).await, locks(&url).await);
    let guard = first.mutex("order").lock().await.unwrap();
    let waiter = second.mutex("order");
    let waiting = tokio::spawn(async move { waiter.lock().await });
    until_waiting(&server, "order", 1).await;
    let ran = run(&url, &["inspect", "order", "--json"]).await;
    let row = &ran.rows()[0];
    assert_eq!(
        (row["kind"].as_str(), row["token"].as_u64()),
        (Some("mutex"), Some(guard.token().as_u64()))
    );
    assert_eq!(row["holders"][0]["client"], first.client_id());
    assert_eq!(
        (
            row["line"][0]["place"].as_u64(),
            row["line"][0]["client"].as_str()
        ),
        (Some(1), Some(second.client_id()))
    );

    // It says where it is, by itself.
    let here = std::process::id();
    until("an entry of this process", async || {
        let ran = run(&url, &["ls", "order", "--json"]).await;
        ran.row("order")["holders"][0]["process"]["pid"] == here
    })
    .await;

    hold(&mut raw, "made-up", MADE_UP, Some(60_000)).await;
    hold(&mut raw, "elsewhere", &client(9), Some(60_000)).await;
    register(&mut raw, MADE_UP, "web-1").await;
    register(&mut raw, &client(9), "web-2").await;
    let ran = run(&url, &["who", "WEB-1", "--json"]).await;
    assert_eq!((ran.code, ran.keys()), (0, vec!["made-up".to_owned()]));
    let process = &ran.row("made-up")["holders"][0]["process"];
    assert_eq!(
        (process["pid"].as_u64(), process["app"].as_str()),
        (Some(4711), Some("shop"))
    );
    register(&mut raw, &client(10), "web-3\x1b[2J").await;
    let ran = run(&url, &["who", "web-9\x1b[2J"]).await;
    assert!(
        ran.code == 1 && ran.err.contains("web-1") && ran.err.contains("web-2"),
        "{ran:?}"
    );
    assert!(
        ran.err.contains("web-3") && !ran.err.contains('\x1b'),
        "{ran:?}"
    );
    // Without a registry nobody is known.
    hold(&mut raw, "redissons", &client(77), Some(60_000)).await;
    assert!(
        run(&url, &["inspect", "redissons"])
            .await
            .out
            .contains("unknown host (0000004d)")
    );
    drop(guard);
    drop(waiting.await.unwrap().unwrap());
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn what_a_run_tells_of_itself_is_shown_with_its_lock() {
    let server = Server::start().await;
    let (url, mut raw) = (server.url(), server.raw().await);
    let mut holder = program(&url);
    holder.args(["run", "--meta", "job=nightly report", "--meta", "run=a=b"]);
    let holder = holder.args(["order", "--", "sleep", "60"]).spawn().unwrap();
    until("its entry", async || {
        let ran = run(&url, &["inspect", "order"]).await;
        ran.out.contains("job=nightly report\n    run=a=b\n")
    })
    .await;
    let ran = run(&url, &["ls", "--json"]).await;
    let process = &ran.row("order")["holders"][0]["process"];
    assert_eq!(
        (
            process["meta"]["job"].as_str(),
            process["meta"]["run"].as_str()
        ),
        (Some("nightly report"), Some("a=b"))
    );
    let host = process["host"].as_str().unwrap();
    let ran = run(&url, &["who", host]).await;
    assert!(
        ran.out.contains("leasehold job=nightly report, run=a=b"),
        "{ran:?}"
    );
    drop(holder);

    // What others wrote is escaped, and no more of it is read than the library writes.
    hold(&mut raw, "made-up", MADE_UP, Some(60_000)).await;
    register(&mut raw, MADE_UP, "web-1").await;
    let lines: String = (0..99).map(|n| format!("k{n:02}=\x1b[2J\n")).collect();
    let entry = format!("lockp:{MADE_UP}");
    raw.cmd(&["HSET", &entry, "meta", &lines]).await;
    let ran = run(&url, &["inspect", "made-up"]).await;
    assert!(
        ran.out.contains("k15=\\x1b[2J") && !ran.out.contains("k16"),
        "{}",
        ran.out
    );
    assert!(!ran.out.contains('\x1b'), "{}", ran.out);

    let long = format!("a={}", "x".repeat(257));
    for (told, why) in [
        ("job", "name=value"),
        ("=x", "metadata"),
        (&long, "metadata"),
    ] {
        let ran = run(&url, &["run", "--meta", told, "k", "--", "true"]).await;
        assert!(ran.code == 64 && ran.err.contains(why), "{ran:?}");
    }
}

#[tokio::test]
async fn break_asks_hands_on_and_leaves_foreign_keys_alone() {
    let server = Server::start().await;
    let (url, mut raw) = (server.url(), server.raw().await);
    let (first, second) = (locks(&url).await, locks(&url).await);
    let guard = first.mutex("order").lock().await.unwrap();
    let waiter = second.mutex("order");
    let waiting = tokio::spawn(async move { waiter.lock().await });
    until_waiting(&server, "order", 1).await;
    let ran = run(&url, &["break", "order"]).await;
    assert!(
        ran.code == 64 && ran.err.contains("--yes") && guard.is_held(),
        "{ran:?}"
    );
    let ran = run(&url, &["break", "order", "--yes", "--json"]).await;
    assert_eq!(
        (ran.code, ran.rows()[0]["broken"].as_bool()),
        (0, Some(true))
    );
    let next = waiting.await.unwrap().unwrap();
    assert!(next.token() > guard.token());
    drop(next.release().await);
    assert_eq!(
        run(&url, &["break", "order", "--yes"]).await.code,
        1,
        "it is free"
    );

    let read = first.rw_lock("rw").read().lease(LEASE).await.unwrap();
    let plain = first
        .plain_mutex("plain")
        .lock()
        .lease(LEASE)
        .await
        .unwrap();
    let permit = first
        .semaphore("sem", 1)
        .acquire()
        .lease(LEASE)
        .await
        .unwrap();
    let endless = format!("{MADE_UP}:1");
    raw.cmd(&["HSET", "endless", &endless, "1"]).await;
    for key in ["rw", "plain", "sem", "endless"] {
        let ran = run(&url, &["break", key, "--yes"]).await;
        assert!(
            ran.code == 0 && ran.out.starts_with("broken"),
            "{key}: {ran:?}"
        );
    }
    assert!(second.rw_lock("rw").try_write().await.unwrap().is_some());
    assert!(
        second
            .plain_mutex("plain")
            .try_lock()
            .await
            .unwrap()
            .is_some()
    );
    assert!(
        second
            .semaphore("sem", 1)
            .try_acquire()
            .await
            .unwrap()
            .is_some()
    );
    assert!(second.mutex("endless").try_lock().await.unwrap().is_some());
    for (command, key) in [
        (&["HSET", "user", "name", "Ann"][..], "user"),
        (&["SET", "text", "x"][..], "text"),
    ] {
        raw.cmd(command).await;
        assert_eq!(run(&url, &["break", key, "--yes"]).await.code, 65, "{key}");
        assert_eq!(raw.cmd(&["EXISTS", key]).await.int(), 1, "{key}");
    }
    drop((read, plain, permit));
}

/// Redisson's waiters wait for a message, and stand in no line.
#[tokio::test]
async fn redissons_waiters_are_told_and_who_may_not_look_hears_it() {
    let server = Server::start().await;
    let (url, mut raw, mut waiter) = (server.url(), server.raw().await, server.raw().await);
    waiter.hello3().await;
    for (channel, message) in [
        ("redisson_lock__channel:{r}", "0"),
        ("redisson_rwlock:{rw}", "1"),
    ] {
        waiter.send(&["SUBSCRIBE", channel]).await.unwrap();
        waiter.push().await;
        hold(&mut raw, "r", MADE_UP, Some(60_000)).await;
        let writer = format!("{MADE_UP}:7:write");
        raw.cmd(&["HSET", "rw", "mode", "write", &writer, "2"])
            .await;
        let key = if channel.contains("rw") { "rw" } else { "r" };
        assert_eq!(run(&url, &["break", key, "--yes"]).await.code, 0);
        let push = waiter.push().await;
        assert_eq!(
            (push[0].str(), push[1].str(), push[2].str()),
            ("message", channel, message)
        );
        assert_eq!(raw.cmd(&["EXISTS", key]).await.int(), 0);
    }

    hold(&mut raw, "order", MADE_UP, Some(60_000)).await;
    for (name, right) in [("blind", "-scan"), ("unread", "-hscan")] {
        raw.cmd(&[
            "ACL", "SETUSER", name, "on", ">secret", "~*", "&*", "+@all", right,
        ])
        .await;
        let url = url.replace("://", &format!("://{name}:secret@"));
        let ran = run(&url, &["ls"]).await;
        assert!(ran.code == 77 && ran.err.contains(&right[1..]), "{ran:?}");
    }
    // Keys of others are not shown, and those of one's own are.
    raw.cmd(&[
        "ACL", "SETUSER", "one", "on", ">secret", "~order", "&*", "+@all",
    ])
    .await;
    hold(&mut raw, "secret", MADE_UP, Some(60_000)).await;
    let ran = run(&url.replace("://", "://one:secret@"), &["ls", "--json"]).await;
    assert_eq!(
        (ran.code, ran.keys()),
        (0, vec!["order".to_owned()]),
        "{ran:?}"
    );
}

#[tokio::test]
async fn all_masters_of_a_cluster_are_looked_at() {
    let cluster = Cluster::builder().masters(3).replicas(0);
    // The others go on when one of them is gone.
    let cluster = cluster
        .config("cluster-require-full-coverage no")
        .start()
        .await;
    let url = cluster.url();
    let locks = locks(&url).await;
    let mut held = Vec::new();
    for n in 0..12 {
        held.push(
            locks
                .mutex(format!("lock:{n:02}"))
                .lock()
                .lease(LEASE)
                .await
                .unwrap(),
        );
    }
    let ran = run(&url, &["ls", "--json"]).await;
    let expected: Vec<_> = (0..12).map(|n| format!("lock:{n:02}")).collect();
    assert_eq!((ran.code, ran.keys()), (0, expected));
    let mut nodes: Vec<_> = ran
        .rows()
        .iter()
        .map(|row| row["node"].to_string())
        .collect();
    nodes.sort();
    nodes.dedup();
    assert_eq!(nodes.len(), 3);
    for (n, guard) in held.iter().enumerate() {
        let row = &ran.rows()[n];
        assert_eq!(row["token"], guard.token().as_u64());
    }
    let ran = run(&url, &["inspect", "lock:03"]).await;
    assert!(
        ran.code == 0 && ran.out.contains(locks.client_id()),
        "{ran:?}"
    );
    assert_eq!(run(&url, &["break", "lock:03", "--yes"]).await.code, 0);
    assert!(locks.mutex("lock:03").holder().await.unwrap().is_none());

    // A master that does not answer: the others are listed, and it is said what is missing.
    cluster.freeze(1);
    let ran = run(&url, &["ls", "--json"]).await;
    cluster.thaw(1);
    assert_eq!(ran.code, 69, "{ran:?}");
    assert!(!ran.keys().is_empty() && ran.keys().len() < 11, "{ran:?}");
    assert!(ran.err.contains(&cluster.addr(1).to_string()), "{ran:?}");
}
