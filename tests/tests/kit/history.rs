//! Histories of several processes on one clock.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use leasehold_testkit::history::{Event, Mode, Outcome, Recorder, What, now, read, valid_until};
use leasehold_testkit::observer::look;
use leasehold_testkit::own_process::this_test_again;
use leasehold_testkit::{Scratch, Server};

#[test]
fn what_is_recorded_is_read_back_in_the_order_of_time() {
    let dir = Scratch::new();
    let recorder = Recorder::open(dir.path(), "one");
    let other = recorder.client("two");
    let before = now();
    let call = recorder.invoke("k", Mode::Exclusive, true, Some(Duration::from_secs(1)));
    other.record(What::ReleaseOk {
        hold: "h".into(),
        outcome: Outcome::AlreadyGone,
    });
    recorder.record(What::Cancel { call });

    let events = read(dir.path());
    let clients: Vec<_> = events.iter().map(|e| e.client.as_str()).collect();
    assert_eq!(clients, ["one", "two", "one"]);
    assert!(
        events
            .iter()
            .all(|e| e.at >= before && e.at <= now() && e.process == std::process::id())
    );
    assert!(events.is_sorted_by_key(|e| e.at));
    let What::Invoke {
        bound: Some(bound), ..
    } = events[0].what
    else {
        panic!("{:?}", events[0])
    };
    assert!(bound >= before + 1_000_000 && bound <= now() + 1_000_000);
}

/// Runs itself as a child process, which writes its part of the history.
#[test]
fn processes_share_one_clock() {
    const CHILD: &str = "KIT_HISTORY_CHILD";
    if let Some(dir) = std::env::var_os(CHILD) {
        Recorder::open(&PathBuf::from(dir), "child").record(What::FaultEnd { id: 1 });
        return;
    }
    let dir = Scratch::new();
    let recorder = Recorder::open(dir.path(), "parent");
    recorder.record(What::FaultEnd { id: 0 });
    let child = this_test_again("history::processes_share_one_clock")
        .env(CHILD, dir.path())
        .output()
        .unwrap();
    assert!(child.status.success());
    recorder.record(What::FaultEnd { id: 2 });

    let ids: Vec<_> = read(dir.path()).into_iter().map(|e| e.what).collect();
    assert_eq!(ids, [0, 1, 2].map(|id| What::FaultEnd { id }));
}

#[test]
fn the_last_line_of_a_killed_process_may_be_cut() {
    let dir = Scratch::new();
    Recorder::open(dir.path(), "one").record(What::FaultEnd { id: 0 });
    let whole = Event {
        at: 1,
        process: 9,
        client: "cut".into(),
        what: What::Died { pid: 1 },
    };
    let line = serde_json::to_string(&whole).unwrap();
    let mut file = std::fs::File::create(dir.join("history-9.jsonl")).unwrap();
    write!(file, "{line}\n{}", &line[..line.len() / 2]).unwrap();
    assert_eq!(read(dir.path()).len(), 2);
}

#[test]
fn validity_is_counted_from_before_the_guard_was_asked() {
    let before = now();
    let until = valid_until(|| {
        std::thread::sleep(Duration::from_millis(50));
        Duration::from_secs(1)
    });
    assert!(until >= before + 1_000_000);
    assert!(until <= now() + 950_000);
}

#[tokio::test]
async fn the_observer_writes_down_what_the_server_has() {
    let server = Server::start().await;
    let dir = Scratch::new();
    let recorder = Recorder::open(dir.path(), "observer");
    let mut raw = server.raw().await;
    look(&mut raw, &recorder, "k").await.unwrap();
    raw.cmd(&["HSET", "k", "mode", "read", "a:1", "1"]).await;
    look(&mut raw, &recorder, "k").await.unwrap();
    raw.cmd(&["PEXPIRE", "k", "60000"]).await;
    look(&mut raw, &recorder, "k").await.unwrap();
    raw.cmd(&["SET", "k", "no lock"]).await;
    assert!(look(&mut raw, &recorder, "k").await.is_err());

    let seen: Vec<_> = read(dir.path())
        .into_iter()
        .map(|event| match event.what {
            What::Server {
                asked,
                holders,
                pttl,
                ..
            } if asked <= event.at => (
                holders
                    .into_iter()
                    .map(|h| (h.id, h.count))
                    .collect::<Vec<_>>(),
                pttl.min(1),
            ),
            other => panic!("{other:?}"),
        })
        .collect();
    let holder = vec![("a:1".to_owned(), 1)];
    assert_eq!(seen, [(vec![], -2), (holder.clone(), -1), (holder, 1)]);
}
