//! Many keys: within the budget, and no more than a few commands each.

use std::time::Instant;

use leasehold_testkit::raw::encode;
use leasehold_testkit::{Raw, Server, calls};

use crate::support::{MADE_UP, hold, run};

const LOCKS: usize = 10_000;

/// Writes so many locks and as many foreign hashes and strings, in a few requests.
async fn fill(raw: &mut Raw, locks: usize) {
    let script = "for i = 1, tonumber(ARGV[1]) do redis.call('HSET', 'lock:' .. i, ARGV[2] .. ':' .. i, '1') \
                  redis.call('PEXPIRE', 'lock:' .. i, 600000) redis.call('HSET', 'user:' .. i, 'name', 'Ann') \
                  redis.call('SET', 'text:' .. i, 'x') end return 1";
    raw.send_bytes(&encode(&["EVAL", script, "0", &locks.to_string(), MADE_UP]))
        .await
        .unwrap();
    assert_eq!(raw.read().await.unwrap().int(), 1);
}

#[tokio::test]
async fn ten_thousand_locks_cost_a_few_commands_each() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    fill(&mut raw, LOCKS).await;
    raw.cmd(&["CONFIG", "RESETSTAT"]).await;
    let ran = run(&server.url(), &["ls", "--json", "--budget", "1000000"]).await;
    assert_eq!((ran.code, ran.rows().len()), (0, LOCKS));
    // A hash is looked at once, foreign or not; a lock takes its lease and its token as well.
    assert_eq!(calls(&mut raw, "hscan").await, 2 * LOCKS as u64);
    assert_eq!(calls(&mut raw, "pttl").await, LOCKS as u64);
    assert_eq!(calls(&mut raw, "getrange").await, LOCKS as u64);
    assert_eq!(calls(&mut raw, "zcard").await, 0, "nobody waits");
    assert!(calls(&mut raw, "scan").await < 200);
    assert_eq!(calls(&mut raw, "keys").await, 0);
}

#[tokio::test]
async fn a_look_takes_the_time_that_its_budget_says() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    fill(&mut raw, 500).await;
    hold(&mut raw, "one", MADE_UP, Some(60_000)).await;
    let start = Instant::now();
    let ran = run(&server.url(), &["ls", "--json", "--budget", "1000"]).await;
    let took = start.elapsed();
    assert_eq!(ran.rows().len(), 501);
    // 2,000 commands, of which the last batch goes out when those before it are paid for.
    assert!(took.as_millis() >= 1_000, "{took:?}");
}
