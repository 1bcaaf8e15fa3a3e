//! Clients that count a latch down, and wait for it.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::{Client, Kind, LIMITS, Run};
use crate::history::{What, now};
use crate::raw::Raw;
use crate::server::Server;

/// The flaw of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// Nothing.
    None,
    /// It counts again when it repeats a request whose answer it did not get.
    CountsRepetitions,
    /// It takes any message for that of the end.
    TrustsAnyMessage,
    /// It looks first, listens then, and waits for a message that may be over.
    LooksThenListens,
}

impl Kind for Flaw {
    const ALL: &[Self] = &[
        Self::None,
        Self::CountsRepetitions,
        Self::TrustsAnyMessage,
        Self::LooksThenListens,
    ];

    fn rule(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            _ => Some("I14"),
        }
    }

    async fn run(self, servers: &[Server], dir: &Path) {
        workload(self, servers[0].addr(), dir).await;
    }
}

const COUNT: u32 = 3;
const LATCHES: usize = 12;
const WAITERS: usize = 2;
/// Time between two counts.
const STEP: Duration = Duration::from_millis(12);

/// KEYS: the latch, who has counted. A participant counts once, unless its repetitions do.
const COUNTS: &str = "if ARGV[2] ~= 'again' and redis.call('SADD', KEYS[2], ARGV[1]) == 0 then \
      return tonumber(redis.call('GET', KEYS[1]) or '0') end \
    local left = redis.call('DECR', KEYS[1]) redis.call('PUBLISH', KEYS[1], left) return left";

async fn workload(flaw: Flaw, addr: SocketAddr, dir: &Path) {
    let run = Run::begin("latch", flaw, flaw == Flaw::None, dir);
    let recorder = &run.recorder;
    for n in 0..LATCHES {
        let key = format!("{}:{n}", run.key);
        let mut counter = Client::new(addr, recorder, WAITERS, Duration::ZERO).await;
        let (set, count) = (key.clone(), COUNT);
        recorder.record(What::SetCount { key: set, count });
        counter.raw.cmd(&["SET", &key, &COUNT.to_string()]).await;
        let mut clients = JoinSet::new();
        for waiter in 0..WAITERS {
            let client = Client::new(addr, recorder, waiter, Duration::ZERO).await;
            clients.spawn(waits(client, key.clone(), flaw));
        }
        counts(counter, &key, flaw).await;
        if flaw == Flaw::LooksThenListens {
            // Those that missed the message sleep on.
            continue;
        }
        clients.join_all().await;
    }
    sleep(LIMITS.handoff + Duration::from_millis(200)).await;
    recorder.record(What::Quiesced { keys: Vec::new() });
}

async fn counts(mut client: Client, key: &str, flaw: Flaw) {
    let participants = format!("{key}:participants");
    let how = if flaw == Flaw::CountsRepetitions {
        "again"
    } else {
        ""
    };
    for participant in 0..COUNT {
        sleep(STEP).await;
        let record = |what| client.recorder.record(what);
        record(What::CountDown { key: key.into() });
        let participant = participant.to_string();
        let args = [participant.as_str(), how];
        if participant == "1" {
            // The answer of this one is lost on its way: it is sent again.
            client.eval(COUNTS, &[key, &participants], &args).await;
        }
        client.eval(COUNTS, &[key, &participants], &args).await;
        let record = |what| client.recorder.record(what);
        record(What::Counted { key: key.into() });
        let asked = now();
        let count = count(&mut client.raw, key).await;
        let key = key.into();
        let count = count.try_into().unwrap_or(0);
        let counts = What::Counts { key, asked, count };
        client.recorder.record(counts);
    }
}

async fn waits(mut client: Client, key: String, flaw: Flaw) {
    let mut hears = Raw::connect(client.addr).await.expect("it is up");
    hears.hello3().await;
    if flaw == Flaw::LooksThenListens {
        // Nothing says when in the counting it comes.
        sleep(STEP * 5 / 2).await;
    }
    let of_key = || key.clone();
    client.recorder.record(What::Awaits { key: of_key() });
    if flaw == Flaw::LooksThenListens {
        if count(&mut client.raw, &key).await > 0 {
            sleep(STEP).await;
            hears.send(&["SUBSCRIBE", &key]).await.expect("it is up");
            hears.push().await;
            hears.push().await;
        }
        return client.recorder.record(What::Opened { key });
    }
    hears.send(&["SUBSCRIBE", &key]).await.expect("it is up");
    hears.push().await;
    let give_up = Instant::now() + LIMITS.handoff;
    while Instant::now() < give_up && count(&mut client.raw, &key).await > 0 {
        let message = timeout(Duration::from_millis(100), hears.push()).await;
        if flaw == Flaw::TrustsAnyMessage && message.is_ok() {
            break;
        }
    }
    client.recorder.record(What::Opened { key });
}

async fn count(raw: &mut Raw, key: &str) -> i64 {
    let reply = raw.cmd(&["GET", key]).await;
    if reply.is_null() {
        return 0;
    }
    reply.str().parse().expect("a number")
}
