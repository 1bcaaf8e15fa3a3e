//! The scripts of the semaphore by themselves: what Redisson finds on the server, who is served, and what a lost key or a
//! foreign value does. Those who wait have `line`.

#[path = "../../../lock/src/protocol/semaphore/sources.rs"]
#[expect(dead_code, reason = "not all of them are run by themselves here")]
mod sources;

mod line;

use leasehold_testkit::{Raw, RawValue, Server};

use crate::scripts::{A, B, C, Ears, Place, now, place, run, ticket};
use crate::support::{assert_everything_expires, bulk, exists, ms, pttl, until};

const TAKEN: &str = "{S}:timeout";
const CAPACITY: &str = "leasehold_cap:{S}";
const LINE: &str = "leasehold_line:{S}";
/// Redisson's channel for releases.
const CHANNEL: &str = "redisson_sc:{S}";
const KEYS: [&str; 4] = ["S", TAKEN, CAPACITY, LINE];
/// The lease of acquisitions, in milliseconds.
const LEASE: &str = "30000";
/// Redisson's time for a permit without a lease.
const FOR_EVER: i64 = 922_337_203_685_477;

/// A user of the semaphore, with the arguments of all its requests.
#[derive(Clone, Copy)]
struct User {
    capacity: &'static str,
    channel: &'static str,
    mode: &'static str,
}

const FIVE: User = User {
    capacity: "5",
    channel: "",
    mode: "P",
};
const BESIDE_JAVA: User = User {
    channel: CHANNEL,
    ..FIVE
};

impl User {
    async fn acquire(self, raw: &mut Raw, hold: &str, permits: u32) -> RawValue {
        self.acquire_for(raw, hold, permits, LEASE).await
    }

    async fn acquire_for(self, raw: &mut Raw, hold: &str, permits: u32, lease: &str) -> RawValue {
        self.ask(raw, hold, permits, &[lease]).await
    }

    /// A request with a ticket, and the score that an earlier answer told, or none.
    async fn look(self, raw: &mut Raw, hold: &str, permits: u32, score: &str) -> RawValue {
        let ticket = format!("{hold}p{permits}");
        self.ask(raw, hold, permits, &[LEASE, &ticket, score]).await
    }

    async fn ask(self, raw: &mut Raw, hold: &str, permits: u32, more: &[&str]) -> RawValue {
        let permits = permits.to_string();
        let args = [self.capacity, hold, &permits, self.mode, self.channel];
        run(raw, sources::ACQUIRE, &KEYS, &[&args[..], more].concat()).await
    }

    async fn release(self, raw: &mut Raw, hold: &str, permits: u32) -> i64 {
        self.release_part(raw, hold, permits, 0, &[]).await
    }

    async fn release_part(
        self,
        raw: &mut Raw,
        hold: &str,
        permits: u32,
        first: u32,
        ticket: &[&str],
    ) -> i64 {
        let (permits, first) = (permits.to_string(), first.to_string());
        let args = [
            self.capacity,
            hold,
            &permits,
            self.mode,
            self.channel,
            &first,
        ];
        let args = [&args[..], ticket].concat();
        run(raw, sources::RELEASE, &KEYS, &args).await.int()
    }

    async fn set_permits(self, raw: &mut Raw) -> RawValue {
        let args = [self.capacity, "", "0", self.mode, self.channel, "3600000"];
        run(raw, sources::SET_PERMITS, &KEYS, &args).await
    }
}

async fn renew(raw: &mut Raw, hold: &str, permits: &str, lease: &str) -> RawValue {
    run(raw, sources::RENEW, &[TAKEN], &[hold, permits, lease]).await
}

async fn confirm(raw: &mut Raw, hold: &str, permits: &str) -> RawValue {
    run(raw, sources::CONFIRM, &[TAKEN], &[hold, permits, LEASE]).await
}

