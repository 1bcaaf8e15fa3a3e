//! Clients that contend for a lock at five servers, of which one after another is killed and comes back empty, freezes, or is cut
//! off: claims never overlap, and tokens grow in the order in which guards are handed out.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use leasehold::Redlock;
use leasehold_testkit::chance::Chance;
use leasehold_testkit::{Proxy, Server, ms};

use crate::redlock::{nothing_is_left, servers};
use crate::support::within;

const LEASE: Duration = ms(1_200);
/// A node that was restarted grants nothing for this long, as whole seconds tell its age.
const OUT: Duration = ms(1_200 + 1_000 + 1_100);

/// Who believes to hold the lock until when, and the last token.
#[derive(Default)]
struct Claims {
    now: Mutex<(Option<(usize, Instant)>, u64)>,
    count: AtomicU64,
}

impl Claims {
    fn begin(&self, client: usize, until: Instant, token: u64) {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((other, deadline)) = now.0 {
            assert!(deadline <= Instant::now(), "{other} and {client} hold it");
        }
        assert!(token > now.1, "{token} after {}", now.1);
        *now = (Some((client, until)), token);
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// The lease of `client` was renewed, unless it lost the lock.
    fn extend(&self, client: usize, until: Instant) {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        if now.0.is_some_and(|(holder, _)| holder == client) {
            now.0 = Some((client, until));
        }
    }

    fn end(&self, client: usize) {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        if now.0.is_some_and(|(holder, _)| holder == client) {
            now.0 = None;
        }
    }
}

async fn user(red: Redlock, client: usize, claims: Arc<Claims>, stop: Arc<AtomicBool>, seed: u64) {
    let mut chance = Chance::new(seed);
    let mutex = red.mutex("a");
    while !stop.load(Ordering::Relaxed) {
        // With too many nodes out it is an error, and not a lock.
        let Ok(Some(guard)) = mutex.try_lock_for(ms(500)).fenced().await else {
            continue;
        };
        let until = Instant::now() + guard.valid_for();
        claims.begin(client, until, guard.token().expect("it is fenced").as_u64());
        let busy = Instant::now() + chance.millis(0, 60) * if chance.percent(5) { 40 } else { 1 };
        while Instant::now() < busy && guard.is_held() {
            tokio::time::sleep(ms(2)).await;
            claims.extend(client, Instant::now() + guard.valid_for());
        }
        claims.end(client);
        if chance.percent(50) {
            let _ = guard.release().await;
        }
    }
}

/// One fault after another: at most one node is inside its guard time.
async fn trouble(servers: &[Server], proxies: &[Proxy], chance: &mut Chance, time: Duration) {
    let end = Instant::now() + time;
    let mut last_restart = None::<Instant>;
    while Instant::now() < end {
        let at = chance.below(servers.len() as u64) as usize;
        let may_restart = last_restart.is_none_or(|at| at.elapsed() > OUT);
        match chance.below(4) {
            0 if may_restart => {
                servers[at].restart().await;
                last_restart = Some(Instant::now());
            }
            1 => {
                proxies[at].blackhole();
                tokio::time::sleep(chance.millis(50, 700)).await;
                proxies[at].heal();
                proxies[at].reset_all();
            }
            2 => proxies[at].reset_all(),
            _ => {
                servers[at].pause();
                tokio::time::sleep(chance.millis(20, 900)).await;
                servers[at].resume();
            }
        }
        tokio::time::sleep(chance.millis(10, 150)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_never_overlap_and_tokens_grow() {
    let seed = Chance::seed();
    println!("LEASEHOLD_SEED={seed}");
    let mut chance = Chance::new(seed);
    let servers = servers(5).await;
    let proxies: Vec<Proxy> = servers
        .iter()
        .map(|server| Proxy::start(server.addr()))
        .collect();
    let (claims, stop) = (
        Arc::new(Claims::default()),
        Arc::new(AtomicBool::new(false)),
    );
    let mut users = Vec::new();
    for client in 0..3 {
        let red = Redlock::builder(proxies.iter().map(Proxy::url)).lease(LEASE);
        let red = within("a connect", red.connect()).await.unwrap();
        let (claims, stop) = (Arc::clone(&claims), Arc::clone(&stop));
        users.push(tokio::spawn(user(
            red,
            client,
            claims,
            stop,
            chance.below(u64::MAX),
        )));
    }
    let long = std::env::var_os("LEASEHOLD_LONG").is_some();
    let time = Duration::from_secs(if long { 300 } else { 12 });
    trouble(&servers, &proxies, &mut chance, time).await;
    stop.store(true, Ordering::Relaxed);
    for user in users {
        within("its end", user).await.unwrap();
    }
    let count = claims.count.load(Ordering::Relaxed);
    println!("{count} claims");
    assert!(count > 5, "{count} claims");
    nothing_is_left(&servers, "a").await;
}
