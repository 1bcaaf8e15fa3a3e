//! Redirects that no well-behaved server sends, or only for a moment: answered by a script.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use leasehold_resp::{ErrorKind, ServerErrorKind};
use leasehold_testkit::{Answer, FakeCluster};

use crate::support::{client, set, soon, take};

/// Its slot is 12182: the last third of the slots, and the second half.
const KEY: &str = "foo";

fn say(text: impl Into<String>) -> Answer {
    Answer::Say(text.into())
}

/// A node's first answer; all later ones are `:1`.
fn once(asked: &leasehold_testkit::Asked<'_>, text: String) -> Answer {
    say(if asked.earlier == 0 {
        text
    } else {
        ":1\r\n".into()
    })
}

fn total(fake: &FakeCluster, nodes: usize) -> usize {
    (0..nodes).map(|node| fake.asked(node).len()).sum()
}

#[tokio::test]
async fn two_nodes_that_point_at_each_other_end_in_an_error_and_no_storm() {
    let fake = FakeCluster::start(2, |asked| {
        say(format!(
            "-MOVED 12182 127.0.0.1:{}\r\n",
            asked.ports[1 - asked.node]
        ))
    })
    .await;
    let client = client(&fake.url()).await;
    let begun = Instant::now();
    let error = take(&client, KEY, "me", soon()).await.unwrap_err();
    assert!(
        matches!(
            error.as_server().unwrap().kind(),
            ServerErrorKind::Moved { slot: 12182, .. }
        ),
        "{error}"
    );
    assert!(!error.may_have_executed());
    assert!(begun.elapsed() < Duration::from_secs(10));
    assert_eq!(
        total(&fake, 2),
        17,
        "the first attempt and sixteen redirects"
    );
    // One for commands, and one for maps before the other was needed.
    println!("{} and {} connections", fake.accepted(0), fake.accepted(1));
    assert!(fake.accepted(0) <= 4 && fake.accepted(1) <= 4);
}

#[tokio::test]
async fn a_node_that_points_at_itself_ends_in_an_error_and_no_storm() {
    let fake = FakeCluster::start(1, |asked| {
        say(format!("-MOVED 12182 127.0.0.1:{}\r\n", asked.ports[0]))
    })
    .await;
    let client = client(&fake.url()).await;
    let error = set(&client, KEY, "1").await.unwrap_err();
    assert!(
        error
            .as_server()
            .is_some_and(leasehold_resp::ServerError::is_redirect),
        "{error}"
    );
    assert_eq!(total(&fake, 1), 17);
}

#[tokio::test]
async fn nodes_that_ask_in_a_circle_end_in_an_error_and_no_storm() {
    let fake = FakeCluster::start(2, |asked| match asked.request[0].as_str() {
        "ASKING" => say("+OK\r\n"),
        _ => say(format!(
            "-ASK 12182 127.0.0.1:{}\r\n",
            asked.ports[1 - asked.node]
        )),
    })
    .await;
    let client = client(&fake.url()).await;
    let error = take(&client, KEY, "me", soon()).await.unwrap_err();
    assert!(
        matches!(
            error.as_server().unwrap().kind(),
            ServerErrorKind::Ask { .. }
        ),
        "{error}"
    );
    let commands = |node| {
        fake.asked(node)
            .iter()
            .filter(|request| request[0].starts_with("EVAL"))
            .count()
    };
    assert_eq!(commands(0) + commands(1), 17);
    assert!(fake.accepted(0) <= 4 && fake.accepted(1) <= 4);
}

/// An empty host is the one that answered, at another port.
#[tokio::test]
async fn a_redirect_without_a_host_means_the_same_host() {
    let fake = FakeCluster::start(2, |asked| match (asked.node, asked.request[0].as_str()) {
        (1, _) => say(format!("-MOVED 12182 :{}\r\n", asked.ports[0])),
        _ => say(":1\r\n"),
    })
    .await;
    let client = client(&fake.url()).await;
    assert_eq!(take(&client, KEY, "me", soon()).await.unwrap(), 1);
    // Not by the map of the client: the nodes go on saying that the slot is at the second one.
    for node in [0, 1] {
        let scripts = fake
            .asked(node)
            .iter()
            .filter(|request| request[0].starts_with("EVAL"))
            .count();
        assert_eq!(scripts, 1, "node {node}");
    }
}