/// Free permits and capacity.
async fn available(raw: &mut Raw, capacity: &str) -> (i64, i64) {
    let reply = run(raw, sources::AVAILABLE, &KEYS[..3], &[capacity]).await;
    let [free, capacity] = reply.array() else {
        panic!("expected two numbers: {reply:?}");
    };
    (free.int(), capacity.int())
}

/// The number that Redisson finds.
async fn free(raw: &mut Raw) -> i64 {
    raw.cmd(&["GET", "S"])
        .await
        .str()
        .parse()
        .expect("a number")
}

async fn taken(raw: &mut Raw) -> i64 {
    raw.cmd(&["ZCARD", TAKEN]).await.int()
}

async fn line(raw: &mut Raw) -> String {
    let tickets = raw.cmd(&["ZRANGE", LINE, "0", "-1"]).await;
    let tickets: Vec<_> = tickets.array().iter().map(RawValue::str).collect();
    tickets.join(" ")
}

/// The bytes of a permit.
fn permit(client: &str, number: u8, index: u8) -> Vec<u8> {
    let hex = |at: usize| u8::from_str_radix(&client[at..at + 2], 16).expect("hex");
    let mut id: Vec<u8> = [0, 2, 4, 6, 30, 32, 34].into_iter().map(hex).collect();
    id.extend([0, 0, 0, 0, number, 0, 0, 0, index]);
    id
}

/// Gives permits to somebody else as Redisson does, until `score`.
async fn take_as_java(raw: &mut Raw, name: &str, score: i64) {
    let id = format!("{name:0>16}");
    raw.cmd(&["DECRBY", "S", "1"]).await;
    raw.cmd(&["ZADD", TAKEN, &score.to_string(), &id]).await;
}

fn granted() -> RawValue {
    RawValue::Int(1)
}

/// The lease that is left to a hold that is there already, or was given its permits now.
#[track_caller]
fn left(reply: &RawValue) -> i64 {
    let [left] = reply.array() else {
        panic!("expected a hold: {reply:?}");
    };
    left.int()
}

#[track_caller]
fn disagrees(reply: &RawValue) -> i64 {
    let [RawValue::Int(0), capacity] = reply.array() else {
        panic!("expected another capacity: {reply:?}");
    };
    capacity.int()
}

#[track_caller]
fn waits(reply: &RawValue) -> Place {
    place(reply)
}

/// The words of the only message since the last one.
async fn heard(ears: &mut Ears, word: &str) -> Vec<String> {
    let messages = ears.heard().await;
    let [message] = &messages[..] else {
        panic!("expected one message: {messages:?}");
    };
    let words: Vec<String> = message.split(' ').map(Into::into).collect();
    assert_eq!(words[0], word, "{message}");
    assert_eq!(words[5], "S");
    words
}

async fn ears(server: &Server, client: &str) -> Ears {
    Ears::plain(server, &format!("leasehold:{client}")).await
}

#[tokio::test]
async fn redisson_finds_its_own_keys() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let before = now(&mut raw).await / 1000;
    assert_eq!(FIVE.acquire(&mut raw, &ticket(A, 7), 3).await, granted());
    let after = now(&mut raw).await / 1000;
    assert_eq!(free(&mut raw).await, 2);
    for index in 0..3 {
        let id = permit(A, 7, index);
        let score = raw.cmd(&[b"ZSCORE", TAKEN.as_bytes(), &id]).await;
        let score: i64 = score.str().parse().expect("whole milliseconds");
        assert!(
            (before + 30_000..=after + 30_000).contains(&score),
            "{score}"
        );
    }
    assert_eq!(taken(&mut raw).await, 3);
    assert_eq!(raw.cmd(&["GET", CAPACITY]).await, bulk("5"));
    assert_everything_expires(&mut raw).await;
    assert!(pttl(&mut raw, CAPACITY).await > 3_500_000);
    assert!((80_000..=90_000).contains(&pttl(&mut raw, TAKEN).await));

    assert_eq!(FIVE.release(&mut raw, &ticket(A, 7), 3).await, 1);
    assert_eq!(free(&mut raw).await, 5);
    assert!(!exists(&mut raw, TAKEN).await);
}

