//! Finding out who serves what: not at all for one server, by `CLUSTER SLOTS` in a cluster, through sentinels otherwise.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use leasehold_resp::{Address, Command, Connection, Endpoint, Error, ErrorKind, ServerErrorKind};
use tokio::time::Instant;

use crate::node::Node;
use crate::probes::{Probes, may_answer};
use crate::race::Race;
use crate::sentinel::{OnSwitch, Sentinels};
use crate::target::Target;
use crate::topology::{NodeAddress, Shard, View};

/// Upper bound on waiting for the first view; the nodes asked may all be dead. A live one answers within a round trip.
const FIRST_VIEW_WAIT: Duration = Duration::from_millis(500);

/// How long a node with unanswered commands may send nothing before its successor is looked for. A frozen master goes on
/// accepting what is sent to it and keeps its connections open.
const STALLED_AFTER: Duration = Duration::from_millis(250);

/// Upper bound on waiting for further views once one has arrived. A frozen node accepts connections and never answers:
/// without this bound every attempt would last [`FIRST_VIEW_WAIT`], and a new master be found that much later.
const FURTHER_VIEWS_WAIT: Duration = Duration::from_millis(25);

/// How many masters are asked, of those that are up.
const MASTERS_ASKED: usize = 3;

/// How many probes are sent to other nodes, if those are too few.
const MAX_PROBES: usize = 16;

/// Where maps come from.
#[derive(Debug)]
pub(crate) enum Discovery {
    /// One server, which serves everything.
    Single(Endpoint),
    /// Any node of the cluster. The seeds are kept for ever: when everything else that was known is gone, they may be
    /// back.
    Cluster {
        seeds: Vec<Endpoint>,
        probes: Probes,
    },
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
                let mut template = seeds[0].clone();
                template.stall_after = Some(STALLED_AFTER);
                (
                    Self::Cluster {
                        seeds,
                        probes: Probes::default(),
                    },
                    template,
                )
            }
            Target::Sentinel {
                sentinels,
                service,
                mut server,
            } => {
                // A master that was replaced while we were away must not be taken for one.
                server.master_only = true;
                server.stall_after = Some(STALLED_AFTER);
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
                let master = NodeAddress {
                    host: endpoint.node().to_string(),
                    port: 0,
                };
                let view = View::single(Shard {
                    master,
                    replicas: Vec::new(),
                });
                Ok(Found {
                    view,
                    endpoint: Some(endpoint.clone()),
                    sharded: false,
                })
            }
            Self::Cluster { seeds, .. } => first_of(seeds.clone()).await,
            Self::Sentinel(sentinels) => {
                let view = sentinels.master(template, None).await?;
                Ok(Found {
                    view,
                    endpoint: None,
                    sharded: false,
                })
            }
        }
    }

    /// A newer map, if anybody who is asked has one.
    pub(crate) async fn again(
        &self,
        template: &Endpoint,
        view: &View,
        nodes: &[Arc<Node>],
    ) -> Option<Found> {
        let view = match self {
            Self::Single(_) => None,
            Self::Cluster { seeds, probes } => {
                View::agreed(views(seeds, probes, template, view, nodes).await)
            }
            Self::Sentinel(sentinels) => sentinels
                .master(template, nodes.first().map(|node| &**node))
                .await
                .ok(),
        };
        view.map(|view| Found {
            view,
            endpoint: None,
            sharded: false,
        })
    }

    /// Has `on_switch` called when a new master is announced. Only sentinels announce any.
    pub(crate) fn watch(&self, on_switch: &OnSwitch) {
        if let Self::Sentinel(sentinels) = self {
            sentinels.watch(on_switch);
        }
    }
}

