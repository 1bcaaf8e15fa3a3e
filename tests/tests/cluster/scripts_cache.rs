//! The server's script cache: a script that the server has lost is sent again, unnoticed by the
//! caller.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use leasehold_cluster::{Client, Script};
use leasehold_resp::{Command, ServerErrorKind};
use leasehold_testkit::{Proxy, Raw, Server, in_own_process};

use crate::support::{BOUND, client, soon};

/// Number of `EVALSHA` and `EVAL` requests to the server.
async fn calls(raw: &mut Raw) -> (u64, u64) {
    let evalsha = leasehold_testkit::calls(raw, "evalsha").await;
    (evalsha, leasehold_testkit::calls(raw, "eval").await)
}

async fn eval(client: &Client, script: &Script, arg: &str) -> String {
    let done = client
        .eval(&script.call(&[b"k"], &[arg.as_bytes()]), soon())
        .await
        .unwrap();
    assert!(!done.repeated);
    done.value.as_str().unwrap().to_owned()
}

#[tokio::test]
async fn an_unknown_script_costs_one_round_trip_a_known_one_too_and_a_forgotten_one_two() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let client = client(&server.url()).await;
    let script = Script::new("return ARGV[1] .. '!'");
    assert_eq!(eval(&client, &script, "a").await, "a!");
    assert_eq!(
        calls(&mut raw).await,
        (0, 1),
        "not known to be known: the source goes along"
    );
    for _ in 0..10 {
        assert_eq!(eval(&client, &script, "b").await, "b!");
    }
    assert_eq!(calls(&mut raw).await, (10, 1));
    raw.cmd(&["SCRIPT", "FLUSH"]).await;
    assert_eq!(eval(&client, &script, "c").await, "c!");
    assert_eq!(
        calls(&mut raw).await,
        (11, 2),
        "NOSCRIPT, and then the source"
    );
    assert_eq!(eval(&client, &script, "d").await, "d!");
    assert_eq!(calls(&mut raw).await, (12, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn script_flush_at_any_moment_changes_nothing_for_the_caller() {
    let server = Server::start().await;
    let client = client(&server.url()).await;
    let script = Arc::new(Script::new("return ARGV[1] .. '?'"));
    let over = Arc::new(AtomicBool::new(false));
    let mut raw = server.raw().await;
    let flushing = tokio::spawn({
        let over = Arc::clone(&over);
        async move {
            let mut flushes = 0;
            while !over.load(Relaxed) {
                raw.cmd(&["SCRIPT", "FLUSH"]).await;
                flushes += 1;
                tokio::time::sleep(Duration::from_micros(500)).await;
            }
            flushes
        }
    });
    let tasks: Vec<_> = (0..8)
        .map(|task| {
            let (client, script) = (client.clone(), Arc::clone(&script));
            tokio::spawn(async move {
                for n in 0..500 {
                    let arg = format!("{task}:{n}");
                    assert_eq!(eval(&client, &script, &arg).await, format!("{arg}?"));
                }
            })
        })
        .collect();
    for task in tasks {
        tokio::time::timeout(BOUND, task)
            .await
            .expect("no call hangs")
            .unwrap();
    }
    over.store(true, Relaxed);
    assert!(flushing.await.unwrap() > 10);
}

#[tokio::test]
async fn a_script_that_itself_says_noscript_is_tried_with_its_source_once() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let client = client(&server.url()).await;
    let script = Script::new(
        "redis.call('INCR', KEYS[1])
         if ARGV[1] == 'fail' then return redis.error_reply('NOSCRIPT of my own') end
         return 'fine'",
    );
    assert_eq!(eval(&client, &script, "work").await, "fine");
    let before = calls(&mut raw).await;
    let outcome = client.eval(&script.call(&[b"k"], &[b"fail"]), soon()).await;
    assert_eq!(
        *outcome.unwrap_err().as_server().unwrap().kind(),
        ServerErrorKind::NoScript
    );
    let after = calls(&mut raw).await;
    assert_eq!((after.0 - before.0, after.1 - before.1), (1, 1));
    assert_eq!(eval(&client, &script, "work").await, "fine");
}

#[tokio::test]
async fn a_busy_server_is_asked_again_until_it_is_not() {
    let server = Server::builder().config("lua-time-limit 20").start().await;
    let mut raw = server.raw().await;
    let client = client(&server.url()).await;
    let script = Script::new("redis.call('INCR', KEYS[1]) return ARGV[1]");
    eval(&client, &script, "known").await;
    let mut blocker = server.raw().await;
    blocker
        .send(&["EVAL", "while true do end", "0"])
        .await
        .unwrap();
    until_busy(&mut raw).await;
    let killing = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(400)).await;
        raw.cmd(&["SCRIPT", "KILL"]).await;
        raw
    });
    let began = Instant::now();
    assert_eq!(eval(&client, &script, "after").await, "after");
    assert!(
        began.elapsed() >= Duration::from_millis(300),
        "it was busy until then"
    );
    let mut raw = killing.await.unwrap();
    assert_eq!(
        raw.cmd(&["GET", "k"]).await.int(),
        2,
        "run once for each call"
    );
}

