//! A master is replaced: the time from the first write that its successor accepts to our first
//! write there.

use std::io::Result;
use std::time::{Duration, Instant};

use crate::client::PairClient;
use crate::cluster::Cluster;
use crate::floor::raw_blocking::RawBlocking;
use crate::floor::slots::Slots;
use crate::harness::{Effort, Harness};
use crate::ours::cluster::Sharded;
use crate::report::{Aim, Bound, Row, Section};
use crate::sample::{Figures, Request, percentile};
use crate::server;

const NODE_TIMEOUT: Duration = Duration::from_secs(1);
/// Pause between two writes and between two probes.
const PAUSE: Duration = Duration::from_millis(1);
/// Writes go well for this long before the master is replaced.
const CALM: Duration = Duration::from_millis(100);
/// Upper bound on a failover: a failed election is repeated after four node timeouts.
const BOUND: Duration = Duration::from_secs(30);

/// Takes the sample; each failover of it is a figure.
pub fn run(harness: &Harness) -> Result<Section> {
    let ours = "leasehold-cluster";
    let count = if harness.effort == Effort::Quick {
        6
    } else {
        20
    };
    let samples = harness.interleave(1, &[ours], |candidate| {
        harness.patient_sample(&Request {
            work: "recovery".into(),
            candidate: candidate.into(),
            workers: 1,
            count,
            ..Request::default()
        })
    })?;
    let row = |what: &str| Row {
        candidate: what.into(),
        cells: ["p50", "p99", "max"]
            .map(|figure| samples.median(ours, &format!("{what}_{figure}")))
            .to_vec(),
    };
    let aim = |figure: &str, bound: f64| Aim {
        what: format!("recovery after a failover, {figure}, ms"),
        floor: None,
        peer: None,
        ours: samples.median(ours, &format!("all_{figure}")),
        bound: Bound::AtMost(bound),
    };
    Ok(Section {
        title: "Recovery after a failover",
        how: format!(
            "{count} failovers of masters with one replica, node timeout 1 s: by turns CLUSTER FAILOVER TAKEOVER and \
             kill -9. Milliseconds from the first write of a blocking socket that the replica accepts, tried every \
             millisecond, to the first of ours there; one task writes all the time, a millisecond between. What the \
             cluster itself takes to elect is not in it."
        ),
        columns: ["p50 ms", "p99 ms", "max ms"].map(str::to_owned).to_vec(),
        rows: ["all", "takeover", "killed"].map(row).into(),
        aims: vec![aim("p50", 50.0), aim("p99", 100.0)],
    })
}

/// Takes it, with a cluster of its own.
pub fn sample(request: &Request) -> Figures {
    let program = server::program().expect("a server");
    let mut cluster = Cluster::start(&program, 3, true, NODE_TIMEOUT).expect("a cluster");
    let keys = keys(&cluster);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let client = runtime.block_on(Sharded::connect(cluster.port(0)));

    let (mut takeovers, mut kills) = (Vec::new(), Vec::new());
    for round in 0..request.count as usize {
        let masters = cluster.masters();
        let shard = round % masters;
        // The roles of a shard alternate: a former replica is the master in every other turn.
        let began_there = (round / masters).is_multiple_of(2);
        let (master, replica) = if began_there {
            (shard, shard + masters)
        } else {
            (shard + masters, shard)
        };
        cluster.healed(replica).expect("a cluster that heals");

        let writer = runtime.spawn(write_at(
            client.clone(),
            keys[shard].clone(),
            cluster.port(replica),
        ));
        std::thread::sleep(CALM);
        let mut probe = RawBlocking::open(cluster.port(replica)).expect("the replica");
        let kill = round % 2 == 1;
        if kill {
            cluster.kill(master).expect("our own process");
        } else {
            let reply = probe
                .call(&[b"CLUSTER", b"FAILOVER", b"TAKEOVER"])
                .expect("the replica");
            assert!(
                reply.starts_with(b"+OK"),
                "{}",
                String::from_utf8_lossy(&reply)
            );
        }
        let writable = first_write(&mut probe, &keys[shard]);
        let ours = runtime.block_on(writer).expect("our client writes");
        // Before the probe, if the probe was asleep.
        let micros = ours.saturating_duration_since(writable).as_micros() as u64;
        if kill {
            cluster.restart(master).expect("a server");
            kills.push(micros);
        } else {
            takeovers.push(micros);
        }
    }
    let mut all = [takeovers.clone(), kills.clone()].concat();
    let mut figures = Figures::new();
    for (what, micros) in [
        ("all", &mut all),
        ("takeover", &mut takeovers),
        ("killed", &mut kills),
    ] {
        for (figure, share) in [("p50", 0.5), ("p99", 0.99)] {
            figures.insert(format!("{what}_{figure}"), percentile(micros, share) / 1e3);
        }
        figures.insert(
            format!("{what}_max"),
            micros.last().map_or(f64::NAN, |&most| most as f64 / 1e3),
        );
    }
    figures
}

/// A key for each of the masters.
fn keys(cluster: &Cluster) -> Vec<String> {
    let slots = Slots::learn(cluster.port(0));
    let key = |master| {
        let serves =
            |key: &String| slots.ports[slots.owner(key.as_bytes())] == cluster.port(master);
        (0..)
            .map(|n| format!("lock:recovery:{n}"))
            .find(serves)
            .expect("every master serves something")
    };
    (0..cluster.masters()).map(key).collect()
}

/// Writes until a write arrives at `port`; returns the time.
async fn write_at(client: Sharded, key: String, port: u16) -> Instant {
    loop {
        if client.write(key.as_bytes()).await == Some(port) {
            return Instant::now();
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Tries until the replica accepts a write; returns the time.
fn first_write(probe: &mut RawBlocking, key: &str) -> Instant {
    let deadline = Instant::now() + BOUND;
    let key = format!("{{{key}}}:probe");
    loop {
        let reply = probe
            .call(&[b"SET", key.as_bytes(), b"1", b"PX", b"10000"])
            .expect("the replica");
        if reply.starts_with(b"+OK") {
            return Instant::now();
        }
        assert!(
            Instant::now() < deadline,
            "nobody elects: {}",
            String::from_utf8_lossy(&reply)
        );
        std::thread::sleep(PAUSE);
    }
}