/// The map of the first seed that has one.
async fn first_of(seeds: Vec<Endpoint>) -> Result<Found, Error> {
    let mut asked = Race::new();
    for seed in seeds {
        asked.add(async move {
            let connection = Connection::connect(seed.clone()).await?;
            let view = view_of(&connection, &seed).await?;
            Ok(Found {
                view,
                endpoint: None,
                sharded: has_sharded_channels(&connection).await?,
            })
        });
    }
    let mut last = Error::config("the URL has no host");
    while let Some(answer) = asked.next().await {
        match answer {
            Ok(found) => return Ok(found),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Servers before 7.0 have none; Redisson decides by the same question. Whoever may not ask is not told, and would listen
/// where nobody publishes.
async fn has_sharded_channels(connection: &Connection) -> Result<bool, Error> {
    match connection
        .send(&Command::new("PUBSUB").arg("SHARDNUMSUB"))
        .await
    {
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

/// The views of some masters that are up; if they are few, or none of them answers, also those of seeds and replicas.
async fn views(
    seeds: &[Endpoint],
    probes: &Probes,
    template: &Endpoint,
    view: &View,
    nodes: &[Arc<Node>],
) -> Vec<View> {
    let up: Vec<_> = nodes
        .iter()
        .filter(|node| node.connection().is_up())
        .take(MASTERS_ASKED)
        .collect();
    let mut asked = Race::new();
    for node in &up {
        ask(
            &mut asked,
            node.connection().clone(),
            node.address.endpoint(template),
        );
    }
    if up.len() < MASTERS_ASKED.min(nodes.len()) {
        ask_others(&mut asked, seeds, probes, template, view, nodes);
    } else {
        probes.clear();
    }
    let views = collect(asked).await;
    if !views.is_empty() {
        return views;
    }
    let mut asked = Race::new();
    ask_others(&mut asked, seeds, probes, template, view, nodes);
    collect(asked).await
}

/// Asks the seeds, the masters that are not up (nobody may have needed them yet), and their replicas (one of them may be
/// master by now).
fn ask_others(
    asked: &mut Race<'_, Result<View, Error>>,
    seeds: &[Endpoint],
    probes: &Probes,
    template: &Endpoint,
    view: &View,
    nodes: &[Arc<Node>],
) {
    let (up, down): (Vec<_>, Vec<_>) = nodes
        .iter()
        .zip(view.shards())
        .partition(|(node, _)| node.connection().is_up());
    let mut known: HashSet<Address> = up
        .iter()
        .map(|(node, _)| node.address.endpoint(template).address)
        .collect();
    let down = down
        .iter()
        .flat_map(|(_, shard)| std::iter::once(&shard.master).chain(&shard.replicas));
    // One node under two names would be asked twice, and its word count twice.
    let known_as = |address: &Address| match address {
        Address::Tcp { host, port } => {
            let NodeAddress { host, port } = view
                .known_as(&NodeAddress {
                    host: host.clone(),
                    port: *port,
                })
                .clone();
            Address::Tcp { host, port }
        }
        Address::Unix(_) => address.clone(),
    };
    let candidates = seeds
        .iter()
        .cloned()
        .chain(down.map(|address| address.endpoint(template)));
    let others = candidates
        .filter(|endpoint| known.insert(known_as(&endpoint.address)))
        .take(MAX_PROBES)
        .map(|mut endpoint| {
            endpoint.connect_timeout = endpoint.connect_timeout.min(FIRST_VIEW_WAIT);
            endpoint
        });
    for (connection, endpoint) in probes.only(others) {
        if may_answer(&connection) {
            ask(asked, connection, endpoint);
        }
    }
}

fn ask(asked: &mut Race<'_, Result<View, Error>>, connection: Connection, endpoint: Endpoint) {
    asked.add(async move { view_of(&connection, &endpoint).await });
}

/// The views that arrive in time. Questions still under way then are dropped.
async fn collect(mut asked: Race<'_, Result<View, Error>>) -> Vec<View> {
    let mut views = Vec::new();
    let mut until = Instant::now() + FIRST_VIEW_WAIT;
    while let Ok(Some(answer)) = tokio::time::timeout_at(until, asked.next()).await {
        if let Ok(view) = answer {
            views.push(view);
            until = until.min(Instant::now() + FURTHER_VIEWS_WAIT);
        }
    }
    views
}

async fn view_of(connection: &Connection, endpoint: &Endpoint) -> Result<View, Error> {
    let reply = connection
        .send(&Command::new("CLUSTER").arg("SLOTS"))
        .await?;
    let asked = match &endpoint.address {
        Address::Tcp { host, port } => NodeAddress {
            host: host.clone(),
            port: *port,
        },
        Address::Unix(_) => {
            return Err(Error::config(
                "a cluster cannot be reached through a unix socket",
            ));
        }
    };
    View::parse(&reply, &asked, endpoint.tls)
        .map_err(|error| Error::new(ErrorKind::NotSent, connection.node(), error.to_string()))
}