/// `?` is a name that the node does not know: only another map can help.
#[tokio::test]
async fn a_redirect_to_nobody_is_waited_out() {
    let changed = Arc::new(AtomicBool::new(false));
    let fake = FakeCluster::start(2, {
        let changed = Arc::clone(&changed);
        move |asked| match (asked.node, asked.request[0].as_str()) {
            (1, _) => {
                changed.store(true, Ordering::SeqCst);
                say("-MOVED 12182 ?:0\r\n")
            }
            _ => say(":1\r\n"),
        }
    })
    .await;
    let client = client(&fake.url()).await;
    let (taken, ()) = tokio::join!(take(&client, KEY, "me", soon()), async {
        while !changed.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        fake.give_all_to(0);
    });
    assert_eq!(taken.unwrap(), 1);
}

#[tokio::test]
async fn a_redirect_to_a_dead_node_lasts_until_the_map_says_otherwise() {
    // A port on which nothing listens: bound, and given back.
    let dead = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let redirected = Arc::new(AtomicBool::new(false));
    let fake = FakeCluster::start(2, {
        let redirected = Arc::clone(&redirected);
        move |asked| match (asked.node, asked.request[0].as_str()) {
            (1, _) => {
                redirected.store(true, Ordering::SeqCst);
                say(format!("-MOVED 12182 {dead}\r\n"))
            }
            _ => say(":1\r\n"),
        }
    })
    .await;
    let client = client(&fake.url()).await;
    let (taken, ()) = tokio::join!(take(&client, KEY, "me", soon()), async {
        while !redirected.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        fake.give_all_to(0);
    });
    assert_eq!(taken.unwrap(), 1);
}

/// No request is sent to the dead node while its return is awaited. When it is back the `ASK` is
/// outdated: the source has to send it again.
#[tokio::test]
async fn an_ask_that_cannot_be_followed_at_once_is_asked_for_anew() {
    let dead = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let fake = FakeCluster::start(1, move |asked| match asked.earlier {
        0..4 => say(format!("-ASK 12182 {dead}\r\n")),
        _ => say(":1\r\n"),
    })
    .await;
    let client = client(&fake.url()).await;
    assert_eq!(take(&client, KEY, "me", soon()).await.unwrap(), 1);
}

#[tokio::test]
async fn replicas_and_cut_off_masters_are_left_for_whoever_the_next_map_names() {
    for refusal in [
        "-READONLY You can't write against a read only replica.\r\n",
        "-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.\r\n",
        "-CLUSTERDOWN Hash slot not served\r\n",
        "-LOADING Redis is loading the dataset in memory\r\n",
        "-TRYAGAIN Multiple keys request during rehashing of slot\r\n",
        "-BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.\r\n",
    ] {
        let refused = Arc::new(AtomicBool::new(false));
        let fake = FakeCluster::start(2, {
            let refused = Arc::clone(&refused);
            move |asked| match (asked.node, asked.request[0].as_str()) {
                (1, _) => {
                    refused.store(true, Ordering::SeqCst);
                    say(refusal)
                }
                _ => say(":1\r\n"),
            }
        })
        .await;
        let client = client(&fake.url()).await;
        let nudge = refusal.starts_with("-LOADING")
            || refusal.starts_with("-TRYAGAIN")
            || refusal.starts_with("-BUSY");
        if nudge {
            // These errors pass at the same node in a moment.
            let error = take(
                &client,
                KEY,
                "me",
                Instant::now() + Duration::from_millis(300),
            )
            .await
            .unwrap_err();
            // An attempt that begins right before the deadline may be unanswered at the deadline:
            // an error of its own.
            let late = error.detail().contains("no reply in time");
            assert!(
                error.is_transient() && error.may_have_executed() == late,
                "{refusal}: {error}"
            );
            assert!(
                total(&fake, 2) <= 20,
                "{refusal}: {} attempts",
                total(&fake, 2)
            );
            continue;
        }
        let (taken, ()) = tokio::join!(take(&client, KEY, "me", soon()), async {
            while !refused.load(Ordering::SeqCst) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            fake.give_all_to(0);
        });
        assert_eq!(taken.unwrap(), 1, "{refusal}");
    }
}

