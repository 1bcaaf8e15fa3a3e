//! What the scripts of the mutex refuse, skip and survive: data of others, strange counters, missing rights, dead tickets.

use leasehold_testkit::{RawValue, Server};

use crate::scripts::sources::{
    ACQUIRE, ACQUIRE_ALONE, CONFIRM_ALONE, INSPECT, RELEASE_ALONE, RENEW, RENEW_ONE,
    RENEW_REPLICATED,
};
use crate::scripts::{
    A, B, C, CHANNEL, Ears, KEPT, LINE, TOKEN, acquire, assert_refused, confirm, counter, ears,
    force_unlock, granted, join, line, line_up, look, place, release, run, taken, ticket, user,
};
use crate::support::{assert_everything_expires, bulk, exists, fields, pttl};

/// Texts that are no counter, or one that has no exact successor.
const STRANGE: [&str; 9] = [
    "tomorrow",
    "-5",
    "1.5",
    "",
    "1e300",
    "0x10",
    "1.55555555555555",
    "9007199254740991",
    "99999999999999999999",
];

#[tokio::test]
async fn no_hold_gets_its_token_from_a_strange_counter() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    acquire(&mut raw, "me:1", "30000").await;
    for strange in STRANGE {
        raw.cmd(&["SET", TOKEN, strange]).await;
        if strange == "9007199254740991" {
            // A counter that can be told, though it has no successor.
            let (token, _) = taken(&confirm(&mut raw, "me:1", "30000").await);
            assert_eq!(token, 9_007_199_254_740_991);
            continue;
        }
        assert_refused(&acquire(&mut raw, "me:1", "30000").await, "BADTOKEN");
        assert_refused(&confirm(&mut raw, "me:1", "30000").await, "BADTOKEN");
        assert_refused(&look(&mut raw, "me:1", "", "P").await, "BADTOKEN");
        assert_eq!(raw.cmd(&["GET", TOKEN]).await, bulk(strange));
    }
    assert_eq!(fields(&mut raw, "L").await, "me:1=1");
}

#[tokio::test]
async fn somebody_elses_data_is_refused_before_anything_is_written() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    for precious in [
        &["SET", "L", "precious"][..],
        &["HSET", "L", "name", "precious"],
        &["HSET", "L", "me:1x:", "precious"],
        &["HSET", "L", "mode", "precious"],
        &["ZADD", "L", "1", "precious"],
    ] {
        raw.cmd(precious).await;
        let before = raw.cmd(&["DUMP", "L"]).await;
        for refused in [
            acquire(&mut raw, "me:1", "30000").await,
            join(&mut raw, "me:1").await,
            look(&mut raw, "me:1", "", "P").await,
            run(&mut raw, ACQUIRE_ALONE, &["L"], &["me:1", "30000", "0"]).await,
            force_unlock(&mut raw, CHANNEL, "P").await,
            run(&mut raw, INSPECT, &["L"], &[]).await,
        ] {
            assert_refused(&refused, "WRONGTYPE");
        }
        for harmless in [
            release(&mut raw, "me:1", "P", &["me:1", CHANNEL, ""]).await,
            run(&mut raw, RELEASE_ALONE, &["L"], &["me:1", "P"]).await,
            confirm(&mut raw, "me:1", "30000").await,
            run(&mut raw, CONFIRM_ALONE, &["L"], &["me:1", "30000", "0"]).await,
        ] {
            assert!(harmless == RawValue::Int(0) || harmless.error().is_some());
        }
        assert_eq!(raw.cmd(&["DUMP", "L"]).await, before, "{precious:?}");
        assert_eq!(pttl(&mut raw, "L").await, -1);
        assert_eq!(raw.cmd(&["DBSIZE"]).await.int(), 1, "nothing beside it");
        raw.cmd(&["DEL", "L"]).await;
    }
}

#[tokio::test]
async fn a_foreign_hash_with_an_expiry_has_no_line() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    raw.cmd(&["HSET", "L", "name", "precious"]).await;
    raw.cmd(&["PEXPIRE", "L", "60000"]).await;
    for refused in [
        acquire(&mut raw, "me:1", "30000").await,
        join(&mut raw, "me:1").await,
        look(&mut raw, "me:1", "", "P").await,
        look(&mut raw, "me:1", "5", "P").await,
    ] {
        assert_refused(&refused, "WRONGTYPE");
    }
    assert_eq!(raw.cmd(&["DBSIZE"]).await.int(), 1, "nothing beside it");
    // Where others wait, the lock was one when they came; a look finds out.
    line_up(&mut raw, &[&ticket(A, 1)]).await;
    assert_eq!(place(&join(&mut raw, "me:1").await).ahead, 1);
    assert_refused(&look(&mut raw, "me:1", "", "P").await, "WRONGTYPE");
    assert_eq!(fields(&mut raw, "L").await, "name=precious");
}

