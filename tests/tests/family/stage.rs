//! Servers and clients for one row of the table, and what must be so when a turn is over.

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold::{Error, Interop, Locks, Redlock, Release};
use leasehold_testkit::{Cluster, Proxy, Raw, RawValue, Server};
use tokio::task::LocalSet;

use crate::rows::{ALL, Client, Deployment, Held, PERMITS, Row};
use crate::support::{pttl, until, within};

/// Prefixes of keys that may outlive a turn: counters, capacities, the notes of latches and barriers.
const KEPT: [&str; 8] = [
    "lockp:",
    "redisson_lock_token:",
    "leasehold_token:",
    "leasehold_cap:",
    "leasehold_op:",
    "leasehold_latch:",
    "leasehold_barrier:",
    "leasehold_arrived:",
];

pub(crate) struct Stage {
    pub(crate) row: Row,
    /// Behind the proxies.
    pub(crate) ours: Client,
    pub(crate) theirs: Client,
    /// One for each server.
    pub(crate) raws: Vec<Raw>,
    proxies: Vec<Proxy>,
    cluster: Option<Cluster>,
    _servers: Vec<Server>,
}

/// Runs a test for all rows at once, each with servers of its own.
pub(crate) async fn for_each_row<F>(test: impl Fn(Row) -> F + Copy + 'static)
where
    F: Future<Output = ()> + 'static,
{
    let local = LocalSet::new();
    let rows: Vec<_> = ALL
        .into_iter()
        .map(|row| (row, local.spawn_local(async move { test(row).await })))
        .collect();
    local
        .run_until(async {
            let mut failed = Vec::new();
            for (row, task) in rows {
                if task.await.is_err() {
                    failed.push(row);
                }
            }
            assert!(failed.is_empty(), "{failed:?} failed, as told above");
        })
        .await;
}

impl Stage {
    pub(crate) async fn new(row: Row, lease: Duration) -> Self {
        match row {
            Row::MultiInSlots => Self::in_a_cluster(row, lease).await,
            Row::Redlock => Self::of_independent_servers(row, lease).await,
            _ => Self::at_a_server(row, lease).await,
        }
    }

    async fn at_a_server(row: Row, lease: Duration) -> Self {
        let server = Server::start().await;
        let proxy = Proxy::start(server.addr());
        let names = ["a", "b"].map(String::from).to_vec();
        Self {
            row,
            ours: client(row, proxy.url(), lease, &names).await,
            theirs: client(row, server.url(), lease, &names).await,
            raws: vec![server.raw().await],
            proxies: vec![proxy],
            cluster: None,
            _servers: vec![server],
        }
    }

    /// Clients of a cluster learn of its proxies from it, so all go through them.
    async fn in_a_cluster(row: Row, lease: Duration) -> Self {
        let cluster = Cluster::builder().masters(2).replicas(0).proxied();
        let cluster = cluster.start().await;
        let names = vec![cluster.key_at(0, "a").await, cluster.key_at(1, "b").await];
        Self {
            row,
            ours: client(row, cluster.url(), lease, &names).await,
            theirs: client(row, cluster.url(), lease, &names).await,
            raws: vec![cluster.raw(0).await, cluster.raw(1).await],
            proxies: Vec::new(),
            cluster: Some(cluster),
            _servers: Vec::new(),
        }
    }

    /// The connections to one of the servers suffer.
    async fn of_independent_servers(row: Row, lease: Duration) -> Self {
        let mut servers = Vec::new();
        let mut raws = Vec::new();
        for _ in 0..3 {
            let server = Server::start().await;
            raws.push(server.raw().await);
            servers.push(server);
        }
        let proxy = Proxy::start(servers[0].addr());
        let mut urls: Vec<_> = servers.iter().map(Server::url).collect();
        let over = async |urls: &[String]| {
            let red = Redlock::builder(urls).lease(lease).durable().connect();
            Client {
                of: Deployment::Independent(within("a connect", red).await.unwrap()),
                names: vec!["a".into()],
            }
        };
        let theirs = over(&urls).await;
        urls[0] = proxy.url();
        Self {
            row,
            ours: over(&urls).await,
            theirs,
            raws,
            proxies: vec![proxy],
            cluster: None,
            _servers: servers,
        }
    }

    /// The proxy whose connections suffer.
    pub(crate) fn proxy(&self) -> &Proxy {
        match &self.cluster {
            Some(cluster) => cluster.proxy(0),
            None => &self.proxies[0],
        }
    }

    /// A turn of ours in which nothing else happens.
    pub(crate) async fn turn(&self) -> Result<Release, Error> {
        let turn = self.row.turn(&self.ours, &self.theirs, async |_| ());
        within("a turn", turn).await
    }

    /// A turn of ours, begun while others have it for a moment.
    pub(crate) async fn contended_turn(&self, moment: Duration) -> Result<Release, Error> {
        let held = within("a free lock", self.row.take(&self.theirs)).await?;
        let held = held.expect("in time");
        tokio::task::spawn_local(async move {
            tokio::time::sleep(moment).await;
            drop_or_release(held).await;
        });
        self.turn().await
    }

    /// The turn of ours left nothing that keeps others waiting, and the next client has its turn.
    pub(crate) async fn nothing_is_left(&mut self, when: &str) {
        let row = self.row;
        for raw in &mut self.raws {
            until(&format!("{row:?}, {when}: nothing is left"), async || {
                left(row, raw).await
            })
            .await;
        }
        let theirs = &self.theirs;
        let turn = row.turn(theirs, theirs, async |_| ());
        let turn = within(&format!("{row:?}, {when}: the next turn"), turn).await;
        let released = turn.unwrap_or_else(|error| panic!("{row:?}, {when}: {error}"));
        assert_eq!(released, Release::Released, "{row:?}, {when}");
        if row == Row::Semaphore {
            let semaphore = theirs.locks().semaphore(&theirs.names[0], PERMITS);
            let free = semaphore.available().await.unwrap();
            assert_eq!(free, PERMITS, "{row:?}, {when}");
        }
    }

    /// Each server has what one turn holds, once.
    pub(crate) async fn assert_held_once(&mut self, when: &str) {
        let row = self.row;
        let when = format!("{row:?}, {when}");
        // A majority may be enough.
        let at_all = if row == Row::Redlock { 2 } else { 1 };
        let mut at = 0;
        for (raw, name) in self.raws.iter_mut().zip(self.ours.names.iter().cycle()) {
            // Each of several servers has the same name, and each master its own.
            let name = if row == Row::MultiInSlots {
                name
            } else {
                &self.ours.names[0]
            };
            let held = match row {
                Row::Plain => raw.cmd(&["EXISTS", name]).await.int(),
                Row::Semaphore => {
                    let taken = format!("{{{name}}}:timeout");
                    let members = raw.cmd(&["ZCARD", &taken]).await.int();
                    assert_eq!(members, 2, "{when}");
                    1
                }
                Row::Counting => {
                    let left = raw.cmd(&["GET", name]).await;
                    assert_eq!(left.str(), "1", "{when}");
                    1
                }
                Row::Latch => {
                    assert_eq!(raw.cmd(&["GET", name]).await.str(), "2", "{when}");
                    1
                }
                Row::Barrier => 1,
                _ => {
                    let fields = fields(raw, name).await;
                    assert!(fields.len() <= 1, "{when}: {fields:?}");
                    assert!(fields.values().all(|count| count == "1"), "{when}");
                    i64::try_from(fields.len()).unwrap()
                }
            };
            at += held;
        }
        assert!(at >= at_all, "{when}: it is held at {at}");
    }

    /// The servers forget everything, and the first turn afterwards is over.
    pub(crate) async fn start_over(&mut self) {
        if let Deployment::One(locks) = &self.ours.of {
            // Behind what a dropped turn had still under way, whatever the answer.
            let _ = locks.mutex(&self.ours.names[0]).holder().await;
        }
        for raw in &mut self.raws {
            assert!(raw.cmd(&["FLUSHALL"]).await.is_ok());
        }
        let released = self.turn().await;
        assert_eq!(released.unwrap(), Release::Released, "{:?}", self.row);
    }

    /// The keys that the servers have now, each with the index of its server.
    pub(crate) async fn keys(raws: &mut [Raw]) -> Vec<(usize, String)> {
        let mut keys = Vec::new();
        for (at, raw) in raws.iter_mut().enumerate() {
            let found = raw.cmd(&["KEYS", "*"]).await;
            // The entries of processes are no part of any primitive.
            let found = found.array().iter().map(RawValue::str);
            let found = found.filter(|key| !key.starts_with("lockp:"));
            keys.extend(found.map(|key| (at, key.to_owned())));
        }
        // The ids of holds differ from turn to turn, and sort behind everything else here.
        keys.sort_by_key(|(at, key)| (*at, key.len(), key.clone()));
        keys
    }
}

async fn client(row: Row, url: String, lease: Duration, names: &[String]) -> Client {
    let interop = match row {
        Row::FairBesideRedisson => Interop::Redisson,
        _ => Interop::Off,
    };
    let builder = Locks::builder(url).lease(lease).interop(interop);
    Client {
        of: Deployment::One(builder.connect().await.unwrap()),
        names: names.to_vec(),
    }
}

async fn drop_or_release(held: Held) {
    match held {
        Held::Counted(semaphore) => semaphore.release(2).await.unwrap(),
        held => drop(held),
    }
}

/// The holders of a mutex or a read-write lock.
async fn fields(raw: &mut Raw, name: &str) -> BTreeMap<String, String> {
    let all = raw.cmd(&["HGETALL", name]).await;
    let pairs = all.array().chunks(2);
    let pairs = pairs.map(|pair| (pair[0].str().to_owned(), pair[1].str().to_owned()));
    pairs.filter(|(field, _)| field != "mode").collect()
}

/// What a turn left there: an error names it.
async fn left(row: Row, raw: &mut Raw) -> Result<(), String> {
    for key in raw.cmd(&["KEYS", "*"]).await.array() {
        let key = key.str();
        let is_number = key == "a";
        let is_left = match row {
            _ if key.starts_with("leasehold_arrived:") => {
                // Those who have withdrawn or passed have scores beyond.
                let parties = ["ZCOUNT", key, "0", "100000000000000"];
                raw.cmd(&parties).await.int() > 0
            }
            _ if KEPT.iter().any(|kept| key.starts_with(kept)) => false,
            // Of a semaphore it is counted anew by the next who asks.
            Row::Semaphore if is_number => false,
            Row::Counting if is_number => {
                raw.cmd(&["GET", key]).await != RawValue::Bulk(PERMITS.to_string().into())
            }
            Row::Semaphore if key.ends_with(":timeout") => {
                // Those that are over are removed by the next who asks.
                let time = raw.cmd(&["TIME"]).await;
                let now = format!("{}000", time.array()[0].int());
                raw.cmd(&["ZCOUNT", key, &now, "+inf"]).await.int() > 0
            }
            // It may be set and not open.
            Row::Latch if is_number => false,
            _ => true,
        };
        if is_left {
            return Err(format!("{key} is left"));
        }
        let for_ever = matches!(row, Row::Counting | Row::Latch) && is_number;
        let for_ever = for_ever || row == Row::FairBesideRedisson;
        if !for_ever && pttl(raw, key).await == -1 {
            return Err(format!("{key} has no expiry"));
        }
    }
    Ok(())
}
