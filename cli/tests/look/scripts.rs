//! `wait`, `sem`, `latch`, the manual and the completions.

use std::time::Duration;

use leasehold_testkit::{Server, ms, until};

use crate::support::{locks, program, run};

#[tokio::test]
async fn wait_ends_when_the_lock_is_free_or_the_time_is_over() {
    let server = Server::start().await;
    let url = server.url();
    let guard = locks(&url).await.mutex("a").lock().await.unwrap();
    assert_eq!(
        run(&url, &["wait", "a", "--timeout", "100ms"]).await.code,
        75
    );
    let waiting = tokio::spawn({
        let url = url.clone();
        async move { run(&url, &["wait", "a", "--timeout", "60s"]).await.code }
    });
    tokio::time::sleep(ms(200)).await;
    assert!(!waiting.is_finished());
    guard.release().await.unwrap();
    assert_eq!(waiting.await.unwrap(), 0);
    assert_eq!(run(&url, &["wait", "never-there"]).await.code, 0);
    server
        .raw()
        .await
        .cmd(&["HSET", "user", "name", "Ann"])
        .await;
    assert_eq!(run(&url, &["wait", "user"]).await.code, 65);
}

#[tokio::test]
async fn permits_are_taken_and_given_back_by_their_id() {
    let server = Server::start().await;
    let url = server.url();
    let acquire = [
        "sem",
        "acquire",
        "s",
        "--permits",
        "3",
        "--lease",
        "60s",
        "--try",
    ];
    let ran = run(&url, &[&acquire[..], &["--take", "2"]].concat()).await;
    assert_eq!(ran.code, 0, "{ran:?}");
    let two = ran.out.trim().to_owned();
    let ran = run(&url, &acquire).await;
    let one = ran.out.trim().to_owned();
    assert_eq!(run(&url, &acquire).await.code, 75);
    let inspected = run(&url, &["sem", "inspect", "s", "--json"]).await;
    assert_eq!(
        (
            inspected.row("s")["holding"].as_u64(),
            inspected.row("s")["left"].as_i64()
        ),
        (Some(3), Some(0))
    );

    // A waiter gets what is released, at once.
    let semaphore = locks(&url).await.semaphore("s", 3);
    let waiting = tokio::spawn(async move { semaphore.acquire_many(2).await });
    until("a place in line", async || {
        run(&url, &["inspect", "s", "--json"]).await.row("s")["waiting"] == 1
    })
    .await;
    assert_eq!(run(&url, &["sem", "release", "s", &two]).await.code, 0);
    let permit = waiting.await.unwrap().unwrap();
    assert_eq!(
        run(&url, &["sem", "release", "s", &two]).await.code,
        1,
        "it was not taken any more"
    );
    assert_eq!(permit.num_permits(), 2);
    drop(permit.release().await);
    assert_eq!(run(&url, &["sem", "release", "s", &one]).await.code, 0);
    assert_eq!(
        locks(&url)
            .await
            .semaphore("s", 3)
            .available()
            .await
            .unwrap(),
        3
    );
    assert_eq!(
        run(&url, &["sem", "release", "s", "nonsense"]).await.code,
        64
    );
}

#[tokio::test]
async fn a_latch_is_set_counted_down_and_waited_for() {
    let server = Server::start().await;
    let url = server.url();
    assert_eq!(
        run(&url, &["latch", "set", "l", "2", "--expiry", "1h"])
            .await
            .code,
        0
    );
    assert_eq!(
        run(&url, &["latch", "set", "l", "5"]).await.code,
        1,
        "it is closed"
    );
    assert_eq!(
        run(&url, &["latch", "wait", "l", "--timeout", "50ms"])
            .await
            .code,
        75
    );
    let mut waiting = program(&url).args(["latch", "wait", "l"]).spawn().unwrap();
    for _ in 0..2 {
        assert_eq!(
            run(&url, &["latch", "count-down", "l", "--as", "a"])
                .await
                .out,
            "1\n"
        );
    }
    let ran = run(&url, &["latch", "get", "l", "--json"]).await;
    assert_eq!(
        (
            ran.row("l")["count"].as_u64(),
            ran.row("l")["participants"][0].as_str()
        ),
        (Some(1), Some("a"))
    );
    assert_eq!(run(&url, &["latch", "count-down", "l"]).await.out, "0\n");
    let ended = tokio::time::timeout(Duration::from_secs(30), waiting.wait()).await;
    assert!(ended.expect("it is open").unwrap().success());
    assert_eq!(run(&url, &["latch", "get", "l"]).await.out, "0\n");
}

#[tokio::test]
async fn the_manual_and_completions_know_the_commands() {
    let man = run("", &["man"]).await;
    assert!(
        man.code == 0 && man.out.contains(".TH leasehold") && man.out.contains("doctor"),
        "{man:?}"
    );
    let dir = leasehold_testkit::Scratch::new();
    let pages = dir.join("man");
    std::fs::create_dir(&pages).expect("created");
    let out = pages.to_str().expect("text");
    assert_eq!(run("", &["man", "--out", out]).await.code, 0);
    let page = |name| std::fs::read_to_string(pages.join(name)).expect("a page");
    let options: &[&str] = match cfg!(target_os = "linux") {
        true => &["also", "redlock", "durable", "meta"],
        false => &[],
    };
    for option in options {
        let written = format!("\\-\\-{option}");
        assert!(page("leasehold-run.1").contains(&written), "{option}");
    }
    for shell in ["bash", "zsh", "fish"] {
        let ran = run("", &["completions", shell]).await;
        assert!(ran.code == 0 && ran.out.contains("doctor"), "{shell}");
        for option in options {
            assert!(ran.out.contains(option), "{shell}: {option}");
        }
        let tls = cfg!(feature = "tls");
        assert_eq!(ran.out.contains("cacert"), tls, "{shell}");
    }
    let help = run("", &["--help"]).await;
    assert!(
        help.code == 0 && !help.out.contains("completions"),
        "hidden: {}",
        help.out
    );
    assert_eq!(run("", &["ls"]).await.code, 64, "no server");
}
