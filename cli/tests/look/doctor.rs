//! `doctor` against servers with one fault each.

use leasehold_testkit::{Cluster, Replicas, Sentinels, Server, until};
use serde_json::Value;

use crate::support::{MADE_UP, Ran, client, hold, locks, run, until_waiting};

/// What was found by a check, as `level`.
fn found(ran: &Ran, check: &str, level: &str) -> Vec<Value> {
    let rows = ran.rows().into_iter();
    rows.filter(|row| row["check"] == check && row["level"] == level)
        .collect()
}

fn faults(ran: &Ran) -> Vec<String> {
    let rows = ran.rows().into_iter();
    let faults = rows.filter(|row| row["level"] == "fault");
    faults
        .map(|row| row["check"].as_str().unwrap().to_owned())
        .collect()
}

async fn doctor(url: &str, args: &[&str]) -> Ran {
    run(url, &[&["doctor", "--json"], args].concat()).await
}

#[tokio::test]
async fn a_server_in_order_has_no_faults_and_each_fault_is_found() {
    let server = Server::start().await;
    let (url, mut raw) = (server.url(), server.raw().await);
    let ran = doctor(&url, &[]).await;
    assert_eq!(
        (ran.code, faults(&ran)),
        (1, vec!["persistence".to_owned()]),
        "{}",
        ran.out
    );
    let fix = found(&ran, "persistence", "fault")[0]["fix"].to_string();
    assert!(
        fix.contains("appendonly yes") && fix.contains("restart_guard"),
        "{fix}"
    );
    let ran = doctor(&url, &["--restart-guard"]).await;
    assert_eq!((ran.code, faults(&ran).len()), (0, 0), "{}", ran.out);
    raw.cmd(&["CONFIG", "SET", "appendonly", "yes"]).await;
    let ran = doctor(&url, &[]).await;
    assert_eq!((ran.code, faults(&ran).len()), (0, 0), "{}", ran.out);
    assert!(
        found(&ran, "promise", "ok")[0]["what"]
            .to_string()
            .contains("last second")
    );
    assert_eq!(found(&ran, "clock", "ok").len(), 1, "{}", ran.out);

    raw.cmd(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"])
        .await;
    hold(&mut raw, "endless", MADE_UP, None).await;
    hold(&mut raw, "busy", MADE_UP, Some(60_000)).await;
    let dead = format!("{}:3", client(3));
    raw.cmd(&["ZADD", "leasehold_line:{busy}", "1763000000000000", &dead])
        .await;
    let ran = doctor(&url, &[]).await;
    assert_eq!(
        (ran.code, faults(&ran)),
        (1, vec!["eviction".into(), "expiry".into(), "lines".into()]),
        "{}",
        ran.out
    );
    assert!(
        found(&ran, "eviction", "fault")[0]["fix"]
            .to_string()
            .contains("noeviction")
    );
    assert!(
        found(&ran, "expiry", "fault")[0]["what"]
            .to_string()
            .contains("`endless`")
    );
    assert!(
        found(&ran, "lines", "fault")[0]["what"]
            .to_string()
            .contains("`busy`")
    );
    // As a person reads it.
    let ran = run(&url, &["doctor"]).await;
    assert!(
        ran.code == 1 && ran.out.contains("FAULT eviction") && ran.out.ends_with("\n3 faults\n"),
        "{}",
        ran.out
    );

    // None of them waits in vain: a client that listens is no fault.
    for key in ["endless", "busy"] {
        raw.cmd(&["DEL", key]).await;
    }
    raw.cmd(&["DEL", "leasehold_line:{busy}"]).await;
    raw.cmd(&["CONFIG", "SET", "maxmemory-policy", "noeviction"])
        .await;
    raw.cmd(&["CONFIG", "SET", "maxmemory", "1000000"]).await;
    let ran = doctor(&url, &[]).await;
    assert_eq!(faults(&ran), ["memory"], "{}", ran.out);
    raw.cmd(&["CONFIG", "SET", "maxmemory", "0"]).await;
    let (holder, waiter) = (locks(&url).await, locks(&url).await.mutex("alive"));
    let guard = holder.mutex("alive").lock().await.unwrap();
    let waiting = tokio::spawn(async move { waiter.lock().await });
    until_waiting(&server, "alive", 1).await;
    let ran = doctor(&url, &[]).await;
    assert_eq!(
        (ran.code, found(&ran, "lines", "ok").len()),
        (0, 1),
        "{}",
        ran.out
    );
    drop(guard);
    drop(waiting.await.unwrap().unwrap());
}

#[tokio::test]
async fn missing_rights_are_named() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let rights = [
        "~shop:*",
        "~redisson_lock_token:{shop:*",
        "~leasehold_line:{shop:*",
        "&leasehold:*",
        "+eval",
        "+evalsha",
        "+hexists",
        "+pttl",
        "+get",
        "+time",
        "+hset",
        "+pexpire",
        "+set",
        "+hdel",
        "+hscan",
        "+del",
        "+info",
        "+zcard",
        "+zrevrange",
        "+zadd",
        "+zrank",
        "+zscore",
        "+zrem",
        "+exists",
        "+zpopmin",
        "+publish",
        "+subscribe",
        "+unsubscribe",
        "+client|kill",
    ];
    if server.knows("getex").await && !supports_checks(&mut raw).await {
        return;
    }
    let user = async |raw: &mut leasehold_testkit::Raw, name: &str, without: &[&str]| {
        let mut command = vec![
            "ACL",
            "SETUSER",
            name,
            "reset",
            "resetchannels",
            "on",
            ">secret",
        ];
        command.extend(rights.iter().filter(|right| !without.contains(right)));
        assert!(raw.cmd(&command).await.is_ok());
        let url = server.url().replace("://", &format!("://{name}:secret@"));
        run(
            &url,
            &["--namespace", "shop", "doctor", "--json", "--restart-guard"],
        )
        .await
    };
    let ran = user(&mut raw, "all", &[]).await;
    assert_eq!(found(&ran, "rights", "ok").len(), 1, "{}", ran.out);
    let note = &found(&ran, "rights", "note")[0];
    assert_eq!(note["fix"], "ACL SETUSER all ~lockp:*");
    for (name, without) in [
        ("one", &["+hset"][..]),
        ("two", &["~redisson_lock_token:{shop:*"]),
        ("three", &["+zpopmin", "&leasehold:*"]),
        ("four", &["~shop:*"]),
    ] {
        let ran = user(&mut raw, name, without).await;
        let fault = &found(&ran, "rights", "fault")[0];
        let mut expected: Vec<_> = without.to_vec();
        expected.sort_unstable();
        assert_eq!(
            fault["fix"],
            format!("ACL SETUSER {name} {}", expected.join(" "))
        );
    }
    let ran = user(&mut raw, "five", &["+eval", "+evalsha"]).await;
    assert!(
        found(&ran, "rights", "fault")[0]["fix"]
            .to_string()
            .contains("+eval"),
        "{}",
        ran.out
    );
}