/// A blocked command of a node that became a replica ends like this: it may have done its work.
#[tokio::test]
async fn an_unblocked_command_may_have_run() {
    const UNBLOCKED: &str = "-UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)\r\n";
    let script = |asked: leasehold_testkit::Asked<'_>| match asked.earlier {
        0 => Answer::SayAndEnd(UNBLOCKED.into()),
        _ => say(":1\r\n"),
    };
    let fake = FakeCluster::start(1, script).await;
    let done = client(&fake.url())
        .await
        .eval(
            &crate::support::TAKE.call(&[KEY.as_bytes()], &[b"me"]),
            soon(),
        )
        .await;
    assert!(
        done.unwrap().repeated,
        "an idempotent script is sent again, and says so"
    );

    let fake = FakeCluster::start(1, script).await;
    let error = set(&client(&fake.url()).await, KEY, "1").await.unwrap_err();
    assert!(error.may_have_executed(), "{error}");
    assert_eq!(total(&fake, 1), 1, "a general command is not sent again");
}

/// An automatic retry must not run a command twice.
#[tokio::test]
async fn a_lost_reply_is_unknown_for_a_command_and_repeated_for_a_script() {
    let script = |asked: leasehold_testkit::Asked<'_>| match asked.earlier {
        0 => Answer::SayAndEnd(String::new()),
        _ => say(":1\r\n"),
    };
    let fake = FakeCluster::start(1, script).await;
    let error = set(&client(&fake.url()).await, KEY, "1").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
    assert_eq!(total(&fake, 1), 1);

    let fake = FakeCluster::start(1, script).await;
    let done = client(&fake.url())
        .await
        .eval(
            &crate::support::TAKE.call(&[KEY.as_bytes()], &[b"me"]),
            soon(),
        )
        .await;
    assert!(done.unwrap().repeated);
    assert_eq!(total(&fake, 1), 2);
}

/// An error that says "not run" refers to the last attempt only.
#[tokio::test]
async fn an_attempt_without_an_answer_makes_the_whole_call_uncertain() {
    let fake = FakeCluster::start(1, |asked| match asked.earlier {
        0 => Answer::SayAndEnd(String::new()),
        _ => say("-CROSSSLOT Keys in request don't hash to the same slot\r\n"),
    })
    .await;
    let error = take(&client(&fake.url()).await, KEY, "me", soon())
        .await
        .unwrap_err();
    assert!(error.may_have_executed(), "{error}");
}

#[tokio::test]
async fn redirects_that_make_no_sense_are_errors_and_nothing_worse() {
    for nonsense in [
        "-MOVED\r\n",
        "-MOVED 12182\r\n",
        "-MOVED 99999 a:1\r\n",
        "-MOVED x y:z\r\n",
        "-ASK 5 127.0.0.1:99999\r\n",
    ] {
        let fake = FakeCluster::start(1, move |_| say(nonsense)).await;
        let error = take(&client(&fake.url()).await, KEY, "me", soon())
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Server, "{nonsense}: {error}");
        assert_eq!(total(&fake, 1), 1, "{nonsense}");
    }
}

/// A seed that answers only in parts is as good as its answer.
#[tokio::test]
async fn one_refusal_in_between_costs_one_attempt() {
    let fake = FakeCluster::start(1, |asked| {
        once(
            &asked,
            "-LOADING Redis is loading the dataset in memory\r\n".into(),
        )
    })
    .await;
    let client = client(&fake.url()).await;
    assert_eq!(take(&client, KEY, "me", soon()).await.unwrap(), 1);
    assert_eq!(total(&fake, 1), 2);
}