#[tokio::test]
async fn beside_redisson_its_keys_have_no_expiry_and_it_hears_the_number_that_is_free() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let mut java = Ears::plain(&server, CHANNEL).await;
    let user = BESIDE_JAVA;
    // `trySetPermits(5)`
    raw.cmd(&["SET", "S", "5"]).await;
    assert_eq!(user.acquire(&mut raw, &ticket(A, 1), 2).await, granted());
    assert_eq!(pttl(&mut raw, "S").await, -1);
    assert_eq!(pttl(&mut raw, TAKEN).await, -1);
    // `acquire()` without a lease, which Redisson never ends.
    take_as_java(&mut raw, "java", FOR_EVER).await;
    assert_eq!(user.acquire(&mut raw, &ticket(A, 2), 2).await, granted());
    assert_eq!(free(&mut raw).await, 0);
    assert!(user.acquire(&mut raw, &ticket(A, 3), 1).await.int() < 0);
    assert_eq!(user.release(&mut raw, &ticket(A, 1), 2).await, 1);
    assert_eq!(java.heard().await, ["2"]);
    assert_eq!(user.release(&mut raw, &ticket(A, 2), 2).await, 1);
    assert_eq!(java.heard().await, ["4"]);
    // `tryRelease(id)`
    raw.cmd(&["ZREM", TAKEN, &format!("{:0>16}", "java")]).await;
    raw.cmd(&["INCRBY", "S", "1"]).await;
    assert_eq!(available(&mut raw, "5").await, (5, 5));
    assert_eq!(pttl(&mut raw, "S").await, -1);
}

#[tokio::test]
async fn all_permits_are_given_or_none() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    assert_eq!(FIVE.acquire(&mut raw, &ticket(A, 1), 3).await, granted());
    let refused = FIVE.acquire(&mut raw, &ticket(B, 1), 3).await.int();
    assert!((-30_001..=-20_001).contains(&refused), "{refused}");
    assert_eq!(taken(&mut raw).await, 3);
    assert_eq!(FIVE.acquire(&mut raw, &ticket(B, 1), 2).await, granted());
    assert_eq!(available(&mut raw, "5").await, (0, 5));
}

#[tokio::test]
async fn every_request_may_be_repeated() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let hold = ticket(A, 1);
    assert_eq!(FIVE.acquire(&mut raw, &hold, 3).await, granted());
    for _ in 0..3 {
        let again = left(&FIVE.acquire(&mut raw, &hold, 3).await);
        assert!((20_000..=30_000).contains(&again), "not extended: {again}");
        let again = left(&FIVE.look(&mut raw, &hold, 3, "").await);
        assert!((20_000..=30_000).contains(&again), "{again}");
    }
    assert_eq!((free(&mut raw).await, taken(&mut raw).await), (2, 3));
    assert_eq!(line(&mut raw).await, "");
    assert_eq!(FIVE.release(&mut raw, &hold, 3).await, 1);
    assert_eq!(FIVE.release(&mut raw, &hold, 3).await, 0);
    assert_eq!((free(&mut raw).await, taken(&mut raw).await), (5, 0));

    // A part, whose permits are the last ones.
    assert_eq!(FIVE.acquire(&mut raw, &hold, 5).await, granted());
    for reply in [1, 0] {
        let released = FIVE.release_part(&mut raw, &hold, 2, 3, &[]).await;
        assert_eq!(released, reply);
        assert_eq!(free(&mut raw).await, 2);
    }
    // Of a hold whose number of permits is not known.
    assert_eq!(FIVE.release(&mut raw, &hold, 0).await, 1);
    assert_eq!(FIVE.release(&mut raw, &hold, 0).await, 0);
    assert_eq!(free(&mut raw).await, 5);
}

