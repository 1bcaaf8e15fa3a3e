//! `lock`, `unlock`, `extend` and `verify`.

use leasehold_testkit::{Fault, Proxy, Server, ms, until_for};

use super::support::{BOUND, at, code, ended, leasehold, output, stderr, stdout};

/// Takes the lock for a script.
async fn lock(server: &Server, key: &str, lease: &str) -> String {
    let locked = output(server, ["lock", key, "--try", "--lease", lease]).await;
    assert_eq!(code(&locked), 0, "{}", stderr(&locked));
    stdout(&locked).trim_end().to_owned()
}

#[tokio::test]
async fn a_script_locks_extends_and_unlocks() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let hold = lock(&server, "k", "5m").await;
    assert!(!hold.contains(char::is_whitespace), "one word: {hold}");
    let token: u64 = hold.rsplit(':').next().unwrap().parse().expect("the token");
    assert!(token > 0);
    let left = raw.cmd(&["PTTL", "k"]).await.int();
    assert!((290_000..=300_000).contains(&left), "{left}");

    let verified = output(&server, ["verify", "k", &hold]).await;
    assert_eq!(code(&verified), 0);
    assert!(
        stdout(&verified).starts_with("4m 5"),
        "{}",
        stdout(&verified)
    );
    assert_eq!(
        code(&output(&server, ["extend", "k", &hold, "--lease", "10m"]).await),
        0
    );
    let left = raw.cmd(&["PTTL", "k"]).await.int();
    assert!((590_000..=600_000).contains(&left), "{left}");
    // An extension never shortens.
    assert_eq!(
        code(&output(&server, ["extend", "k", &hold, "--lease", "1s"]).await),
        0
    );
    assert!(raw.cmd(&["PTTL", "k"]).await.int() > 500_000);
    assert_eq!(
        code(&output(&server, ["run", "-n", "k", "--", "true"]).await),
        75
    );

    assert_eq!(code(&output(&server, ["unlock", "k", &hold]).await), 0);
    assert_eq!(raw.cmd(&["EXISTS", "k"]).await.int(), 0);
    for arguments in [
        &["unlock", "k", &hold][..],
        &["verify", "k", &hold],
        &["extend", "k", &hold, "--lease", "1m"],
    ] {
        let gone = output(&server, arguments.iter().copied()).await;
        assert_eq!(code(&gone), 1, "{arguments:?}");
        assert!(!stderr(&gone).is_empty());
        assert_eq!(
            raw.cmd(&["EXISTS", "k"]).await.int(),
            0,
            "{arguments:?} created it"
        );
    }
}

#[tokio::test]
async fn a_hold_that_is_over_does_nothing_to_the_next_one() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let first = lock(&server, "k", "1s").await;
    tokio::time::sleep(ms(1_050)).await;
    let second = lock(&server, "k", "1m").await;
    let before = raw.cmd(&["HGETALL", "k"]).await;
    for arguments in [
        &["unlock", "k", &first][..],
        &["extend", "k", &first, "--lease", "1h"],
        &["verify", "k", &first],
    ] {
        assert_eq!(
            code(&output(&server, arguments.iter().copied()).await),
            1,
            "{arguments:?}"
        );
    }
    assert_eq!(raw.cmd(&["HGETALL", "k"]).await, before);
    assert!(raw.cmd(&["PTTL", "k"]).await.int() <= 60_000);
    assert_eq!(code(&output(&server, ["unlock", "k", &second]).await), 0);
}

#[tokio::test]
async fn a_lock_that_was_waited_for_has_its_whole_lease() {
    let server = Server::start().await;
    let hold = lock(&server, "k", "1m").await;
    let waiting = leasehold(&server)
        .args(["lock", "k", "--lease", "2m", "--json"])
        .spawn()
        .expect("it starts");
    tokio::time::sleep(ms(300)).await;
    assert_eq!(code(&output(&server, ["unlock", "k", &hold]).await), 0);
    let locked = ended(waiting).await;
    assert_eq!(code(&locked), 0, "{}", stderr(&locked));
    let told: serde_json::Value = serde_json::from_str(&stdout(&locked)).expect("JSON");
    assert_eq!(
        (&told["key"], &told["lease_ms"]),
        (&"k".into(), &120_000.into())
    );
    let left = server.raw().await.cmd(&["PTTL", "k"]).await.int();
    assert!(left > 100_000, "{left}");
    let hold = told["hold"].as_str().expect("text");
    let verified = output(&server, ["verify", "--json", "k", hold]).await;
    let told: serde_json::Value = serde_json::from_str(&stdout(&verified)).expect("JSON");
    assert_eq!((&told["held"], code(&verified)), (&true.into(), 0));
    assert_eq!(code(&output(&server, ["unlock", "k", hold]).await), 0);
}

#[tokio::test]
async fn a_lock_whose_hold_cannot_be_printed_is_given_back() {
    let server = Server::start().await;
    let mut script = tokio::process::Command::new("sh");
    script
        .args([
            "-c",
            "\"$0\" lock k --lease 5m >/dev/full",
            env!("CARGO_BIN_EXE_leasehold"),
        ])
        .env("LEASEHOLD_URL", server.url());
    let status = script.status().await.expect("sh");
    assert_eq!(status.code(), Some(71));
    assert_eq!(server.raw().await.cmd(&["EXISTS", "k"]).await.int(), 0);
}

/// A grant that was waited for lasts a second until it is confirmed. A command that began before that would be told to end after
/// half of it.
#[tokio::test]
async fn a_command_that_waited_begins_when_its_lock_is_confirmed() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let hold = lock(&server, "k", "5m").await;
    let proxy = Proxy::start(server.addr());
    let mut waits = at(&proxy.url());
    waits.args(["run", "--json", "k", "--", "sleep", "1"]);
    let waits = waits.spawn().expect("it starts");
    until_for(BOUND, "it waits", async || {
        raw.cmd(&["ZCARD", "leasehold_line:{k}"]).await.int() == 1
    })
    .await;
    // Longer than half of a grant.
    proxy.to_server(Fault::Delay(ms(600)));
    assert_eq!(code(&output(&server, ["unlock", "k", &hold]).await), 0);
    let waited = ended(waits).await;
    assert_eq!(code(&waited), 0, "{}", stderr(&waited));
}