#[tokio::test]
async fn no_lock_is_taken_without_a_counter() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    raw.cmd(&["RPUSH", TOKEN, "precious"]).await;
    for refused in [
        acquire(&mut raw, "me:1", "30000").await,
        join(&mut raw, "me:1").await,
        look(&mut raw, "me:1", "", "P").await,
    ] {
        assert_refused(&refused, "WRONGTYPE");
        assert!(!exists(&mut raw, "L").await, "no lock without a token");
    }
    assert_eq!(raw.cmd(&["LLEN", TOKEN]).await.int(), 1);
    for strange in STRANGE {
        raw.cmd(&["SET", TOKEN, strange]).await;
        for kept in [KEPT, "0"] {
            let args = ["me:1", "30000", kept];
            let refused = run(&mut raw, ACQUIRE, &["L", TOKEN], &args).await;
            assert_refused(&refused, "BADTOKEN");
        }
        assert_refused(&look(&mut raw, "me:1", "", "P").await, "BADTOKEN");
        assert!(!exists(&mut raw, "L").await, "no lock without a token");
        assert_eq!(raw.cmd(&["GET", TOKEN]).await, bulk(strange));
    }
    raw.cmd(&["DEL", TOKEN]).await;
    let mut reader = user(&server, &["-set"]).await;
    assert_refused(&acquire(&mut reader, "me:1", "30000").await, "");
    assert!(!exists(&mut raw, "L").await, "no lock without a token");
}

#[tokio::test]
async fn a_refused_publish_does_not_hide_that_the_hold_is_gone() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let mut mute = user(&server, &["resetchannels"]).await;
    for n in 0..3 {
        acquire(&mut raw, "me:1", "30000").await;
        let ended = match n {
            0 => release(&mut mute, "me:1", "P", &["", CHANNEL]).await,
            1 => {
                let args = ["me:1", "P", CHANNEL];
                run(&mut mute, RELEASE_ALONE, &["L"], &args).await
            }
            _ => force_unlock(&mut mute, CHANNEL, "P").await,
        };
        assert_eq!(ended, RawValue::Int(1));
        assert!(!exists(&mut raw, "L").await);
    }
}

#[tokio::test]
async fn an_error_of_a_renewal_is_no_lost_hold() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    acquire(&mut raw, "me:1", "1000").await;
    let mut blind = user(&server, &["-hexists"]).await;
    for renewal in [RENEW, RENEW_REPLICATED, RENEW_ONE] {
        let renewed = run(&mut blind, renewal, &["L"], &["me:1", "30000"]).await;
        assert!(renewed.error().is_some(), "{renewed:?}");
    }
}

#[tokio::test]
async fn dead_tickets_are_skipped_where_the_count_of_receivers_can_be_trusted() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let mut heard = ears(&server, C).await;
    let tickets = [ticket(A, 1), ticket(B, 1), ticket(C, 1)];
    let tickets: Vec<_> = tickets.iter().map(String::as_str).collect();

    let held = acquire(&mut raw, "me:1", "30000").await.int();
    line_up(&mut raw, &tickets).await;
    assert_eq!(release(&mut raw, "me:1", "P", &[]).await.int(), 2);
    let token = granted(&mut heard).await.token;
    assert!(token > held);
    assert!(!exists(&mut raw, LINE).await);

    // In a cluster with plain channels the client may listen at any node.
    line_up(&mut raw, &tickets).await;
    let mut last = token;
    for ticket in &tickets {
        let holder = fields(&mut raw, "L").await;
        let holder = holder.strip_suffix("=1").expect("a hold").to_owned();
        assert_eq!(release(&mut raw, &holder, "C", &[]).await.int(), 2);
        assert_eq!(fields(&mut raw, "L").await, format!("{ticket}=1"));
        assert!((1..=1_000).contains(&pttl(&mut raw, "L").await));
        assert!(counter(&mut raw).await > last);
        last = counter(&mut raw).await;
    }
    assert_eq!(granted(&mut heard).await.token, last, "told if it can be");
}

