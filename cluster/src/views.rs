//! Learning the map of a cluster: which nodes are asked for their views, and when the views are enough.
//!
//! A node that was cut off from the others goes on answering clients, with a view that is getting old. So no fixed set of
//! nodes is asked but random ones and a seed, and when they disagree the rest of the masters.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use leasehold_resp::{Address, Command, Connection, Endpoint, Error, ErrorKind, ServerErrorKind};
use tokio::time::Instant;

use crate::node::Node;
use crate::pacing::Effort;
use crate::probes::{Probes, may_answer};
use crate::race::Race;
use crate::random::{random, shuffle};
use crate::topology::{NodeAddress, View};

/// Upper bound on waiting for the first view; the nodes asked may all be dead. A live one answers within a round trip.
const FIRST_VIEW_WAIT: Duration = Duration::from_millis(500);

/// Upper bound on waiting for further views once one has arrived. A frozen node accepts connections and never answers:
/// without this bound every attempt would last [`FIRST_VIEW_WAIT`], and a new master be found that much later.
const FURTHER_VIEWS_WAIT: Duration = Duration::from_millis(25);

/// Pause before the next seed is tried while the one before has not answered yet.
const NEXT_SEED_AFTER: Duration = Duration::from_millis(100);

/// How many masters are asked as long as they agree, of those that are up.
const MASTERS_ASKED: usize = 3;

/// How many other nodes are asked at most.
const MAX_PROBES: usize = 16;

/// The nodes of a cluster that can be asked.
#[derive(Debug)]
pub(crate) struct ClusterNodes {
    /// The nodes in the URL. They are kept for ever: when all other nodes that were known are gone, these may be back.
    seeds: Vec<Endpoint>,
    /// Whether sharded channels are used where there are any.
    sharded_channels: bool,
    pub(crate) probes: Probes,
}

/// The present state, when a newer view is asked for.
#[derive(Clone, Copy)]
pub(crate) struct Present<'a> {
    /// How to get at a server, but for its address.
    pub(crate) template: &'a Endpoint,
    pub(crate) view: &'a View,
    /// The masters of the view, in its order.
    pub(crate) nodes: &'a [Arc<Node>],
}

impl ClusterNodes {
    pub(crate) fn new(seeds: Vec<Endpoint>, sharded_channels: bool) -> Self {
        Self {
            seeds,
            sharded_channels,
            probes: Probes::default(),
        }
    }

    /// The view of a seed, and whether channels belong to slots. The seeds are tried in random order, the next one
    /// after a failure or a short while: a client that has all nodes in its URL should not connect to all of them.
    pub(crate) async fn first(&self) -> Result<(View, bool), Error> {
        let mut seeds = self.seeds.clone();
        shuffle(&mut seeds);
        let mut seeds = seeds.into_iter();
        let mut asked = Race::new();
        let mut failure: Option<Error> = None;
        loop {
            let next = seeds.next();
            let is_last = next.is_none();
            if let Some(seed) = next {
                asked.add(first_view(seed, self.sharded_channels));
            }
            let answer = if is_last {
                asked.next().await
            } else {
                match tokio::time::timeout(NEXT_SEED_AFTER, asked.next()).await {
                    Ok(answer) => answer,
                    Err(_) => continue,
                }
            };
            match answer {
                Some(Ok(found)) => return Ok(found),
                // A refusal is a better reason than a host that cannot be reached.
                Some(Err(error)) if failure.as_ref().is_none_or(Error::is_transient) => {
                    failure = Some(error);
                }
                Some(Err(_)) => {}
                None if is_last => {
                    return Err(failure.unwrap_or_else(|| Error::config("the URL has no host")));
                }
                None => {}
            }
        }
    }

    /// A view that may be newer than the `present` one; `None` if there is none, or if a single question found no change.
    pub(crate) async fn again(&self, present: Present<'_>, effort: Effort) -> Option<View> {
        if effort == Effort::One {
            let view = self.glimpse(present).await?;
            if view.agrees_with(present.view) {
                return None;
            }
        }
        let mut survey = Survey::new(self, present);
        survey.ask_some();
        survey.collect().await;
        if survey.views.is_empty() {
            survey.ask_all_others();
            survey.collect().await;
        }
        if !survey.is_unanimous() {
            survey.ask_masters(usize::MAX);
            survey.collect().await;
        }
        View::agreed(survey.views)
    }

