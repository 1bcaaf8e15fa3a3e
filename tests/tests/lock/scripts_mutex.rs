//! The scripts of the mutex by themselves, through a client that shares no code with the library.

use leasehold_testkit::{Raw, RawValue, Server};

use crate::support::{add_mute_user, bulk, exists, fields, pttl};

const ACQUIRE: &str = include_str!("../../../lock/src/protocol/mutex/acquire.lua");
const RELEASE: &str = include_str!("../../../lock/src/protocol/mutex/release.lua");
const RENEW: &str = include_str!("../../../lock/src/protocol/mutex/renew.lua");
const FORCE_UNLOCK: &str = include_str!("../../../lock/src/protocol/mutex/force_unlock.lua");

/// A Redisson client's acquire, as it affects the server's state.
const REDISSON_ACQUIRE: &str = "
    if redis.call('EXISTS', KEYS[1]) == 0 or redis.call('HEXISTS', KEYS[1], ARGV[2]) == 1 then
        redis.call('HINCRBY', KEYS[1], ARGV[2], 1)
        redis.call('PEXPIRE', KEYS[1], ARGV[1])
        return nil
    end
    return redis.call('PTTL', KEYS[1])";

/// Its release.
const REDISSON_RELEASE: &str = "
    if redis.call('HEXISTS', KEYS[1], ARGV[2]) == 0 then return nil end
    if redis.call('HINCRBY', KEYS[1], ARGV[2], -1) > 0 then
        redis.call('PEXPIRE', KEYS[1], ARGV[1])
        return 0
    end
    redis.call('DEL', KEYS[1])
    redis.call('PUBLISH', KEYS[2], '0')
    return 1";

const TOKEN: &str = "redisson_lock_token:{L}";
const CHANNEL: &str = "redisson_lock__channel:{L}";

async fn acquire(raw: &mut Raw, hold: &str, lease: &str) -> RawValue {
    raw.cmd(&["EVAL", ACQUIRE, "2", "L", TOKEN, hold, lease, "600000"])
        .await
}

async fn release(raw: &mut Raw, hold: &str) -> RawValue {
    raw.cmd(&["EVAL", RELEASE, "1", "L", hold, CHANNEL, "PUBLISH"])
        .await
}

async fn subscriber(server: &Server) -> Raw {
    let mut ears = server.raw().await;
    ears.hello3().await;
    ears.send(&["SUBSCRIBE", CHANNEL]).await.unwrap();
    assert_eq!(ears.push().await[0], bulk("subscribe"));
    ears
}

/// The messages published so far: everything before the reply to a PING sent now.
async fn messages(ears: &mut Raw) -> usize {
    let marker = ears.cmd(&["PUBLISH", CHANNEL, "marker"]).await;
    assert_eq!(marker, RawValue::Int(1));
    let mut heard = 0;
    loop {
        let push = ears.push().await;
        match push[2].str() {
            "marker" => return heard,
            other => assert_eq!(other, "0"),
        }
        heard += 1;
    }
}

#[tokio::test]
async fn a_free_lock_is_taken_with_an_expiry_on_everything() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let token = acquire(&mut raw, "me:1", "30000").await.int();
    assert!(
        token > 1_700_000_000_000_000,
        "a time in microseconds: {token}"
    );
    assert_eq!(fields(&mut raw, "L").await, "me:1=1");
    assert!((1..=30_000).contains(&pttl(&mut raw, "L").await));
    assert_eq!(
        raw.cmd(&["GET", TOKEN]).await,
        bulk(&token.to_string()),
        "all 16 digits"
    );
    assert!((30_001..=600_000).contains(&pttl(&mut raw, TOKEN).await));
}

#[tokio::test]
async fn a_lost_reply_repeated_acquire_gives_the_same_token_and_counts_once() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let token = acquire(&mut raw, "me:1", "30000").await;
    assert_eq!(acquire(&mut raw, "me:1", "1000").await, token);
    assert!(
        pttl(&mut raw, "L").await > 20_000,
        "a repetition never shortens"
    );
    assert_eq!(acquire(&mut raw, "me:1", "60000").await, token);
    assert!(pttl(&mut raw, "L").await > 50_000, "and it does extend");
    assert_eq!(fields(&mut raw, "L").await, "me:1=1");
    assert_eq!(release(&mut raw, "me:1").await, RawValue::Int(1));
    assert!(!exists(&mut raw, "L").await);
}

#[tokio::test]
async fn a_repetition_after_the_counter_was_lost_still_has_a_higher_token() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let token = acquire(&mut raw, "me:1", "30000").await.int();
    raw.cmd(&["DEL", TOKEN]).await;
    let again = acquire(&mut raw, "me:1", "30000").await.int();
    assert!(again > token);
    assert_eq!(raw.cmd(&["GET", TOKEN]).await.int(), again);
    assert_eq!(fields(&mut raw, "L").await, "me:1=1");
}