#[tokio::test]
async fn one_request_skips_at_most_64_dead_tickets() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let mut heard = ears(&server, A).await;
    let dead: Vec<_> = (0..200).map(|n| ticket(B, n)).collect();
    let dead: Vec<_> = dead.iter().map(String::as_str).collect();
    let living = ticket(A, 1);
    for (count, answer, left) in [(63, 2, 0), (64, 1, 1), (70, 1, 7)] {
        acquire(&mut raw, "me:1", "30000").await;
        line_up(&mut raw, &[&dead[..count], &[&living]].concat()).await;
        let ended = release(&mut raw, "me:1", "P", &[]).await.int();
        assert_eq!(ended, answer, "{count} dead");
        let lined = raw.cmd(&["ZCARD", LINE]).await.int();
        assert_eq!(lined, left, "{count} dead");
        assert_eq!(exists(&mut raw, "L").await, answer == 2);
        assert_eq!(heard.heard().await.len(), usize::from(answer == 2));
        // The next look goes on, and serves the first that lives.
        if answer == 1 {
            let reply = look(&mut raw, &ticket(C, 1), "", "P").await;
            assert_eq!(place(&reply).ms, 1_000);
            assert_eq!(fields(&mut raw, "L").await, format!("{living}=1"));
            granted(&mut heard).await;
        }
        raw.cmd(&["DEL", "L", LINE]).await;
    }
    acquire(&mut raw, "me:1", "30000").await;
    line_up(&mut raw, &dead[..10]).await;
    assert_eq!(release(&mut raw, "me:1", "P", &[]).await.int(), 1);
    assert_eq!(raw.cmd(&["EXISTS", "L", LINE]).await.int(), 0);
}

#[tokio::test]
async fn what_is_no_ticket_of_ours_is_dropped() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (mut heard, mut strange) = (ears(&server, A).await, ears(&server, "x").await);
    let good = ticket(A, 1);
    let tickets = [
        "",
        "x",
        "x:",
        ":1",
        "x:one",
        "x:1|r",
        "x:1|5|6",
        "x:1|0",
        "x:1|60001",
        "x:1|99999999999999999999",
        "x:1|-5",
        "x 1",
        &good,
    ];
    acquire(&mut raw, "me:1", "30000").await;
    line_up(&mut raw, &tickets).await;
    assert_eq!(release(&mut raw, "me:1", "P", &[]).await.int(), 2);
    assert_eq!(granted(&mut heard).await.number, 1);
    assert_eq!(strange.heard().await, [""; 0]);
    assert_eq!(fields(&mut raw, "L").await, format!("{good}=1"));
    assert!(!exists(&mut raw, LINE).await);
    assert_everything_expires(&mut raw).await;
}

#[tokio::test]
async fn a_refused_message_leaves_the_ticket_where_it_was() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let mut mute = user(&server, &["resetchannels"]).await;
    let mut heard = ears(&server, A).await;
    let (a, b) = (ticket(A, 1), ticket(B, 1));
    for waiting in [&[&a[..]][..], &[&a, &b]] {
        acquire(&mut raw, "me:1", "30000").await;
        let mut scores = Vec::new();
        for ticket in waiting {
            scores.push(place(&join(&mut raw, ticket).await).score);
        }
        assert_eq!(release(&mut mute, "me:1", "P", &[]).await.int(), 1);
        assert!(!exists(&mut raw, "L").await);
        assert_eq!(line(&mut raw).await, waiting.join(" "));
        let kept = raw.cmd(&["ZSCORE", LINE, &a]).await.int();
        assert_eq!(kept, scores[0]);
        assert_everything_expires(&mut raw).await;
        raw.cmd(&["DEL", LINE]).await;
        line_up(&mut raw, waiting).await;
    }
    // Another does not take it past the first, which takes it when it looks itself.
    let second = place(&look(&mut mute, &b, "", "P").await);
    assert_eq!((second.ms, second.ahead), (1_000, 1));
    assert!(!exists(&mut raw, "L").await);
    assert_everything_expires(&mut raw).await;
    let (token, ms) = taken(&look(&mut mute, &a, "", "P").await);
    assert_eq!((token, ms), (counter(&mut raw).await, 30_000));
    assert_eq!(fields(&mut raw, "L").await, format!("{a}=1"));
    assert_eq!(line(&mut raw).await, b);
    assert_eq!(heard.heard().await, [""; 0]);
}

