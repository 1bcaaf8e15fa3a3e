//! The script that takes several locks, through a client that shares no code with the library: random requests against a
//! reference, and the replies that a client depends on.

#[path = "../../../lock/src/protocol/multi/sources.rs"]
mod sources;

use std::collections::BTreeMap;

use leasehold_testkit::chance::Chance;
use leasehold_testkit::{Raw, RawValue, Server};

use crate::support::{exists, fields, pttl};

/// Sequences of requests, and requests in each.
const SEQUENCES: usize = 1_000;
const REQUESTS: usize = 12;

async fn acquire(raw: &mut Raw, names: &[&str], hold: &str, lease: &str) -> RawValue {
    let keys: Vec<String> = names
        .iter()
        .flat_map(|name| {
            [
                (*name).to_owned(),
                format!("redisson_lock_token:{{{name}}}"),
            ]
        })
        .collect();
    let count = keys.len().to_string();
    let mut request = vec!["EVAL", sources::ACQUIRE, &count];
    request.extend(keys.iter().map(String::as_str));
    request.extend([hold, lease, "600000", "2"]);
    raw.cmd(&request).await
}

fn numbers(reply: &RawValue) -> Vec<i64> {
    reply.array().iter().map(RawValue::int).collect()
}

#[tokio::test]
async fn what_is_held_is_told_by_its_index_and_nothing_is_written() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let reply = numbers(&acquire(&mut raw, &["b"], "u:1", "30000").await);
    assert!(matches!(reply[..], [1, token, 30_000] if token > 1_600_000_000_000_000));
    let [0, 2, ms] = numbers(&acquire(&mut raw, &["a", "b", "c"], "v:1", "30000").await)[..] else {
        panic!("the second is held");
    };
    assert!((20_000..=30_000).contains(&ms));
    assert!(!exists(&mut raw, "a").await && !exists(&mut raw, "c").await);
    assert!(!exists(&mut raw, "redisson_lock_token:{a}").await);
}

#[tokio::test]
async fn a_repetition_keeps_leases_and_completes_what_was_lost() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let first = numbers(&acquire(&mut raw, &["a", "b"], "u:1", "30000").await);
    raw.cmd(&["PEXPIRE", "a", "9000"]).await;
    raw.cmd(&["DEL", "b"]).await;
    let again = numbers(&acquire(&mut raw, &["a", "b"], "u:1", "30000").await);
    assert_eq!(again[1], first[1], "the token that it has");
    assert!(
        again[2] <= 9_000 && pttl(&mut raw, "a").await <= 9_000,
        "not extended"
    );
    assert!(again[3] > first[3], "taken anew");
    assert_eq!(
        (again[4], fields(&mut raw, "b").await.as_str()),
        (30_000, "u:1=1")
    );
}

#[tokio::test]
async fn what_is_no_lock_is_refused_before_anything_is_taken() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    for (command, error) in [
        (&["SET", "b", "x"][..], "WRONGTYPE"),
        (&["HSET", "b", "x", "y"], "WRONGTYPE"),
        (&["SET", "redisson_lock_token:{b}", "x"], "BADTOKEN"),
        (&["LPUSH", "redisson_lock_token:{b}", "x"], "WRONGTYPE"),
    ] {
        raw.cmd(&["FLUSHALL"]).await;
        raw.cmd(command).await;
        let reply = acquire(&mut raw, &["a", "b"], "u:1", "30000").await;
        let parts = reply.array();
        assert_eq!((parts[0].int(), parts[1].int(), parts[2].int()), (0, 2, -3));
        assert!(parts[3].str().contains(error), "{command:?}: {reply:?}");
        assert!(!exists(&mut raw, "a").await);
    }
    raw.cmd(&["FLUSHALL"]).await;
    raw.cmd(&["HSET", "b", "v:1", "1"]).await;
    let reply = numbers(&acquire(&mut raw, &["a", "b"], "u:1", "30000").await);
    assert_eq!(reply, [0, 2, -1], "no expiry");
}

/// Who holds what, in memory.
#[tokio::test]
async fn random_requests_have_the_replies_of_the_reference() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let seed = Chance::seed();
    println!("LEASEHOLD_SEED={seed}");
    let mut chance = Chance::new(seed);
    let all = ["a", "b", "c", "d", "e"];
    let mut tokens: BTreeMap<&str, i64> = BTreeMap::new();
    for _ in 0..SEQUENCES {
        let mut held: BTreeMap<&str, String> = BTreeMap::new();
        for _ in 0..REQUESTS {
            let hold = format!("u-{}:1", chance.below(3));
            if chance.percent(35) {
                let name = *chance.pick(&all);
                let removed = raw.cmd(&["HDEL", name, &hold]).await.int();
                let is_mine = held.get(name) == Some(&hold);
                assert_eq!(removed, i64::from(is_mine));
                if is_mine {
                    held.remove(name);
                }
                continue;
            }
            let mut names = all;
            chance.shuffle(&mut names);
            let names = &names[..1 + chance.below(all.len() as u64) as usize];
            let reply = numbers(&acquire(&mut raw, names, &hold, "60000").await);
            let other = |name: &&&str| held.get(**name).is_some_and(|holder| *holder != hold);
            let conflict = names.iter().position(|name| other(&name));
            if let Some(at) = conflict {
                assert_eq!(reply[..2], [0, at as i64 + 1]);
                continue;
            }
            assert_eq!((reply[0], reply.len()), (1, 1 + 2 * names.len()));
            for (name, pair) in names.iter().zip(reply[1..].chunks(2)) {
                let known = tokens.insert(name, pair[0]).unwrap_or_default();
                if held.insert(name, hold.clone()).is_some() {
                    assert_eq!(pair[0], known, "the same hold has the same token");
                } else {
                    assert!(pair[0] > known, "tokens grow");
                }
            }
        }
        for name in all {
            let expected = held
                .get(name)
                .map_or(String::new(), |hold| format!("{hold}=1"));
            assert_eq!(fields(&mut raw, name).await, expected);
            raw.cmd(&["DEL", name]).await;
        }
    }
}