#[tokio::test]
async fn ten_thousand_crashed_permits_come_back_at_once() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let all = User {
        capacity: "10000",
        ..FIVE
    };
    for number in 0..10 {
        let hold = ticket(A, number);
        let reply = all.acquire_for(&mut raw, &hold, 1_000, "400").await;
        assert_eq!(reply, granted());
    }
    assert_eq!(free(&mut raw).await, 0);
    until("they expire", async || {
        available(&mut raw, "10000").await.0 == 10_000
    })
    .await;
    assert_eq!(
        all.acquire(&mut raw, &ticket(B, 1), 10_000).await,
        granted()
    );
    assert_eq!((free(&mut raw).await, taken(&mut raw).await), (0, 10_000));
    let renewed = renew(&mut raw, &ticket(B, 1), "10000", "60000").await;
    assert_eq!(renewed.array(), [RawValue::Int(1)]);
    assert_eq!(all.release(&mut raw, &ticket(B, 1), 10_000).await, 1);
    assert_eq!(free(&mut raw).await, 10_000);
}

#[tokio::test]
async fn a_lease_only_grows_and_a_hold_that_is_gone_is_not_made_anew() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let hold = ticket(A, 1);
    FIVE.acquire_for(&mut raw, &hold, 2, "600").await;
    assert!(left(&confirm(&mut raw, &hold, "2").await) >= 20_000);
    let shorter = renew(&mut raw, &hold, "2", "10").await;
    assert_eq!(shorter.array(), [RawValue::Int(1)]);
    assert!(left(&FIVE.acquire(&mut raw, &hold, 2).await) > 20_000);

    // Redisson may take one of them for expired, by its clock.
    raw.cmd(&[b"ZREM".to_vec(), TAKEN.into(), permit(A, 1, 1)])
        .await;
    for reply in [
        renew(&mut raw, &hold, "2", "60000").await.array()[0].int(),
        confirm(&mut raw, &hold, "2").await.int(),
    ] {
        assert_eq!(reply, 0);
    }
    assert_eq!(taken(&mut raw).await, 1, "the other one is not extended");
    assert_eq!(FIVE.release(&mut raw, &hold, 2).await, 0, "one was gone");
    assert_eq!((free(&mut raw).await, taken(&mut raw).await), (5, 0));
    raw.cmd(&["DEL", TAKEN]).await;
    assert_eq!(confirm(&mut raw, &hold, "2").await.int(), 0);
    assert!(!exists(&mut raw, TAKEN).await);

    // One that expired but was not removed yet is gone as well.
    FIVE.acquire_for(&mut raw, &hold, 1, "20").await;
    tokio::time::sleep(ms(30)).await;
    assert_eq!(taken(&mut raw).await, 1);
    assert_eq!(confirm(&mut raw, &hold, "1").await.int(), 0);
}

#[tokio::test]
async fn the_capacity_is_of_the_first_user_until_it_is_set() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let three = User {
        capacity: "3",
        ..FIVE
    };
    FIVE.acquire(&mut raw, &ticket(A, 1), 2).await;
    for _ in 0..2 {
        assert_eq!(
            disagrees(&three.acquire(&mut raw, &ticket(B, 1), 1).await),
            5
        );
        assert_eq!(
            disagrees(&three.look(&mut raw, &ticket(B, 1), 1, "").await),
            5
        );
    }
    assert_eq!((free(&mut raw).await, taken(&mut raw).await), (3, 2));
    assert_eq!(line(&mut raw).await, "");

    assert_eq!(three.set_permits(&mut raw).await.int(), 1);
    assert_eq!(three.acquire(&mut raw, &ticket(B, 1), 1).await, granted());
    assert_eq!(
        disagrees(&FIVE.acquire(&mut raw, &ticket(A, 2), 1).await),
        3
    );
    assert_eq!(FIVE.release(&mut raw, &ticket(A, 1), 2).await, 1);
    assert_eq!(available(&mut raw, "3").await, (2, 3));

    // Below what is taken.
    let one = User {
        capacity: "1",
        ..FIVE
    };
    three.acquire(&mut raw, &ticket(B, 2), 2).await;
    assert_eq!(one.set_permits(&mut raw).await.int(), 1);
    assert_eq!(free(&mut raw).await, -2);
    assert_eq!(three.release(&mut raw, &ticket(B, 2), 2).await, 1);
    assert_eq!(free(&mut raw).await, 0);
    assert!(one.acquire(&mut raw, &ticket(A, 3), 1).await.int() < 0);
}