#[tokio::test]
async fn a_held_lock_says_for_how_long() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    acquire(&mut raw, "me:1", "30000").await;
    let before = fields(&mut raw, "L").await;
    let held = acquire(&mut raw, "you:1", "90000").await.int();
    assert!((-30_001..-20_000).contains(&held), "{held}");
    assert_eq!(fields(&mut raw, "L").await, before);
    assert!(pttl(&mut raw, "L").await <= 30_000);
}

#[tokio::test]
async fn tokens_grow_through_a_flush_and_past_a_counter_ahead_of_the_clock() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let mut last = 0;
    for n in 0..50 {
        let token = acquire(&mut raw, &format!("me:{n}"), "30000").await.int();
        assert!(token > last);
        last = token;
        if n % 10 == 9 {
            raw.cmd(&["FLUSHALL"]).await;
        } else {
            release(&mut raw, &format!("me:{n}")).await;
        }
    }
    release(&mut raw, "me:49").await;
    // Lua's `..` would make 9.007199254741e+15 of it.
    raw.cmd(&["SET", TOKEN, "9007199254740989"]).await;
    assert_eq!(
        acquire(&mut raw, "me:50", "30000").await.int(),
        9_007_199_254_740_990
    );
    assert_eq!(raw.cmd(&["GET", TOKEN]).await, bulk("9007199254740990"));
}

#[tokio::test]
async fn somebody_elses_data_is_refused_before_anything_is_written() {
    let server = Server::start().await;
    let mut raw = server.raw().await;

    raw.cmd(&["SET", "L", "precious"]).await;
    assert!(
        acquire(&mut raw, "me:1", "30000")
            .await
            .error()
            .unwrap()
            .contains("WRONGTYPE")
    );
    assert_eq!(raw.cmd(&["GET", "L"]).await, bulk("precious"));
    assert!(!exists(&mut raw, TOKEN).await);
    assert!(
        release(&mut raw, "me:1")
            .await
            .error()
            .unwrap()
            .contains("WRONGTYPE")
    );
    raw.cmd(&["DEL", "L"]).await;

    raw.cmd(&["RPUSH", TOKEN, "precious"]).await;
    assert!(
        acquire(&mut raw, "me:1", "30000")
            .await
            .error()
            .unwrap()
            .contains("WRONGTYPE")
    );
    assert!(!exists(&mut raw, "L").await, "no lock without a token");
    raw.cmd(&["DEL", TOKEN]).await;

    for strange in [
        "tomorrow",
        "-5",
        "1.5",
        "",
        "1e300",
        "9007199254740991",
        "99999999999999999999",
    ] {
        raw.cmd(&["SET", TOKEN, strange]).await;
        assert!(
            acquire(&mut raw, "me:1", "30000")
                .await
                .error()
                .unwrap()
                .contains("BADTOKEN"),
            "{strange}"
        );
        assert!(!exists(&mut raw, "L").await, "no lock without a token");
        assert_eq!(raw.cmd(&["GET", TOKEN]).await, bulk(strange));
    }
}

#[tokio::test]
async fn with_redisson_the_counter_keeps_no_expiry() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    raw.cmd(&["EVAL", ACQUIRE, "2", "L", TOKEN, "me:1", "30000", "0"])
        .await;
    assert_eq!(pttl(&mut raw, TOKEN).await, -1);
    assert!(pttl(&mut raw, "L").await > 0);
}

#[tokio::test]
async fn a_lock_without_an_expiry_is_told_apart_and_ones_own_gets_it_back() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    acquire(&mut raw, "me:1", "30000").await;
    raw.cmd(&["PERSIST", "L"]).await;
    assert_eq!(acquire(&mut raw, "you:1", "30000").await, RawValue::Int(0));
    assert!(acquire(&mut raw, "me:1", "30000").await.int() > 0);
    assert!(pttl(&mut raw, "L").await > 0);
}

#[tokio::test]
async fn only_the_holder_releases_and_only_the_release_is_announced() {
    let server = Server::start().await;
    let (mut raw, mut ears) = (server.raw().await, subscriber(&server).await);
    acquire(&mut raw, "me:1", "30000").await;
    assert_eq!(release(&mut raw, "you:1").await, RawValue::Int(0));
    assert_eq!(fields(&mut raw, "L").await, "me:1=1");
    assert_eq!(messages(&mut ears).await, 0);
    assert_eq!(
        release(&mut raw, "me:1").await,
        RawValue::Int(2),
        "one listener"
    );
    assert_eq!(messages(&mut ears).await, 1);
    assert_eq!(
        release(&mut raw, "me:1").await,
        RawValue::Int(0),
        "a lost reply, repeated"
    );
    assert_eq!(messages(&mut ears).await, 0);
}