#[tokio::test]
async fn a_server_that_stays_busy_is_an_error_at_the_deadline() {
    let server = Server::builder().config("lua-time-limit 20").start().await;
    let mut raw = server.raw().await;
    let client = client(&server.url()).await;
    let script = Script::new("return ARGV[1]");
    let mut blocker = server.raw().await;
    blocker
        .send(&["EVAL", "while true do end", "0"])
        .await
        .unwrap();
    until_busy(&mut raw).await;
    let began = Instant::now();
    let deadline = began + Duration::from_millis(500);
    let error = client
        .eval(&script.call(&[b"k"], &[b"x"]), deadline)
        .await
        .unwrap_err();
    assert_eq!(*error.as_server().unwrap().kind(), ServerErrorKind::Busy);
    assert!(!error.may_have_executed() && error.is_transient());
    assert!(began.elapsed() < BOUND);
    raw.cmd(&["SCRIPT", "KILL"]).await;
}

async fn until_busy(raw: &mut Raw) {
    let began = Instant::now();
    while !raw
        .cmd(&["PING"])
        .await
        .error()
        .is_some_and(|line| line.starts_with("BUSY"))
    {
        assert!(began.elapsed() < BOUND);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_restarted_server_has_forgotten_every_script_and_the_call_goes_through() {
    let server = Server::start().await;
    let client = client(&server.url()).await;
    let script = Script::new("redis.call('SET', KEYS[1], ARGV[1]) return ARGV[1]");
    for round in 0..3 {
        let arg = round.to_string();
        let done = client
            .eval(&script.call(&[b"k"], &[arg.as_bytes()]), soon())
            .await
            .unwrap();
        assert_eq!(done.value.as_str(), Some(arg.as_str()));
        server.restart().await;
    }
    client
        .eval(&script.call(&[b"k"], &[b"last"]), soon())
        .await
        .unwrap();
    assert_eq!(server.raw().await.cmd(&["GET", "k"]).await.str(), "last");
}

#[tokio::test]
async fn after_a_reconnect_the_source_goes_along_again() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let client = client(&server.url()).await;
    let script = Script::new("return ARGV[1] .. '.'");
    eval(&client, &script, "a").await;
    eval(&client, &script, "b").await;
    assert_eq!(calls(&mut raw).await, (1, 1));
    raw.cmd(&["CLIENT", "KILL", "TYPE", "normal"]).await;
    // The next call may be the first to notice.
    let began = Instant::now();
    while client.call(b"k", &Command::new("PING")).await.is_err() {
        assert!(began.elapsed() < BOUND);
    }
    eval(&client, &script, "c").await;
    assert_eq!(
        calls(&mut raw).await,
        (1, 2),
        "one round trip, whatever the server remembers"
    );
}

#[tokio::test]
async fn a_lost_reply_is_made_good_and_the_caller_is_told_that_it_may_have_run_twice() {
    let server = Server::start().await;
    let proxy = Proxy::start(server.addr());
    let client = client(&proxy.url()).await;
    let script = Script::new("redis.call('INCR', KEYS[1]) return ARGV[1]");
    eval(&client, &script, "known").await;
    proxy.to_client(leasehold_testkit::Fault::LoseReply {
        nth: 1,
        how: leasehold_testkit::Cut::Rst,
    });
    let before = Instant::now();
    let done = client
        .eval(&script.call(&[b"k"], &[b"x"]), soon())
        .await
        .unwrap();
    assert!(done.repeated);
    assert!(done.sent >= before && done.sent_wall <= std::time::SystemTime::now());
    assert_eq!(server.raw().await.cmd(&["GET", "k"]).await.int(), 3);
    // And when there is no second answer either, it is unknown, even if the last attempt was not
    // even sent.
    proxy.to_client(leasehold_testkit::Fault::LoseReply {
        nth: 1,
        how: leasehold_testkit::Cut::Rst,
    });
    let refusing = async {
        while server.raw().await.cmd(&["GET", "k"]).await.int() < 4 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let deadline = Instant::now() + Duration::from_millis(700);
    let keys = [&b"k"[..]];
    let call = script.call(&keys, &[b"y"]);
    proxy.accept(leasehold_testkit::Accept::Refuse);
    let (outcome, ()) = tokio::join!(client.eval(&call, deadline), refusing);
    let error = outcome.unwrap_err();
    assert!(error.may_have_executed(), "{error}");
}

/// The client tracks the server's cache for 64 scripts; later ones work as well. Runs in a process
/// of its own: scripts that are made after these would not be tracked.
#[test]
fn the_hundredth_script_works_as_the_first_one_does() {
    in_own_process(async {
        let server = Server::start().await;
        let client = client(&server.url()).await;
        let scripts: Vec<Script> = (0..100)
            .map(|n| Script::new(String::leak(format!("return {n}"))))
            .collect();
        for _ in 0..2 {
            for (n, script) in scripts.iter().enumerate() {
                let done = client
                    .eval(&script.call(&[b"k"], &[]), soon())
                    .await
                    .unwrap_or_else(|e| panic!("script {n}: {e}"));
                assert_eq!(done.value.as_int(), Some(i64::try_from(n).unwrap()));
            }
            server.raw().await.cmd(&["SCRIPT", "FLUSH"]).await;
        }
    });
}