#[tokio::test]
async fn a_higher_capacity_serves_the_line_and_drops_what_it_can_never_serve() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (_large, mut small) = (ears(&server, B).await, ears(&server, C).await);
    FIVE.acquire(&mut raw, &ticket(A, 1), 5).await;
    waits(&FIVE.look(&mut raw, &ticket(B, 1), 5, "").await);
    waits(&FIVE.look(&mut raw, &ticket(C, 1), 2, "").await);
    let four = User {
        capacity: "4",
        ..FIVE
    };
    four.set_permits(&mut raw).await;
    FIVE.release(&mut raw, &ticket(A, 1), 5).await;
    assert_eq!(heard(&mut small, "GS").await[1], "1");
    assert_eq!(
        disagrees(&FIVE.look(&mut raw, &ticket(B, 1), 5, "").await),
        4
    );
    assert_eq!(line(&mut raw).await, "");

    four.acquire(&mut raw, &ticket(A, 2), 2).await;
    waits(&four.look(&mut raw, &ticket(C, 2), 2, "").await);
    let six = User {
        capacity: "6",
        ..FIVE
    };
    six.set_permits(&mut raw).await;
    assert_eq!(heard(&mut small, "GS").await[1], "2");
    assert_eq!(free(&mut raw).await, 0);
}

/// A resent acquire of Redisson takes twice and notes one permit; ours computes the number anew.
#[tokio::test]
async fn a_permit_that_redisson_lost_comes_back() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let user = BESIDE_JAVA;
    raw.cmd(&["SET", "S", "5"]).await;
    assert_eq!(user.acquire(&mut raw, &ticket(A, 1), 1).await, granted());
    take_as_java(&mut raw, "java", FOR_EVER).await;
    raw.cmd(&["DECRBY", "S", "1"]).await;
    assert_eq!(free(&mut raw).await, 2);
    assert_eq!(available(&mut raw, "5").await, (3, 5));
    user.release(&mut raw, &ticket(A, 1), 1).await;
    assert_eq!(free(&mut raw).await, 4);
}

#[tokio::test]
async fn a_number_that_redisson_raised_is_believed_where_the_user_says_the_same() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let user = BESIDE_JAVA;
    user.acquire(&mut raw, &ticket(A, 1), 2).await;
    // `addPermits(2)`
    raw.cmd(&["SET", "S", "5"]).await;
    assert_eq!(
        disagrees(&user.acquire(&mut raw, &ticket(A, 2), 1).await),
        7
    );
    assert_eq!((free(&mut raw).await, taken(&mut raw).await), (5, 2));
    assert_eq!(available(&mut raw, "5").await, (5, 7));
    // Holds of users of the former number go on.
    assert!(left(&confirm(&mut raw, &ticket(A, 1), "2").await) > 0);
    assert_eq!(user.release(&mut raw, &ticket(A, 1), 2).await, 1);
    assert_eq!(free(&mut raw).await, 7);
    let seven = User {
        capacity: "7",
        ..user
    };
    assert_eq!(seven.acquire(&mut raw, &ticket(A, 3), 7).await, granted());
    assert_eq!(raw.cmd(&["GET", CAPACITY]).await, bulk("7"));
}

