//! `top` and the question of `break`, in a terminal emulator on real servers.

use leasehold_testkit::Server;
use leasehold_testkit::process;

use crate::support::{MADE_UP, client, hold, locks, register};
use crate::terminal::Terminal;

/// A server with locks of two hosts, one of which is waited for.
async fn stage() -> Server {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    register(&mut raw, MADE_UP, "web-1").await;
    register(&mut raw, &client(2), "web-2").await;
    hold(&mut raw, "order:1", MADE_UP, Some(600_000)).await;
    hold(&mut raw, "order:2", &client(2), Some(300_000)).await;
    hold(&mut raw, "nightly", &client(3), Some(500_000)).await;
    raw.cmd(&["HSET", "user:1", "name", "Ann"]).await;
    let now = raw.cmd(&["TIME"]).await.array()[0].str().to_owned();
    let since = format!("{}000000", now.parse::<u64>().unwrap() - 40);
    for (key, waiters) in [("order:1", 1), ("nightly", 3)] {
        for n in 0..waiters {
            let ticket = format!("{}:{n}", client(90 + n));
            raw.cmd(&[
                "ZADD",
                &format!("leasehold_line:{{{key}}}"),
                &since,
                &ticket,
            ])
            .await;
        }
    }
    server
}

/// The keys in the order of the screen.
fn keys(text: &str) -> Vec<&str> {
    let rows = text
        .lines()
        .skip(3)
        .filter_map(|line| line.split_whitespace().next());
    rows.take_while(|word| *word != "q").collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_screen_lists_sorts_filters_and_is_given_back() {
    let server = stage().await;
    let mut terminal = Terminal::start(&server.url(), &["top", "--interval", "100ms"], (80, 24));
    let text = terminal.until("the locks", |text| {
        text.contains("nightly") && text.contains("order:2")
    });
    assert!(terminal.is_full_screen() && terminal.has_colours() && !terminal.is_cooked());
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    assert!(text.contains("3 held  4 waiting"), "{text}");
    assert!(
        text.contains("web-1:4711 shop") && text.contains("unknown host (00000003)"),
        "{text}"
    );
    assert!(text.contains("oldest wait 4"), "{text}");
    assert!(!text.contains("user:1"), "{text}");
    assert_eq!(
        keys(&text),
        ["nightly", "order:1", "order:2"],
        "by those who wait"
    );

    // Seven columns: by the last, and then by the key.
    terminal.press("ss");
    terminal.until("sorted by key", |text| {
        keys(text) == ["nightly", "order:1", "order:2"] && text.contains("KEY▲")
    });
    terminal.press("r");
    terminal.until("the other way round", |text| {
        keys(text) == ["order:2", "order:1", "nightly"]
    });
    terminal.press("ssss");
    terminal.until("by the lease", |text| {
        text.contains("TTL▲") && keys(text) == ["order:2", "nightly", "order:1"]
    });

    terminal.press("/WEB-2\r");
    let text = terminal.until("the filter", |text| keys(text) == ["order:2"]);
    assert!(text.contains("filter: WEB-2"), "{text}");
    terminal.press("\x1b");
    terminal.until("no filter", |text| keys(text).len() == 3);

    // It is live.
    hold(&mut server.raw().await, "new", MADE_UP, Some(60_000)).await;
    terminal.until("a new lock", |text| {
        keys(text).contains(&"new") && text.contains("4 held")
    });

    // A server that is gone hides nothing of what was seen, and is looked at again when it is back.
    server.kill();
    terminal.until("the failure", |text| {
        text.matches(&server.addr().to_string()).count() == 2 && !text.contains("q quit")
    });
    assert!(keys(&terminal.text()).contains(&"nightly"));
    server.restart().await;
    terminal.until("the empty server", |text| {
        text.contains("0 held  0 waiting") && text.contains("q quit")
    });

    terminal.press("q");
    assert_eq!(terminal.ended(), 0);
    assert!(!terminal.is_full_screen() && terminal.is_cooked());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_narrow_screen_and_a_signal() {
    let server = stage().await;
    for signal in ["TERM", "HUP"] {
        let mut terminal =
            Terminal::start(&server.url(), &["top", "--interval", "100ms"], (132, 40));
        terminal.until("the locks", |text| text.contains("nightly"));
        terminal.resize((80, 24));
        let text = terminal.until("80 columns", |text| {
            let lines: Vec<_> = text.lines().collect();
            lines.len() == 24 && lines[23].contains("q quit") && text.contains("order:2")
        });
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
        process::signal(terminal.pid(), signal);
        assert_eq!(terminal.ended(), 0);
        assert!(!terminal.is_full_screen() && terminal.is_cooked());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn renewals_are_counted_and_a_wide_screen_shows_what_a_holder_tells() {
    let server = stage().await;
    let (mut raw, url) = (server.raw().await, server.url());
    let told = "job=nightly report of all shops";
    raw.cmd(&["HSET", &format!("lockp:{MADE_UP}"), "meta", told])
        .await;
    let mut terminal = Terminal::start(&url, &["top", "--interval", "100ms"], (160, 24));
    let text = terminal.until("the locks", |text| {
        text.contains("nightly") && text.contains("renewals ≥ 0.0/s")
    });
    assert!(text.contains(&format!("web-1:4711 shop {told}")), "{text}");
    // Renewed between any two looks, as it may be by a lease of a moment.
    let renews = tokio::spawn(async move {
        for lease in (1_000_000..).step_by(1_000_000) {
            raw.cmd(&["PEXPIRE", "order:1", &lease.to_string()]).await;
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    });
    terminal.until("a renewal", |text| {
        text.contains("renewals ≥") && !text.contains("renewals ≥ 0.0/s")
    });
    renews.abort();
    terminal.until("none any more", |text| text.contains("renewals ≥ 0.0/s"));
    terminal.press("q");
    assert_eq!(terminal.ended(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_broken_after_a_question() {
    let server = Server::start().await;
    let guard = locks(&server.url())
        .await
        .mutex("order")
        .lock()
        .await
        .unwrap();
    let mut terminal = Terminal::start(&server.url(), &["top", "--interval", "100ms"], (80, 24));
    terminal.until("the lock", |text| keys(text) == ["order"]);
    terminal.press("b");
    terminal.until("the question", |text| text.contains("break order (mutex)?"));
    terminal.press("n");
    terminal.until("nothing", |text| text.contains("nothing was done"));
    assert!(guard.is_held());
    terminal.press("by");
    terminal.until("the outcome", |text| text.contains("broken: order"));
    let other = locks(&server.url()).await;
    assert!(other.mutex("order").try_lock().await.unwrap().is_some());
    terminal.press("\x03");
    assert_eq!(terminal.ended(), 0);
    drop(guard);

    // The same question at the command line.
    let guard = other.mutex("order").lock().await.unwrap();
    let mut terminal = Terminal::start(&server.url(), &["break", "order"], (80, 24));
    terminal.until("the question", |text| text.contains("Break it?"));
    terminal.press("no\n");
    assert_eq!(terminal.ended(), 1);
    assert!(guard.is_held() && other.mutex("order").holder().await.unwrap().is_some());
    let mut terminal = Terminal::start(&server.url(), &["break", "order"], (80, 24));
    terminal.until("the question", |text| text.contains("Break it?"));
    terminal.press("yes\n");
    assert_eq!(terminal.ended(), 0);
    assert!(other.mutex("order").holder().await.unwrap().is_none());
}