    /// The view of a single node.
    async fn glimpse(&self, present: Present<'_>) -> Option<View> {
        let mut survey = Survey::new(self, present);
        // A connection that is open already, or any other node, each as likely as the other nodes that are up.
        let up = survey.voters.len() as u64;
        if up > 0 && !random().is_multiple_of(up + 1) {
            survey.ask_masters(1);
        } else {
            survey.ask_others(1);
        }
        survey.collect().await;
        survey.views.pop()
    }
}

/// One round of questions.
struct Survey<'a> {
    cluster: &'a ClusterNodes,
    present: Present<'a>,
    /// Masters that are up and have not lost the others, in random order.
    voters: Vec<Arc<Node>>,
    /// The nodes that were asked, by the name that the view has for them: one node under two names must not vote twice.
    asked: HashSet<NodeAddress>,
    race: Race<'a, Result<View, Error>>,
    views: Vec<View>,
}

impl<'a> Survey<'a> {
    fn new(cluster: &'a ClusterNodes, present: Present<'a>) -> Self {
        let up = || {
            let nodes = present.nodes.iter();
            nodes.filter(|node| node.connection().is_up()).cloned()
        };
        let mut voters: Vec<_> = up().filter(|node| node.may_vote()).collect();
        if voters.is_empty() {
            voters = up().collect();
        }
        shuffle(&mut voters);
        Self {
            cluster,
            present,
            voters,
            asked: HashSet::new(),
            race: Race::new(),
            views: Vec::new(),
        }
    }

    /// Some masters and a seed. Also the replicas of masters that are missed: one of them may be a master by now.
    fn ask_some(&mut self) {
        self.ask_masters(MASTERS_ASKED);
        let missing = MASTERS_ASKED
            .min(self.present.nodes.len())
            .saturating_sub(self.asked.len());
        self.ask_others(missing + 1);
        // A search outlasts the moment at which its node comes up.
        let missed = self
            .shards()
            .filter(|(node, _)| node.search.exists() && !node.connection().is_up());
        let replicas: Vec<_> = missed.flat_map(|(_, replicas)| replicas).cloned().collect();
        self.ask_addresses(replicas, MAX_PROBES);
    }

    /// At most `limit` masters that are up and were not asked yet.
    fn ask_masters(&mut self, limit: usize) {
        let voters: Vec<_> = self
            .voters
            .iter()
            .filter(|node| !self.asked.contains(&node.address))
            .take(limit)
            .cloned()
            .collect();
        for node in voters {
            let endpoint = node.address.endpoint(self.present.template);
            self.ask(&node.address, node.connection().clone(), endpoint);
        }
    }

    /// At most `limit` of the seeds and of the masters that are not up: they may just not have been needed yet.
    fn ask_others(&mut self, limit: usize) {
        let idle = self
            .present
            .nodes
            .iter()
            .filter(|node| !node.connection().is_up());
        let idle = idle.map(|node| node.address.endpoint(self.present.template));
        let mut others: Vec<_> = self.cluster.seeds.iter().cloned().chain(idle).collect();
        shuffle(&mut others);
        self.ask_endpoints(others, limit);
    }

    /// Seeds, masters that are not up, and their replicas.
    fn ask_all_others(&mut self) {
        self.ask_others(MAX_PROBES);
        let down = self
            .shards()
            .filter(|(node, _)| !node.connection().is_up())
            .flat_map(|(_, replicas)| replicas)
            .cloned()
            .collect();
        self.ask_addresses(down, MAX_PROBES);
    }

    fn ask_addresses(&mut self, addresses: Vec<NodeAddress>, limit: usize) {
        let endpoint = |address: NodeAddress| address.endpoint(self.present.template);
        let endpoints = addresses.into_iter().map(endpoint).collect();
        self.ask_endpoints(endpoints, limit);
    }

    /// Asks the first `limit` of `endpoints` that were not asked yet and can be.
    fn ask_endpoints(&mut self, endpoints: Vec<Endpoint>, limit: usize) {
        let mut left = limit;
        for mut endpoint in endpoints {
            let Some(address) = address_of(&endpoint) else {
                continue;
            };
            if left == 0 {
                return;
            }
            let address = self.present.view.known_as(&address).clone();
            if self.asked.contains(&address) {
                continue;
            }
            let node = self
                .present
                .nodes
                .iter()
                .find(|node| node.address == address && node.connection().is_up());
            let connection = match node {
                Some(node) if !self.voters.iter().any(|voter| Arc::ptr_eq(voter, node)) => continue,
                Some(node) => node.connection().clone(),
                None => {
                    endpoint.connect_timeout = endpoint.connect_timeout.min(FIRST_VIEW_WAIT);
                    match self.cluster.probes.get(&endpoint) {
                        Some(probe) if may_answer(&probe) => probe,
                        _ => continue,
                    }
                }
            };
            left -= 1;
            self.ask(&address, connection, endpoint);
        }
    }