#[tokio::test]
async fn each_key_may_vanish() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let mut waiting = ears(&server, B).await;
    for key in KEYS {
        raw.cmd(&["FLUSHALL"]).await;
        FIVE.acquire(&mut raw, &ticket(A, 1), 4).await;
        let score = waits(&FIVE.look(&mut raw, &ticket(B, 1), 3, "").await).score;
        raw.cmd(&["DEL", key]).await;
        let reply = FIVE
            .look(&mut raw, &ticket(B, 1), 3, &score.to_string())
            .await;
        if key == TAKEN {
            // All holders are lost, which they are told by their renewals.
            assert!(left(&reply) > 0, "{key}");
            assert_eq!(confirm(&mut raw, &ticket(A, 1), "4").await.int(), 0);
            assert_eq!(FIVE.release(&mut raw, &ticket(A, 1), 4).await, 0);
        } else {
            assert_eq!(waits(&reply).score, score, "{key}");
            assert_eq!(FIVE.release(&mut raw, &ticket(A, 1), 4).await, 1);
            heard(&mut waiting, "GS").await;
        }
        assert_eq!(
            (free(&mut raw).await, taken(&mut raw).await),
            (2, 3),
            "{key}"
        );
        assert_eq!(FIVE.release(&mut raw, &ticket(B, 1), 3).await, 1);
        assert_eq!(available(&mut raw, "5").await, (5, 5), "{key}");
        assert_everything_expires(&mut raw).await;
    }
}

#[tokio::test]
async fn data_of_others_are_refused_and_left_alone() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    for (key, command) in [
        ("S", vec!["HSET", "S", "field", "1"]),
        ("S", vec!["SET", "S", "five"]),
        ("S", vec!["SET", "S", "1.5"]),
        (TAKEN, vec!["SET", TAKEN, "x"]),
    ] {
        raw.cmd(&["FLUSHALL"]).await;
        raw.cmd(&command).await;
        let before = raw.cmd(&["DUMP", key]).await;
        for reply in [
            FIVE.acquire(&mut raw, &ticket(A, 1), 1).await,
            FIVE.look(&mut raw, &ticket(A, 1), 1, "").await,
            FIVE.set_permits(&mut raw).await,
            run(&mut raw, sources::AVAILABLE, &KEYS[..3], &["5"]).await,
        ] {
            let error = reply
                .error()
                .unwrap_or_else(|| panic!("{command:?}: {reply:?}"));
            assert!(error.contains("WRONGTYPE"), "{command:?}: {error}");
        }
        assert_eq!(raw.cmd(&["DUMP", key]).await, before);
        assert_eq!(raw.cmd(&["DBSIZE"]).await.int(), 1, "{command:?}");
    }
    // Renewals say that the hold is gone, in a batch for that key alone.
    let renewed = renew(&mut raw, &ticket(A, 1), "1", LEASE).await;
    assert_eq!(renewed.array(), [RawValue::Int(0)]);
}

#[tokio::test]
async fn foreign_data_at_keys_of_ours_hide_nothing() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    for key in [CAPACITY, LINE] {
        raw.cmd(&["FLUSHALL"]).await;
        raw.cmd(&["HSET", key, "field", "1"]).await;
        assert_eq!(
            FIVE.acquire(&mut raw, &ticket(A, 1), 4).await,
            granted(),
            "{key}"
        );
        assert_eq!(available(&mut raw, "5").await, (1, 5), "{key}");
        assert_eq!(FIVE.release(&mut raw, &ticket(A, 1), 4).await, 1, "{key}");
        assert_eq!(raw.cmd(&["HGET", key, "field"]).await, bulk("1"));
    }
    // Nobody can stand in such a line: who waits asks again and again.
    FIVE.acquire(&mut raw, &ticket(A, 1), 4).await;
    assert!(FIVE.look(&mut raw, &ticket(B, 1), 3, "").await.int() < 0);
}