#[tokio::test]
async fn a_refused_publish_does_not_hide_that_the_hold_is_gone() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    add_mute_user(&mut raw).await;
    acquire(&mut raw, "me:1", "30000").await;
    let mut mute = server.raw().await;
    mute.cmd(&["AUTH", "mute", "secret"]).await;
    assert_eq!(release(&mut mute, "me:1").await, RawValue::Int(1));
    assert!(!exists(&mut raw, "L").await);
    acquire(&mut raw, "me:2", "30000").await;
    assert_eq!(
        mute.cmd(&["EVAL", FORCE_UNLOCK, "1", "L", CHANNEL, "PUBLISH"])
            .await,
        RawValue::Int(1)
    );
    assert!(!exists(&mut raw, "L").await);
}

#[tokio::test]
async fn redissons_counts_are_never_touched_and_both_exclude_each_other() {
    let server = Server::start().await;
    let (mut raw, mut ears) = (server.raw().await, subscriber(&server).await);
    let take = ["EVAL", REDISSON_ACQUIRE, "1", "L", "30000", "u:1"];
    let give = ["EVAL", REDISSON_RELEASE, "2", "L", CHANNEL, "30000", "u:1"];
    assert!(raw.cmd(&take).await.is_null());
    assert!(raw.cmd(&take).await.is_null());
    assert_eq!(fields(&mut raw, "L").await, "u:1=2");

    assert!(acquire(&mut raw, "me:1", "30000").await.int() < -20_000);
    assert_eq!(release(&mut raw, "me:1").await, RawValue::Int(0));
    let renewed = raw.cmd(&["EVAL", RENEW, "1", "L", "me:1", "90000"]).await;
    assert_eq!(renewed, RawValue::Array(vec![RawValue::Int(0)]));
    assert_eq!(fields(&mut raw, "L").await, "u:1=2");
    assert!(pttl(&mut raw, "L").await <= 30_000);

    assert_eq!(raw.cmd(&give).await, RawValue::Int(0));
    assert_eq!(messages(&mut ears).await, 0);
    assert_eq!(raw.cmd(&give).await, RawValue::Int(1));
    assert_eq!(messages(&mut ears).await, 1);

    assert!(acquire(&mut raw, "me:1", "30000").await.int() > 0);
    assert!(
        (1..=30_000).contains(&raw.cmd(&take).await.int()),
        "Redisson waits for us"
    );
    assert!(
        raw.cmd(&give).await.is_null(),
        "and cannot release what is ours"
    );
    assert_eq!(fields(&mut raw, "L").await, "me:1=1");
    assert_eq!(
        release(&mut raw, "me:1").await,
        RawValue::Int(2),
        "its waiters hear of ours"
    );
    assert!(raw.cmd(&take).await.is_null());
}

#[tokio::test]
async fn a_renewal_only_extends_and_never_creates() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    raw.cmd(&["EVAL", ACQUIRE, "2", "a", "ta", "me:1", "1000", "600000"])
        .await;
    raw.cmd(&["EVAL", ACQUIRE, "2", "b", "tb", "me:2", "90000", "600000"])
        .await;
    raw.cmd(&["EVAL", ACQUIRE, "2", "c", "tc", "you:3", "1000", "600000"])
        .await;
    raw.cmd(&["SET", "d", "a string"]).await;
    let args = [
        "me:1", "30000", "me:2", "30000", "me:3", "30000", "me:4", "30000", "me:5", "30000",
    ];
    let call = [&["EVAL", RENEW, "5", "a", "b", "c", "d", "e"][..], &args].concat();
    let held: Vec<i64> = raw
        .cmd(&call)
        .await
        .array()
        .iter()
        .map(RawValue::int)
        .collect();
    assert_eq!(held, [1, 1, 0, 0, 0]);
    assert!(
        (20_000..=30_000).contains(&pttl(&mut raw, "a").await),
        "extended"
    );
    assert!(pttl(&mut raw, "b").await > 80_000, "not shortened");
    assert!(pttl(&mut raw, "c").await <= 1_000, "another's");
    assert_eq!(pttl(&mut raw, "d").await, -1, "no lock at all");
    assert!(!exists(&mut raw, "e").await, "gone stays gone");
}

#[tokio::test]
async fn force_frees_any_lock_and_deletes_nothing_else() {
    let server = Server::start().await;
    let (mut raw, mut ears) = (server.raw().await, subscriber(&server).await);
    let force = ["EVAL", FORCE_UNLOCK, "1", "L", CHANNEL, "PUBLISH"];
    assert_eq!(raw.cmd(&force).await, RawValue::Int(0));
    assert_eq!(messages(&mut ears).await, 0);
    raw.cmd(&["EVAL", REDISSON_ACQUIRE, "1", "L", "30000", "u:1"])
        .await;
    assert_eq!(raw.cmd(&force).await, RawValue::Int(1));
    assert_eq!(messages(&mut ears).await, 1);
    assert!(!exists(&mut raw, "L").await);
    raw.cmd(&["SET", "L", "precious"]).await;
    assert!(raw.cmd(&force).await.error().unwrap().contains("WRONGTYPE"));
    assert_eq!(raw.cmd(&["GET", "L"]).await, bulk("precious"));
}
