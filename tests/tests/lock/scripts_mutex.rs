//! The scripts of the mutex by themselves, without anybody in line.

use leasehold_testkit::{Raw, RawValue, Server};

use crate::scripts::sources::{
    ACQUIRE, ACQUIRE_ALONE, CONFIRM, CONFIRM_ALONE, INSPECT, LOOK, RELEASE, RELEASE_ALONE, RENEW,
    RENEW_ONE, RENEW_REPLICATED,
};
use crate::scripts::{
    CHANNEL, Ears, KEPT, LINE, TOKEN, acquire, call, confirm, force_unlock, join, look, now,
    release, run, taken,
};
use crate::support::{assert_everything_expires, bulk, exists, fields, pttl};

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

/// The first day of 2024 in microseconds: no token is below.
const NO_TOKEN: i64 = 1_704_067_200_000_000;

/// Number of changes to the data since the server was started.
async fn changes(raw: &mut Raw) -> i64 {
    let info = raw.cmd(&["INFO", "persistence"]).await;
    let line = info
        .str()
        .lines()
        .find_map(|line| line.strip_prefix("rdb_changes_since_last_save:"));
    line.expect("it is counted").parse().expect("a number")
}

#[tokio::test]
async fn a_free_lock_is_taken_with_an_expiry_on_everything() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let token = acquire(&mut raw, "me:1", "30000").await.int();
    assert!(token > NO_TOKEN, "a time in microseconds: {token}");
    assert_eq!(fields(&mut raw, "L").await, "me:1=1");
    assert!((1..=30_000).contains(&pttl(&mut raw, "L").await));
    let counter = raw.cmd(&["GET", TOKEN]).await;
    assert_eq!(counter, bulk(&token.to_string()), "all 16 digits");
    assert!((30_001..=600_000).contains(&pttl(&mut raw, TOKEN).await));
    assert!(!exists(&mut raw, LINE).await);
}

#[tokio::test]
async fn a_token_is_the_time_to_the_microsecond() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    // A tenth of all times have fewer than six digits behind their seconds.
    for n in 0..300 {
        let hold = format!("me:{n}");
        let before = now(&mut raw).await;
        let token = acquire(&mut raw, &hold, "30000").await.int();
        assert!((before..=now(&mut raw).await).contains(&token), "{token}");
        release(&mut raw, &hold, "P", &[]).await;
    }
}

#[tokio::test]
async fn a_repeated_acquire_gives_the_same_token_and_leaves_the_lease_as_it_is() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let token = acquire(&mut raw, "me:1", "30000").await.int();
    for lease in ["1000", "60000"] {
        let (same, ms) = taken(&acquire(&mut raw, "me:1", lease).await);
        assert_eq!(same, token);
        assert!((20_000..=30_000).contains(&ms), "{ms}");
        assert!((20_000..=30_000).contains(&pttl(&mut raw, "L").await));
    }
    let (same, _) = taken(&join(&mut raw, "me:1").await);
    assert_eq!(same, token);
    assert!(!exists(&mut raw, LINE).await, "a holder joins no line");
    assert_eq!(fields(&mut raw, "L").await, "me:1=1");
    assert_eq!(release(&mut raw, "me:1", "P", &[]).await.int(), 1);
    assert!(!exists(&mut raw, "L").await);
}

#[tokio::test]
async fn a_repetition_after_the_counter_was_lost_still_has_a_higher_token() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let mut last = acquire(&mut raw, "me:1", "30000").await.int();
    for round in 0..3 {
        raw.cmd(&["DEL", TOKEN]).await;
        let reply = match round {
            0 => acquire(&mut raw, "me:1", "30000").await,
            1 => look(&mut raw, "me:1", "", "P").await,
            _ => confirm(&mut raw, "me:1", "30000").await,
        };
        let (token, _) = taken(&reply);
        assert!(token > last);
        assert_eq!(raw.cmd(&["GET", TOKEN]).await.int(), token);
        last = token;
    }
    assert_eq!(fields(&mut raw, "L").await, "me:1=1");
    assert_everything_expires(&mut raw).await;
}

#[tokio::test]
async fn a_held_lock_says_for_how_long() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    acquire(&mut raw, "me:1", "30000").await;
    let held = acquire(&mut raw, "you:1", "90000").await.int();
    assert!((-30_001..-20_000).contains(&held), "{held}");
    assert_eq!(fields(&mut raw, "L").await, "me:1=1");
    assert!(pttl(&mut raw, "L").await <= 30_000);
}