#[tokio::test]
async fn without_rights_to_the_line_a_hold_still_ends() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let mut java = Ears::plain(&server, CHANNEL).await;
    for rules in [&["-@sortedset"][..], &["-exists"], &["-zpopmin"]] {
        let mut limited = user(&server, rules).await;
        acquire(&mut raw, "me:1", "30000").await;
        line_up(&mut raw, &[&ticket(A, 1)]).await;
        let more = [&ticket(A, 1), CHANNEL, ""];
        let ended = release(&mut limited, "me:1", "P", &more).await;
        assert_eq!(ended, RawValue::Int(1), "{rules:?}");
        assert_eq!(java.heard().await, ["0"]);
        assert!(!exists(&mut raw, "L").await);
        raw.cmd(&["ACL", "DELUSER", "some"]).await;
    }
}

#[tokio::test]
async fn a_strange_counter_grants_to_nobody_and_is_told_to_those_who_look() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let mut heard = ears(&server, A).await;
    let mut java = Ears::plain(&server, CHANNEL).await;
    let (a, b) = (ticket(A, 1), ticket(B, 1));
    for (strange, code) in [
        (&["SET", TOKEN, "tomorrow"][..], "BADTOKEN"),
        (&["RPUSH", TOKEN, "a list"], "WRONGTYPE"),
    ] {
        raw.cmd(&["FLUSHALL"]).await;
        acquire(&mut raw, "me:1", "30000").await;
        line_up(&mut raw, &[&a, &b]).await;
        raw.cmd(&["DEL", TOKEN]).await;
        raw.cmd(strange).await;
        let ended = release(&mut raw, "me:1", "P", &["", CHANNEL, ""]).await;
        assert_eq!(ended.int(), 1);
        assert_eq!(java.heard().await, ["0"]);
        for ticket in [&a, &b] {
            assert_refused(&look(&mut raw, ticket, "", "P").await, code);
            assert!(!exists(&mut raw, "L").await, "no lock without a token");
        }
        assert_eq!(line(&mut raw).await, format!("{a} {b}"));
        assert!(pttl(&mut raw, LINE).await > 0);
        assert_eq!(heard.heard().await, [""; 0]);
    }
}

#[tokio::test]
async fn a_line_of_another_type_is_refused_to_those_who_wait_and_hides_no_end() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let mut java = Ears::plain(&server, CHANNEL).await;
    raw.cmd(&["SET", LINE, "precious"]).await;
    assert!(join(&mut raw, &ticket(A, 1)).await.int() > 0);
    assert_refused(&join(&mut raw, &ticket(B, 1)).await, "WRONGTYPE");
    assert_refused(&look(&mut raw, &ticket(B, 1), "", "P").await, "WRONGTYPE");
    assert!(acquire(&mut raw, &ticket(B, 1), "30000").await.int() < 0);
    for n in 0..3 {
        acquire(&mut raw, &ticket(A, 1), "30000").await;
        let ended = match n {
            0 => release(&mut raw, &ticket(A, 1), "P", &[&ticket(A, 1), CHANNEL, ""]).await,
            1 => release(&mut raw, &ticket(A, 1), "P", &["", CHANNEL, "0"]).await,
            _ => force_unlock(&mut raw, CHANNEL, "P").await,
        };
        assert_eq!(ended, RawValue::Int(1));
        assert_eq!(java.heard().await, ["0"]);
        assert!(!exists(&mut raw, "L").await);
    }
    assert_refused(&look(&mut raw, &ticket(B, 1), "", "P").await, "WRONGTYPE");
    assert!(!exists(&mut raw, "L").await);
    assert_eq!(raw.cmd(&["GET", LINE]).await, bulk("precious"));
}

#[tokio::test]
async fn a_lock_with_further_holders_is_granted_to_nobody() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let mut heard = ears(&server, A).await;
    acquire(&mut raw, "me:1", "30000").await;
    raw.cmd(&["HSET", "L", "mode", "read", "u:1", "1"]).await;
    line_up(&mut raw, &[&ticket(A, 1)]).await;
    assert_eq!(release(&mut raw, "me:1", "P", &[]).await.int(), 1);
    assert_eq!(fields(&mut raw, "L").await, "mode=read u:1=1");
    assert_eq!(line(&mut raw).await, ticket(A, 1));
    assert_eq!(heard.heard().await, [""; 0]);
}