    fn ask(&mut self, address: &NodeAddress, connection: Connection, endpoint: Endpoint) {
        self.asked.insert(address.clone());
        self.race
            .add(async move { view_of(&connection, &endpoint).await });
    }

    /// Takes the views that arrive in time. Questions still under way then are dropped.
    async fn collect(&mut self) {
        let mut until = Instant::now() + FIRST_VIEW_WAIT;
        while let Ok(Some(answer)) = tokio::time::timeout_at(until, self.race.next()).await {
            let Ok(view) = answer else { continue };
            self.views.push(view);
            if self.has_majority() {
                break;
            }
            until = until.min(Instant::now() + FURTHER_VIEWS_WAIT);
        }
        self.race = Race::new();
    }

    fn is_unanimous(&self) -> bool {
        self.views.iter().all(|view| {
            self.views
                .first()
                .is_some_and(|first| view.agrees_with(first))
        })
    }

    /// Whether as many agree as there would be in a majority of the masters, so that the others cannot change it.
    fn has_majority(&self) -> bool {
        let masters = self.present.nodes.len();
        self.views.iter().any(|view| {
            let votes = self.views.iter().filter(|other| other.agrees_with(view));
            votes.count() > masters.max(MASTERS_ASKED) / 2
        })
    }

    /// The masters with the addresses of their replicas.
    fn shards(&self) -> impl Iterator<Item = (&'a Arc<Node>, &'a [NodeAddress])> + use<'a> {
        let shards = self.present.view.shards().iter();
        self.present
            .nodes
            .iter()
            .zip(shards.map(|shard| shard.replicas.as_slice()))
    }
}

/// The first view from `seed`, and whether channels belong to slots: if that is `wanted`, and possible there.
async fn first_view(seed: Endpoint, wanted: bool) -> Result<(View, bool), Error> {
    let connection = Connection::connect(seed.clone())
        .await
        .map_err(|error| explain_database(error, &seed))?;
    let view = view_of(&connection, &seed).await;
    let view = view.map_err(explain_no_cluster)?;
    let sharded = wanted && has_sharded_channels(&connection).await?;
    Ok((view, sharded))
}

/// Says what it means that a server does not know of clusters.
fn explain_no_cluster(error: Error) -> Error {
    if !error.detail().contains("cluster support disabled") {
        return error;
    }
    let detail = format!(
        "it is no node of a cluster: use redis://host:port ({})",
        error.detail()
    );
    Error::new(ErrorKind::Config, &error.node().into(), detail)
}

/// Adds to the refusal of a `SELECT` that the database came from the URL.
fn explain_database(error: Error, seed: &Endpoint) -> Error {
    let refused = error
        .as_server()
        .is_some_and(|_| error.detail().contains("SELECT") || error.detail().contains("DB index"));
    if seed.database == 0 || !refused {
        return error;
    }
    let detail = format!(
        "the URL names database {}, which this cluster does not have ({}); only Valkey 9 and later can have several, see \
         `cluster-databases` in its configuration",
        seed.database,
        error
            .as_server()
            .map_or_else(String::new, ToString::to_string)
    );
    Error::new(ErrorKind::Config, &error.node().into(), detail)
}

/// Servers before 7.0 have none; Redisson decides by the same question. A user without the right to ask gets an error: a
/// guess might subscribe where nothing is published.
async fn has_sharded_channels(connection: &Connection) -> Result<bool, Error> {
    let question = Command::new("PUBSUB").arg("SHARDNUMSUB");
    match connection.send(&question).await {
        Ok(_) => Ok(true),
        Err(error)
            if error
                .as_server()
                .is_some_and(|error| *error.kind() == ServerErrorKind::UnknownCommand) =>
        {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

async fn view_of(connection: &Connection, endpoint: &Endpoint) -> Result<View, Error> {
    let reply = connection
        .send(&Command::new("CLUSTER").arg("SLOTS"))
        .await?;
    let Some(asked) = address_of(endpoint) else {
        return Err(Error::config(
            "a cluster cannot be reached through a unix socket",
        ));
    };
    View::parse(&reply, &asked, endpoint.tls)
        .map_err(|error| Error::not_sent(connection.node(), error.to_string()))
}

fn address_of(endpoint: &Endpoint) -> Option<NodeAddress> {
    match &endpoint.address {
        Address::Tcp { host, port } => Some(NodeAddress {
            host: host.clone(),
            port: *port,
        }),
        Address::Unix(_) => None,
    }
}