#[tokio::test]
async fn tokens_grow_through_a_flush_and_past_a_counter_ahead_of_the_clock() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let mut last = 0;
    for n in 0..50 {
        let hold = format!("me:{n}");
        let token = acquire(&mut raw, &hold, "30000").await.int();
        assert!(token > last);
        last = token;
        if n % 10 == 9 {
            raw.cmd(&["FLUSHALL"]).await;
        } else {
            release(&mut raw, &hold, "P", &[]).await;
        }
    }
    // Lua's `..` would make 9.007199254741e+15 of the first; the second is a small number of many
    // digits, which is behind the time.
    for (counter, next) in [
        ("9007199254740989", Some(9_007_199_254_740_990)),
        ("00000000000000000123", None),
    ] {
        raw.cmd(&["DEL", "L"]).await;
        raw.cmd(&["SET", TOKEN, counter]).await;
        let token = acquire(&mut raw, "me:50", "30000").await.int();
        assert!(token > last);
        assert_eq!(token, next.unwrap_or(token));
        assert_eq!(
            raw.cmd(&["GET", TOKEN]).await,
            bulk(&token.to_string()),
            "after {counter}"
        );
        assert_everything_expires(&mut raw).await;
    }
}

#[tokio::test]
async fn with_redisson_the_counter_keeps_no_expiry() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let mut last = 0;
    for n in 0..2 {
        let args = [&format!("me:{n}"), "30000", "0"];
        let token = run(&mut raw, ACQUIRE, &["L", TOKEN], &args).await.int();
        assert!(token > last);
        last = token;
        assert_eq!(raw.cmd(&["GET", TOKEN]).await.int(), token);
        assert_eq!(pttl(&mut raw, TOKEN).await, -1);
        assert!(pttl(&mut raw, "L").await > 0);
        raw.cmd(&["DEL", "L"]).await;
    }
}

#[tokio::test]
async fn a_lock_without_an_expiry_is_told_apart_and_ones_own_gets_it_back() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    acquire(&mut raw, "me:1", "30000").await;
    for n in 0..6 {
        raw.cmd(&["PERSIST", "L"]).await;
        assert_eq!(acquire(&mut raw, "you:1", "30000").await, RawValue::Int(0));
        assert_eq!(join(&mut raw, "you:1").await, RawValue::Int(0));
        assert_eq!(look(&mut raw, "you:1", "", "P").await, RawValue::Int(0));
        let args = ["me:1", "30000"];
        match n {
            0 => acquire(&mut raw, "me:1", "30000").await,
            1 => look(&mut raw, "me:1", "", "P").await,
            2 => confirm(&mut raw, "me:1", "30000").await,
            3 => run(&mut raw, RENEW, &["L"], &args).await,
            4 => run(&mut raw, RENEW_ONE, &["L"], &args).await,
            _ => run(&mut raw, RENEW_REPLICATED, &["L"], &args).await,
        };
        assert!((20_000..=30_000).contains(&pttl(&mut raw, "L").await));
    }
    assert_everything_expires(&mut raw).await;
}

#[tokio::test]
async fn only_the_holder_releases_and_only_the_release_is_announced() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let mut java = Ears::plain(&server, CHANNEL).await;
    acquire(&mut raw, "me:1", "30000").await;
    assert_eq!(
        release(&mut raw, "you:1", "P", &["", CHANNEL]).await.int(),
        0
    );
    assert_eq!(fields(&mut raw, "L").await, "me:1=1");
    assert_eq!(java.heard().await, [""; 0]);
    assert_eq!(
        release(&mut raw, "me:1", "P", &["", CHANNEL]).await.int(),
        1
    );
    assert_eq!(java.heard().await, ["0"]);
    assert_eq!(
        release(&mut raw, "me:1", "P", &["", CHANNEL]).await.int(),
        0,
        "a lost reply, repeated"
    );
    assert_eq!(java.heard().await, [""; 0]);
    acquire(&mut raw, "me:2", "30000").await;
    assert_eq!(release(&mut raw, "me:2", "P", &[]).await.int(), 1);
    assert_eq!(java.heard().await, [""; 0], "without Redisson");
}

