//! Calls of the mutex's scripts, through a client that shares no code with the library.

#[path = "../../../lock/src/protocol/mutex/sources.rs"]
pub(crate) mod sources;

use std::sync::atomic::{AtomicU64, Ordering};

use leasehold_testkit::{Raw, RawValue, Server};

pub(crate) const TOKEN: &str = "redisson_lock_token:{L}";
pub(crate) const LINE: &str = "leasehold_line:{L}";
/// Redisson's channel for releases.
pub(crate) const CHANNEL: &str = "redisson_lock__channel:{L}";
/// How long counters are kept, in milliseconds.
pub(crate) const KEPT: &str = "600000";

/// Ids of clients.
pub(crate) const A: &str = "0190c0de-0000-7000-8000-00000000000a";
pub(crate) const B: &str = "0190c0de-0000-7000-8000-00000000000b";
pub(crate) const C: &str = "0190c0de-0000-7000-8000-00000000000c";

/// A script's text, keys and arguments as a request.
pub(crate) fn call<'a, A: AsRef<[u8]> + ?Sized>(
    text: &'a str,
    keys: &[&'a A],
    args: &[&'a A],
) -> Vec<&'a [u8]> {
    let count: &'static str = ["0", "1", "2", "3", "4", "5"][keys.len()];
    let mut request = vec![&b"EVAL"[..], text.as_bytes(), count.as_bytes()];
    for &part in keys.iter().chain(args) {
        request.push(part.as_ref());
    }
    request
}

pub(crate) async fn run(raw: &mut Raw, text: &str, keys: &[&str], args: &[&str]) -> RawValue {
    raw.cmd(&call(text, keys, args)).await
}

/// The acquire of a try: it joins no line.
pub(crate) async fn acquire(raw: &mut Raw, hold: &str, lease: &str) -> RawValue {
    run(raw, sources::ACQUIRE, &["L", TOKEN], &[hold, lease, KEPT]).await
}

/// The first request of a wait.
pub(crate) async fn join(raw: &mut Raw, ticket: &str) -> RawValue {
    let args = [hold_of(ticket), "30000", KEPT, ticket];
    // One that is the hold as it is may be left out, as the library does.
    let told = if hold_of(ticket) == ticket { 2 } else { 4 };
    run(raw, sources::ACQUIRE, &["L", TOKEN, LINE], &args[..told]).await
}

/// A further request of a wait, with the score that an earlier answer told, or none.
pub(crate) async fn look(raw: &mut Raw, ticket: &str, score: &str, mode: &str) -> RawValue {
    let args = [hold_of(ticket), "30000", KEPT, ticket, score, mode];
    run(raw, sources::LOOK, &["L", TOKEN, LINE], &args).await
}

/// A release with its further arguments.
pub(crate) async fn release(raw: &mut Raw, hold: &str, mode: &str, more: &[&str]) -> RawValue {
    let args = [&[hold, mode, KEPT][..], more].concat();
    run(raw, sources::RELEASE, &["L", TOKEN, LINE], &args).await
}

pub(crate) async fn force_unlock(raw: &mut Raw, channel: &str, mode: &str) -> RawValue {
    let args = [channel, mode, KEPT];
    run(raw, sources::FORCE_UNLOCK, &["L", TOKEN, LINE], &args).await
}

/// The hold that a ticket becomes.
pub(crate) fn hold_of(ticket: &str) -> &str {
    ticket.split(['|', '+']).next().unwrap_or(ticket)
}

pub(crate) fn ticket(client: &str, number: u64) -> String {
    format!("{client}:{number}")
}

/// The subscription of a client at a server.
pub(crate) async fn ears(server: &Server, client: &str) -> Ears {
    Ears::plain(server, &format!("leasehold:{client}")).await
}

/// That of a client in a cluster with sharded channels.
pub(crate) async fn sharded_ears(server: &Server, client: &str) -> Ears {
    Ears::sharded(server, &format!("{LINE}:{client}")).await
}

/// The answer to those who wait.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) ms: i64,
    pub(crate) ahead: i64,
    pub(crate) score: i64,
    pub(crate) now: i64,
    pub(crate) new: bool,
}

#[track_caller]
pub(crate) fn place(reply: &RawValue) -> Place {
    let words = reply.str().split(' ').map(str::parse);
    match words.collect::<Result<Vec<i64>, _>>().as_deref() {
        Ok(&[ms, ahead, score, now, new]) => Place {
            ms,
            ahead,
            score,
            now,
            new: new == 1,
        },
        _ => panic!("expected a place in line: {reply:?}"),
    }
}

/// The token and the lease of a look that found or took its hold.
#[track_caller]
pub(crate) fn taken(reply: &RawValue) -> (i64, i64) {
    match reply.array() {
        [token, ms] => (token.int(), ms.int()),
        other => panic!("expected a hold: {other:?}"),
    }
}