/// Whether the server can be asked for rights by a script.
async fn supports_checks(raw: &mut leasehold_testkit::Raw) -> bool {
    let asked = raw
        .cmd(&[
            "EVAL",
            "return redis.acl_check_cmd('GET', 'x') and 1 or 0",
            "0",
        ])
        .await;
    if asked.error().is_some() {
        println!("skipped: this server cannot be asked for rights");
    }
    asked.error().is_none()
}

#[tokio::test]
async fn replicas_are_told_by_what_the_mode_makes_of_them() {
    let replicas = Replicas::builder().replicas(1).start().await;
    let url = replicas.url();
    let ran = doctor(&url, &["--restart-guard"]).await;
    let note = &found(&ran, "replicas", "note")[0];
    assert!(
        note["fix"]
            .to_string()
            .contains("replicated(Replicas::All)"),
        "{}",
        ran.out
    );
    assert_eq!(
        found(&ran, "clock", "ok").len(),
        2,
        "the replica's too: {}",
        ran.out
    );
    let ran = doctor(&url, &["--replicated"]).await;
    assert_eq!(
        (ran.code, found(&ran, "replicas", "ok").len()),
        (0, 1),
        "{}",
        ran.out
    );
    let alone = Server::start().await;
    let ran = doctor(&alone.url(), &["--replicated"]).await;
    assert_eq!(
        (ran.code, faults(&ran)),
        (1, vec!["replicas".to_owned()]),
        "{}",
        ran.out
    );
}

#[tokio::test]
async fn a_failover_is_held_against_the_lease() {
    let sentinels = Sentinels::start().await;
    let ran = doctor(&sentinels.url(), &["--restart-guard"]).await;
    let row = ran
        .rows()
        .into_iter()
        .find(|row| row["check"] == "failover")
        .expect("a finding");
    assert!(
        row["what"].to_string().contains("down-after-milliseconds"),
        "{}",
        ran.out
    );
    assert!(
        found(&ran, "promise", "ok")[0]["what"]
            .to_string()
            .contains("not across a failover"),
        "{}",
        ran.out
    );
    let ran = doctor(&sentinels.url(), &["--replicated", "--lease", "1s"]).await;
    assert_eq!(found(&ran, "failover", "fault").len(), 1, "{}", ran.out);
}

#[tokio::test]
async fn every_master_of_a_cluster_is_checked() {
    let cluster = Cluster::builder().masters(3).replicas(0).start().await;
    let url = cluster.url();
    for node in 0..3 {
        let mut raw = cluster.raw(node).await;
        raw.cmd(&["CONFIG", "SET", "appendonly", "yes"]).await;
    }
    let (holder, waiter) = (locks(&url).await, locks(&url).await.mutex("alive"));
    let guard = holder.mutex("alive").lock().await.unwrap();
    let waiting = tokio::spawn(async move { waiter.lock().await });
    until("a place in line", async || {
        holder.mutex("alive").inspect().await.unwrap().waiting() == 1
    })
    .await;
    let ran = doctor(&url, &[]).await;
    assert_eq!((ran.code, faults(&ran).len()), (0, 0), "{}", ran.out);
    for check in ["eviction", "persistence", "clock"] {
        assert_eq!(found(&ran, check, "ok").len(), 3, "{check}: {}", ran.out);
    }
    assert_eq!(
        found(&ran, "lines", "ok").len(),
        1,
        "who waits listens: {}",
        ran.out
    );
    assert!(
        found(&ran, "promise", "ok")[0]["what"]
            .to_string()
            .contains("not across a failover")
    );

    // In the slot of the lock, beside the one that listens.
    let dead = format!("{}:3", client(3));
    for node in 0..3 {
        let mut raw = cluster.raw(node).await;
        raw.cmd(&["ZADD", "leasehold_line:{alive}", "1763000000000000", &dead])
            .await;
    }
    cluster
        .raw(2)
        .await
        .cmd(&["CONFIG", "SET", "maxmemory-policy", "volatile-lru"])
        .await;
    let ran = doctor(&url, &[]).await;
    assert_eq!(faults(&ran), ["eviction", "lines"], "{}", ran.out);
    let what = found(&ran, "lines", "fault")[0]["what"].to_string();
    assert!(what.contains("`alive` that do not listen: 1."), "{what}");
    assert_eq!(
        found(&ran, "eviction", "fault")[0]["node"],
        cluster.addr(2).to_string()
    );
    drop(guard);
    drop(waiting.await.unwrap().unwrap());
}