#[tokio::test]
async fn a_release_is_announced_on_the_channel_of_the_slot_as_well() {
    let server = Server::start().await;
    if !server.knows("SPUBLISH").await {
        println!("skipped: no sharded channels");
        return;
    }
    let mut raw = server.raw().await;
    let mut java = Ears::sharded(&server, CHANNEL).await;
    acquire(&mut raw, "me:1", "30000").await;
    release(&mut raw, "me:1", "S", &["", CHANNEL]).await;
    assert_eq!(java.heard().await, ["0"]);
    acquire(&mut raw, "me:2", "30000").await;
    run(&mut raw, RELEASE_ALONE, &["L"], &["me:2", "S", CHANNEL]).await;
    assert_eq!(java.heard().await, ["0"]);
    acquire(&mut raw, "me:3", "30000").await;
    force_unlock(&mut raw, CHANNEL, "S").await;
    assert_eq!(java.heard().await, ["0"]);
}

#[tokio::test]
async fn redissons_counts_are_never_touched_and_both_exclude_each_other() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let mut java = Ears::plain(&server, CHANNEL).await;
    let take = ["EVAL", REDISSON_ACQUIRE, "1", "L", "30000", "u:1"];
    let give = ["EVAL", REDISSON_RELEASE, "2", "L", CHANNEL, "30000", "u:1"];
    assert!(raw.cmd(&take).await.is_null());
    assert!(raw.cmd(&take).await.is_null());
    assert_eq!(fields(&mut raw, "L").await, "u:1=2");

    assert!(acquire(&mut raw, "me:1", "30000").await.int() < -20_000);
    let args = ["me:1", "30000", "0"];
    assert!(run(&mut raw, ACQUIRE_ALONE, &["L"], &args).await.int() < -20_000);
    assert_eq!(
        release(&mut raw, "me:1", "P", &["", CHANNEL]).await.int(),
        0
    );
    for renewal in [RENEW, RENEW_REPLICATED] {
        let renewed = run(&mut raw, renewal, &["L"], &["me:1", "90000"]).await;
        assert_eq!(renewed, RawValue::Array(vec![RawValue::Int(0)]));
    }
    for renewal in [RENEW_ONE, CONFIRM_ALONE] {
        let renewed = run(&mut raw, renewal, &["L"], &["me:1", "90000", "0"]).await;
        assert_eq!(renewed, RawValue::Int(0));
    }
    assert_eq!(confirm(&mut raw, "me:1", "90000").await, RawValue::Int(0));
    assert_eq!(fields(&mut raw, "L").await, "u:1=2");
    assert!(pttl(&mut raw, "L").await <= 30_000);

    assert_eq!(raw.cmd(&give).await, RawValue::Int(0));
    assert_eq!(java.heard().await, [""; 0]);
    assert_eq!(raw.cmd(&give).await, RawValue::Int(1));
    assert_eq!(java.heard().await, ["0"]);

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
        release(&mut raw, "me:1", "P", &["", CHANNEL]).await.int(),
        1
    );
    assert_eq!(java.heard().await, ["0"], "its waiters hear of ours");
    assert!(raw.cmd(&take).await.is_null());
}

#[tokio::test]
async fn a_renewal_only_extends_and_never_creates() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    for renewal in [RENEW, RENEW_REPLICATED, RENEW_ONE] {
        raw.cmd(&["FLUSHALL"]).await;
        for (key, hold, lease) in [
            ("a", "me:1", "1000"),
            ("b", "me:2", "90000"),
            ("c", "you:3", "1000"),
        ] {
            let counter = format!("t{key}");
            run(&mut raw, ACQUIRE, &[key, &counter], &[hold, lease, KEPT]).await;
        }
        raw.cmd(&["SET", "d", "a string"]).await;
        let keys = ["a", "b", "c", "d", "e"];
        let holds = ["me:1", "me:2", "me:3", "me:4", "me:5"];
        let mut held = Vec::new();
        if renewal == RENEW_ONE {
            for (key, hold) in keys.iter().zip(holds) {
                let renewed = run(&mut raw, renewal, &[key], &[hold, "30000"]).await;
                held.push(renewed.int());
            }
        } else {
            let args: Vec<_> = holds.iter().flat_map(|hold| [*hold, "30000"]).collect();
            let renewed = run(&mut raw, renewal, &keys, &args).await;
            held.extend(renewed.array().iter().map(RawValue::int));
        }
        assert_eq!(held, [1, 1, 0, 0, 0]);
        let extended = pttl(&mut raw, "a").await;
        assert!((20_000..=30_000).contains(&extended), "{extended}");
        assert!(pttl(&mut raw, "b").await > 80_000, "not shortened");
        assert!(pttl(&mut raw, "c").await <= 1_000, "another's");
        assert_eq!(pttl(&mut raw, "d").await, -1, "no lock at all");
        assert!(!exists(&mut raw, "e").await, "gone stays gone");
    }
}