/// A message of a grant, without its key.
pub(crate) struct Grant {
    pub(crate) number: u64,
    pub(crate) token: i64,
    pub(crate) time: i64,
    pub(crate) lease: i64,
}

/// The one message that a client was sent.
pub(crate) async fn granted(ears: &mut Ears) -> Grant {
    let messages = ears.heard().await;
    let [message] = &messages[..] else {
        panic!("expected one message: {messages:?}")
    };
    let words: Vec<_> = message.split(' ').collect();
    assert_eq!((words[0], words[5], words.len()), ("G", "L", 6));
    Grant {
        number: words[1].parse().expect("a number"),
        token: words[2].parse().expect("a token"),
        time: words[3].parse().expect("a time"),
        lease: words[4].parse().expect("a lease"),
    }
}

/// The line as `ticket ticket …`.
pub(crate) async fn line(raw: &mut Raw) -> String {
    let all = raw.cmd(&["ZRANGE", LINE, "0", "-1"]).await;
    let tickets: Vec<_> = all.array().iter().map(RawValue::str).collect();
    tickets.join(" ")
}

/// Puts tickets into the line, in this order, as requests of the past did.
pub(crate) async fn line_up(raw: &mut Raw, tickets: &[&str]) {
    for (score, ticket) in tickets.iter().enumerate() {
        let score = (score + 1).to_string();
        raw.cmd(&["ZADD", LINE, &score, ticket]).await;
    }
    raw.cmd(&["PEXPIRE", LINE, "60000"]).await;
}

pub(crate) async fn now(raw: &mut Raw) -> i64 {
    let time = raw.cmd(&["TIME"]).await;
    time.array()[0].int() * 1_000_000 + time.array()[1].int()
}

pub(crate) async fn counter(raw: &mut Raw) -> i64 {
    raw.cmd(&["GET", TOKEN]).await.int()
}

/// The confirmation of a granted hold.
pub(crate) async fn confirm(raw: &mut Raw, hold: &str, lease: &str) -> RawValue {
    let args = [hold, lease, KEPT];
    run(raw, sources::CONFIRM, &["L", TOKEN], &args).await
}

/// A user with everything but what `rules` take away.
pub(crate) async fn user(server: &Server, rules: &[&str]) -> Raw {
    let mut raw = server.raw().await;
    let all = [
        &[
            "ACL", "SETUSER", "some", "on", ">secret", "~*", "&*", "+@all",
        ][..],
        rules,
    ]
    .concat();
    let set = raw.cmd(&all).await;
    assert!(set.is_ok(), "{set:?}");
    raw.cmd(&["AUTH", "some", "secret"]).await;
    raw
}

/// Asserts that the request was refused with an error of this code.
#[track_caller]
pub(crate) fn assert_refused(reply: &RawValue, code: &str) {
    match reply.error() {
        Some(error) => assert!(error.contains(code), "{error}"),
        None => panic!("expected {code}: {reply:?}"),
    }
}

/// A subscriber of one channel.
pub(crate) struct Ears {
    raw: Raw,
    channel: String,
    publish: &'static str,
}

impl Ears {
    pub(crate) async fn plain(server: &Server, channel: &str) -> Self {
        Self::open(server, channel, "SUBSCRIBE", "PUBLISH").await
    }

    pub(crate) async fn sharded(server: &Server, channel: &str) -> Self {
        Self::open(server, channel, "SSUBSCRIBE", "SPUBLISH").await
    }

    /// The messages published so far, and not told before: all in front of a marker published now.
    pub(crate) async fn heard(&mut self) -> Vec<String> {
        static MARKERS: AtomicU64 = AtomicU64::new(0);
        let marker = format!("marker {}", MARKERS.fetch_add(1, Ordering::Relaxed));
        let publish = [self.publish, &self.channel, &marker];
        assert!(self.raw.cmd(&publish).await.int() >= 1);
        let mut heard = Vec::new();
        loop {
            let push = self.raw.push().await;
            match push[2].str() {
                message if message == marker => return heard,
                // Those of others who hear the same channel.
                message if message.starts_with("marker ") => {}
                message => heard.push(message.to_owned()),
            }
        }
    }

    async fn open(server: &Server, channel: &str, subscribe: &str, publish: &'static str) -> Self {
        let mut raw = server.raw().await;
        raw.hello3().await;
        raw.send(&[subscribe, channel]).await.expect("connected");
        let confirmed = raw.push().await;
        assert!(confirmed[0].str().ends_with("subscribe"), "{confirmed:?}");
        Self {
            raw,
            channel: channel.to_owned(),
            publish,
        }
    }
}
