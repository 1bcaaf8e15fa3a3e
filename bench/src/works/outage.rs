//! A shard that stays dead: what the clients that wait for it ask of the nodes that work.

use std::io::Result;
use std::time::{Duration, Instant};

use crate::client::PairClient;
use crate::cluster::Cluster;
use crate::floor::raw_blocking::RawBlocking;
use crate::floor::slots::Slots;
use crate::harness::Harness;
use crate::ours::cluster::Sharded;
use crate::report::{Aim, Bound, Row, Section};
use crate::sample::{Figures, Request};
use crate::server;

const NODE_TIMEOUT: Duration = Duration::from_secs(1);
/// The beginning of the outage.
const FIRST: Duration = Duration::from_secs(5);
/// Time between the beginning and the measurement of a lasting outage.
const BETWEEN: Duration = Duration::from_secs(5);
/// Duration of that measurement.
const LASTING: Duration = Duration::from_secs(10);
/// Processes that the figure of one is multiplied by.
const PROCESSES: f64 = 1_000.0;

/// Takes the sample.
pub fn run(harness: &Harness) -> Result<Section> {
    let ours = "leasehold-cluster";
    let samples = harness.interleave(1, &[ours], |candidate| {
        harness.patient_sample(&Request {
            work: "outage".into(),
            candidate: candidate.into(),
            workers: 1,
            ..Request::default()
        })
    })?;
    let [first, lasting] = ["first", "lasting"].map(|figure| samples.median(ours, figure));
    let row = |what: &str, figure: Option<f64>| Row {
        candidate: what.into(),
        cells: vec![figure, figure.map(|rate| rate * PROCESSES)],
    };
    Ok(Section {
        title: "Questions during an outage",
        how: "One of three masters without replicas is killed, and a client waits for a key there. CLUSTER SLOTS that the \
              other two answer, all together, in the first 5 s and from the 10th second on; the figure for 1,000 waiting \
              processes is computed from that of one."
            .into(),
        columns: ["questions /s", "of 1,000 processes"].map(str::to_owned).to_vec(),
        rows: vec![row("first 5 s", first), row("lasting", lasting)],
        aims: vec![Aim {
            what: "questions /s of 1,000 processes during a lasting outage".into(),
            floor: None,
            peer: None,
            ours: lasting.map(|rate| rate * PROCESSES),
            bound: Bound::AtMost(1_500.0),
        }],
    })
}

/// Takes it, with a cluster of its own.
pub fn sample(_request: &Request) -> Figures {
    let program = server::program().expect("a server");
    let mut cluster = Cluster::start(&program, 3, false, NODE_TIMEOUT).expect("a cluster");
    let slots = Slots::learn(cluster.port(0));
    let key = (0..)
        .map(|n| format!("lock:outage:{n}"))
        .find(|key| slots.ports[slots.owner(key.as_bytes())] == cluster.port(0))
        .expect("every master serves something");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let client = runtime.block_on(Sharded::connect(cluster.port(1)));
    runtime.block_on(client.write(key.as_bytes()));
    cluster.kill(0).expect("our own process");
    let before = questions(&cluster);
    let began = Instant::now();
    let waiting = runtime.spawn(async move { client.write(key.as_bytes()).await });
    std::thread::sleep(FIRST);
    let first = (questions(&cluster) - before) / began.elapsed().as_secs_f64();
    std::thread::sleep(BETWEEN);
    let (before, began) = (questions(&cluster), Instant::now());
    std::thread::sleep(LASTING);
    let lasting = (questions(&cluster) - before) / began.elapsed().as_secs_f64();
    waiting.abort();
    Figures::from([("first".into(), first), ("lasting".into(), lasting)])
}

/// How often the nodes that work were asked for the map.
fn questions(cluster: &Cluster) -> f64 {
    [1, 2]
        .map(|member| {
            let mut probe = RawBlocking::open(cluster.port(member)).expect("a node");
            let stats = probe.call(&[b"INFO", b"commandstats"]).expect("the node");
            let stats = String::from_utf8_lossy(&stats).into_owned();
            let calls = stats
                .lines()
                .find_map(|line| line.strip_prefix("cmdstat_cluster|slots:calls="))
                .and_then(|line| line.split(',').next()?.parse::<f64>().ok());
            calls.unwrap_or(0.0)
        })
        .iter()
        .sum()
}