#[tokio::test]
async fn a_confirmation_lengthens_and_never_creates() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    assert_eq!(confirm(&mut raw, "me:1", "30000").await, RawValue::Int(0));
    let args = ["me:1", "30000", "0"];
    let alone = run(&mut raw, CONFIRM_ALONE, &["L"], &args).await;
    assert_eq!(alone, RawValue::Int(0));
    assert_eq!(raw.cmd(&["DBSIZE"]).await.int(), 0);

    let token = acquire(&mut raw, "me:1", "1000").await.int();
    let (same, ms) = taken(&confirm(&mut raw, "me:1", "30000").await);
    assert_eq!((same, ms), (token, 30_000));
    assert!((20_000..=30_000).contains(&pttl(&mut raw, "L").await));
    let (same, ms) = taken(&confirm(&mut raw, "me:1", "1000").await);
    assert_eq!(same, token);
    assert!((20_000..=30_000).contains(&ms), "not shortened: {ms}");
    let args = ["me:1", "60000", "9007199254740000"];
    let (beyond, ms) = taken(&run(&mut raw, CONFIRM_ALONE, &["L"], &args).await);
    assert_eq!((beyond, ms), (9_007_199_254_740_001, 60_000));
    assert_eq!(raw.cmd(&["GET", TOKEN]).await.int(), token, "left alone");
    assert_eq!(confirm(&mut raw, "you:1", "30000").await, RawValue::Int(0));
    assert_eq!(fields(&mut raw, "L").await, "me:1=1");
    assert_everything_expires(&mut raw).await;
}

/// `WAIT` behind a request that wrote nothing confirms nothing.
#[tokio::test]
async fn whatever_waits_for_replicas_writes() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    acquire(&mut raw, "me:1", "30000").await;
    let args = ["me:1", "1000", KEPT, "me:1", "", "P"];
    let three = ["L", TOKEN, LINE];
    let requests = [
        call(ACQUIRE, &three[..2], &args[..3]),
        call(ACQUIRE, &three, &args[..4]),
        call(LOOK, &three, &args),
        call(CONFIRM, &three[..2], &args[..3]),
        call(CONFIRM_ALONE, &three[..1], &["me:1", "1000", "0"]),
        call(ACQUIRE_ALONE, &three[..1], &["me:1", "1000", "0"]),
        call(RENEW_REPLICATED, &three[..1], &args[..2]),
    ];
    for (n, request) in requests.iter().enumerate() {
        let before = changes(&mut raw).await;
        let reply = raw.cmd(request).await;
        assert!(reply.error().is_none(), "request {n}: {reply:?}");
        assert!(changes(&mut raw).await > before, "request {n}: {reply:?}");
    }
    assert!(pttl(&mut raw, "L").await > 20_000);
}

