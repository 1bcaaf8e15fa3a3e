//! Ten thousand channels whose shard fails over: the time until all are subscribed again, and commands meanwhile.

use std::io::Result;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::client::PairClient;
use crate::cluster::Cluster;
use crate::floor::raw_blocking::RawBlocking;
use crate::floor::slots::Slots;
use crate::harness::Harness;
use crate::ours::cluster::Sharded;
use crate::report::{Aim, Bound, Row, Section};
use crate::sample::{Figures, Request, percentile};
use crate::server;

const NODE_TIMEOUT: Duration = Duration::from_secs(1);
const CHANNELS: usize = 10_000;
/// Duration of the measurement without a failover.
const CALM: Duration = Duration::from_secs(1);

/// Takes the sample.
pub fn run(harness: &Harness) -> Result<Section> {
    let ours = "leasehold-cluster";
    let samples = harness.interleave(harness.rounds(3), &[ours], |candidate| {
        harness.patient_sample(&Request {
            work: "resubscribe".into(),
            candidate: candidate.into(),
            workers: 1,
            ..Request::default()
        })
    })?;
    let median = |figure: &str| samples.median(ours, figure);
    let ratio = samples.ratio_to(ours, "p99_during", ours, "p99_calm");
    let row = |what: &str, cells: [Option<f64>; 3]| Row {
        candidate: what.into(),
        cells: cells.to_vec(),
    };
    let aim = |what: &str, ours: Option<f64>, bound: f64| Aim {
        what: what.into(),
        floor: None,
        peer: None,
        ours,
        bound: Bound::AtMost(bound),
    };
    Ok(Section {
        title: "Ten thousand channels in a failover",
        how: "10,000 sharded channels of one shard of three, which fails over gracefully. Milliseconds from CLUSTER FAILOVER \
              until all are confirmed by the new master, and the latency of one task that writes at another shard, \
              calm and meanwhile; the ratio is taken within each round."
            .into(),
        columns: ["all again ms", "p50 us", "p99 us"].map(str::to_owned).to_vec(),
        rows: vec![
            row("calm", [None, median("p50_calm"), median("p99_calm")]),
            row("failover", [median("all"), median("p50_during"), median("p99_during")]),
        ],
        aims: vec![
            aim("ten thousand channels again after a failover, ms", median("all"), 1_000.0),
            aim("p99 of other commands meanwhile, over calm", ratio, 2.0),
        ],
    })
}

/// Takes it, with a cluster of its own.
pub fn sample(_request: &Request) -> Figures {
    let program = server::program().expect("a server");
    let cluster = Cluster::start(&program, 3, true, NODE_TIMEOUT).expect("a cluster");
    let slots = Slots::learn(cluster.port(0));
    let at = |member: usize, prefix: &'static str| {
        let (port, slots) = (cluster.port(member), &slots);
        (0..)
            .map(move |n| format!("{prefix}:{n}"))
            .filter(move |name| slots.ports[slots.owner(name.as_bytes())] == port)
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let client = runtime.block_on(Sharded::connect(cluster.port(0)));
    let names: Vec<_> = at(0, "channel").take(CHANNELS).collect();
    let elsewhere = at(1, "lock").next().expect("a key");
    // Connections are opened on the runtime of the call that needs them.
    let entered = runtime.enter();
    let mut subscriptions: Vec<_> = names.iter().map(|name| client.subscribe(name)).collect();
    drop(entered);
    runtime.block_on(Sharded::all_confirmed(&mut subscriptions));

    let stop = Arc::new(AtomicBool::new(false));
    let mut calm = runtime.block_on(async {
        let work = tokio::spawn(latencies(
            client.clone(),
            elsewhere.clone(),
            Arc::clone(&stop),
        ));
        tokio::time::sleep(CALM).await;
        stop.store(true, Relaxed);
        work.await.expect("our client writes")
    });
    stop.store(false, Relaxed);
    let (all, mut during) = runtime.block_on(async {
        let work = tokio::spawn(latencies(client.clone(), elsewhere, Arc::clone(&stop)));
        let mut replica = RawBlocking::open(cluster.port(3)).expect("the replica");
        let reply = replica
            .call(&[b"CLUSTER", b"FAILOVER"])
            .expect("the replica");
        assert!(
            reply.starts_with(b"+OK"),
            "{}",
            String::from_utf8_lossy(&reply)
        );
        let began = Instant::now();
        Sharded::all_confirmed(&mut subscriptions).await;
        let all = began.elapsed();
        stop.store(true, Relaxed);
        (all, work.await.expect("our client writes"))
    });
    let mut figures = Figures::from([("all".into(), all.as_secs_f64() * 1e3)]);
    for (when, micros) in [("calm", &mut calm), ("during", &mut during)] {
        for (figure, share) in [("p50", 0.5), ("p99", 0.99)] {
            figures.insert(format!("{figure}_{when}"), percentile(micros, share));
        }
    }
    figures
}

/// Microseconds of each write at `key`, one after another, until told to stop.
async fn latencies(client: Sharded, key: String, stop: Arc<AtomicBool>) -> Vec<u64> {
    let mut micros = Vec::new();
    while !stop.load(Relaxed) {
        let sent = Instant::now();
        client.write(key.as_bytes()).await;
        micros.push(sent.elapsed().as_micros() as u64);
    }
    micros
}
