//! Finding out who serves what: not at all for one server, by `CLUSTER SLOTS` in a cluster, through sentinels otherwise.

use std::sync::{Arc, Weak};
use std::time::Duration;

use leasehold_resp::{Address, Command, Connection, Endpoint, Error, ErrorKind};
use tokio::task::JoinSet;

use crate::node::Node;
use crate::router::Router;
use crate::sentinel::Sentinels;
use crate::target::Target;
use crate::topology::{NodeAddress, Shard, View};

/// How long to wait for the views of nodes that may be dead. Those that live answer within a round trip.
const PATIENCE: Duration = Duration::from_millis(500);

/// How many masters are asked, of those that are up.
const MASTERS_ASKED: usize = 3;

/// Where maps come from.
#[derive(Debug)]
pub(crate) enum Discovery {
    /// One server, which serves everything.
    Single(Endpoint),
    /// Any node of the cluster. The seeds are kept for ever: when everything else that was known is gone, they may be
    /// back.
    Cluster { seeds: Vec<Endpoint> },
    /// The sentinels of a service.
    Sentinel(Sentinels),
}

/// What was found.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) view: View,
    /// How to get at the only node, if not by its address.
    pub(crate) endpoint: Option<Endpoint>,
    /// Whether channels belong to slots.
    pub(crate) sharded: bool,
}

impl Discovery {
    /// Splits a target into where maps come from and how to get at a server.
    pub(crate) fn new(target: Target) -> (Self, Endpoint) {
        match target {
            Target::Single(endpoint) => (Self::Single(endpoint.clone()), endpoint),
            Target::Cluster { seeds } => {
                let template = seeds[0].clone();
                (Self::Cluster { seeds }, template)
            }
            Target::Sentinel { sentinels, service, mut server } => {
                // A master that was replaced while we were away must not be taken for one.
                server.master_only = true;
                (Self::Sentinel(Sentinels::new(sentinels, service)), server)
            }
        }
    }

    /// Whether the map can change.
    pub(crate) const fn is_dynamic(&self) -> bool {
        !matches!(self, Self::Single(_))
    }

    /// The first map.
    pub(crate) async fn first(&self, template: &Endpoint) -> Result<Found, Error> {
        match self {
            Self::Single(endpoint) => {
                let master = NodeAddress { host: endpoint.node().to_string(), port: 0 };
                let view = View::single(Shard { master, replicas: Vec::new() });
                Ok(Found { view, endpoint: Some(endpoint.clone()), sharded: false })
            }
            Self::Cluster { seeds } => first_of(seeds.clone()).await,
            Self::Sentinel(sentinels) => {
                let view = sentinels.master(template).await?;
                Ok(Found { view, endpoint: None, sharded: false })
            }
        }
    }

    /// A newer map, if anybody who is asked has one.
    pub(crate) async fn again(&self, template: &Endpoint, view: &View, nodes: &[Arc<Node>]) -> Option<Found> {
        let view = match self {
            Self::Single(_) => None,
            Self::Cluster { seeds } => View::agreed(views(seeds, template, view, nodes).await),
            Self::Sentinel(sentinels) => sentinels.master(template).await.ok(),
        };
        view.map(|view| Found { view, endpoint: None, sharded: false })
    }

    /// Lets whoever announces changes tell the router.
    pub(crate) fn watch(&self, router: &Weak<Router>) {
        if let Self::Sentinel(sentinels) = self {
            sentinels.watch(router);
        }
    }
}

/// The map of the first seed that has one.
async fn first_of(seeds: Vec<Endpoint>) -> Result<Found, Error> {
    let mut asked = JoinSet::new();
    for seed in seeds {
        asked.spawn(async move {
            let connection = Connection::connect(seed.clone()).await?;
            let view = view_of(&connection, &seed).await?;
            // Servers before 7.0 have no sharded channels; Redisson decides by the same question.
            let sharded = connection.send(&Command::new("PUBSUB").arg("SHARDNUMSUB")).await.is_ok();
            Ok(Found { view, endpoint: None, sharded })
        });
    }
    let mut last = Error::config("the URL has no host");
    while let Some(answer) = asked.join_next().await {
        match answer {
            Ok(Ok(found)) => return Ok(found),
            Ok(Err(error)) => last = error,
            Err(_panicked_or_cancelled) => {}
        }
    }
    Err(last)
}

/// The views of some masters that are up, of the replicas of those that are not (one of them may be master by now),
/// and of a seed.
async fn views(seeds: &[Endpoint], template: &Endpoint, view: &View, nodes: &[Arc<Node>]) -> Vec<View> {
    let mut asked = JoinSet::new();
    let mut strangers: Vec<Endpoint> = Vec::new();
    let mut up = 0;
    for (node, shard) in nodes.iter().zip(view.shards()) {
        if !node.connection().is_up() {
            strangers.extend(shard.replicas.iter().map(|replica| at(template, replica)));
        } else if up < MASTERS_ASKED {
            up += 1;
            let connection = node.connection().clone();
            let endpoint = at(template, &node.address);
            asked.spawn(async move { view_of(&connection, &endpoint).await });
        }
    }
    let seeds_asked = if up == 0 { seeds.len() } else { 1 };
    strangers.extend(seeds.iter().take(seeds_asked).cloned());
    for mut endpoint in strangers {
        endpoint.connect_timeout = endpoint.connect_timeout.min(PATIENCE);
        asked.spawn(async move { view_of(&Connection::connect(endpoint.clone()).await?, &endpoint).await });
    }
    let mut views = Vec::new();
    let collect = async {
        while let Some(answer) = asked.join_next().await {
            if let Ok(Ok(view)) = answer {
                views.push(view);
            }
        }
    };
    // Dropping the rest of the set ends it.
    let _ = tokio::time::timeout(PATIENCE, collect).await;
    views
}

async fn view_of(connection: &Connection, endpoint: &Endpoint) -> Result<View, Error> {
    let reply = connection.send(&Command::new("CLUSTER").arg("SLOTS")).await?;
    let asked = match &endpoint.address {
        Address::Tcp { host, port } => NodeAddress { host: host.clone(), port: *port },
        Address::Unix(_) => return Err(Error::config("a cluster cannot be reached through a unix socket")),
    };
    View::parse(&reply, &asked, endpoint.tls)
        .map_err(|error| Error::new(ErrorKind::NotSent, connection.node(), error.to_string()).with_source(error))
}

fn at(template: &Endpoint, address: &NodeAddress) -> Endpoint {
    let mut endpoint = template.clone();
    endpoint.address = Address::Tcp { host: address.host.clone(), port: address.port };
    endpoint
}