#[tokio::test]
async fn by_its_own_key_alone_a_lock_is_taken_confirmed_and_released() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let mut java = Ears::plain(&server, CHANNEL).await;
    let take = async |raw: &mut Raw, hold: &str, highest: &str| {
        run(raw, ACQUIRE_ALONE, &["L"], &[hold, "30000", highest]).await
    };
    let (token, ms) = taken(&take(&mut raw, "me:1", "0").await);
    assert_eq!(ms, 30_000);
    assert!(token > NO_TOKEN);
    let (again, ms) = taken(&take(&mut raw, "me:1", &token.to_string()).await);
    assert!(again > token, "its token only grows");
    assert!((20_000..=30_000).contains(&ms));
    assert!((-30_001..-20_000).contains(&take(&mut raw, "you:1", "0").await.int()));
    assert_eq!(fields(&mut raw, "L").await, "me:1=1");
    raw.cmd(&["PERSIST", "L"]).await;
    assert_eq!(take(&mut raw, "you:1", "0").await, RawValue::Int(0));
    take(&mut raw, "me:1", "0").await;
    assert_everything_expires(&mut raw).await;

    let give = async |raw: &mut Raw, hold: &str| {
        let ended = run(raw, RELEASE_ALONE, &["L"], &[hold, "P", CHANNEL]).await;
        ended.int()
    };
    assert_eq!(give(&mut raw, "you:1").await, 0);
    assert_eq!(java.heard().await, [""; 0]);
    assert_eq!(give(&mut raw, "me:1").await, 1);
    assert_eq!(java.heard().await, ["0"]);
    assert_eq!(give(&mut raw, "me:1").await, 0);
    assert_eq!(raw.cmd(&["DBSIZE"]).await.int(), 0);

    let (ahead, _) = taken(&take(&mut raw, "me:2", "9007199254740000").await);
    assert_eq!(ahead, 9_007_199_254_740_001);
    let floor = acquire(&mut raw, "me:2", "30000").await;
    assert!(
        taken(&floor).0 > again,
        "the counter takes the time as its floor"
    );
}

#[tokio::test]
async fn force_frees_any_lock() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let mut java = Ears::plain(&server, CHANNEL).await;
    assert_eq!(force_unlock(&mut raw, CHANNEL, "P").await.int(), 0);
    assert_eq!(java.heard().await, [""; 0]);
    for channel in [CHANNEL, ""] {
        raw.cmd(&["EVAL", REDISSON_ACQUIRE, "1", "L", "30000", "u:1"])
            .await;
        assert_eq!(force_unlock(&mut raw, channel, "P").await.int(), 1);
        assert_eq!(java.heard().await.len(), usize::from(!channel.is_empty()));
        assert!(!exists(&mut raw, "L").await);
    }
    raw.cmd(&["HSET", "L", "mode", "read", "u:1", "2", "u:2", "1"])
        .await;
    assert_eq!(force_unlock(&mut raw, CHANNEL, "P").await.int(), 1);
    assert_eq!(raw.cmd(&["DBSIZE"]).await.int(), 0);
}

#[tokio::test]
async fn inspecting_tells_the_holder_and_changes_nothing() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let inspect = async |raw: &mut Raw| run(raw, INSPECT, &["L"], &[]).await;
    assert_eq!(inspect(&mut raw).await, RawValue::Array(vec![]));
    acquire(&mut raw, "me:1", "30000").await;
    let before = changes(&mut raw).await;
    let inspected = inspect(&mut raw).await;
    let [ms, holder, count] = inspected.array() else {
        panic!("{inspected:?}")
    };
    assert!((20_000..=30_000).contains(&ms.int()));
    assert_eq!((holder.str(), count.int()), ("me:1", 1));
    raw.cmd(&["PERSIST", "L"]).await;
    assert_eq!(inspect(&mut raw).await.array()[0], RawValue::Int(-1));
    assert_eq!(changes(&mut raw).await, before + 1, "that of PERSIST");
}

#[tokio::test]
async fn any_bytes_are_a_name() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    for name in [
        &b"zero\0byte"[..],
        b"{tag}rest",
        b"a}{b",
        b"%d %s %%",
        b"\xff\xfe\r\n",
        b" ",
    ] {
        let [counter, line] = [&b"counter:"[..], b"line:"].map(|prefix| [prefix, name].concat());
        let keys: [&[u8]; 3] = [name, &counter, &line];
        let hold = [b"me", &b":1"[..]].concat();
        let args: [&[u8]; 3] = [&hold, b"30000", KEPT.as_bytes()];
        let token = raw.cmd(&call(ACQUIRE, &keys[..2], &args)).await.int();
        assert!(token > NO_TOKEN);
        assert_eq!(raw.cmd(&[b"GET", &counter[..]]).await.int(), token);
        assert_eq!(raw.cmd(&[b"HLEN", name]).await.int(), 1);
        let args: [&[u8]; 3] = [&hold, b"P", KEPT.as_bytes()];
        assert_eq!(raw.cmd(&call(RELEASE, &keys, &args)).await.int(), 1);
        assert_eq!(raw.cmd(&[b"EXISTS", name]).await.int(), 0);
    }
}
