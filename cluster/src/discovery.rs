//! Finding out who serves what: not at all for one server, by `CLUSTER SLOTS` in a cluster, through sentinels otherwise.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use leasehold_resp::{Address, Command, Connection, Endpoint, Error, ErrorKind, ServerErrorKind};
use tokio::time::Instant;

use crate::node::Node;
use crate::race::Race;
use crate::router::Router;
use crate::sentinel::Sentinels;
use crate::target::Target;
use crate::topology::{NodeAddress, Shard, View};

/// How long to wait for the views of nodes that may be dead. Those that live answer within a round trip.
const PATIENCE: Duration = Duration::from_millis(500);

/// How long a node may say nothing before we look whether another has taken its place. A frozen master takes what is sent
/// to it and its connections do not end.
const SILENCE: Duration = Duration::from_millis(250);

/// How long to wait for the others when one has answered. A frozen node takes connections and never answers: without
/// this every attempt would last as long as our patience, and a new master be found that much later.
const GRACE: Duration = Duration::from_millis(25);

/// How many masters are asked, of those that are up.
const MASTERS_ASKED: usize = 3;

/// How many others are asked, if those are too few.
const STRANGERS_ASKED: usize = 16;

/// Where maps come from.
#[derive(Debug)]
pub(crate) enum Discovery {
    /// One server, which serves everything.
    Single(Endpoint),
    /// Any node of the cluster. The seeds are kept for ever: when everything else that was known is gone, they may be
    /// back.
    Cluster {
        seeds: Vec<Endpoint>,
        strangers: Strangers,
    },
    /// The sentinels of a service.
    Sentinel(Sentinels),
}

/// Connections to nodes that are asked for the map and serve nothing that we know of. Kept while there is need of them:
/// the map is learned dozens of times a second while a shard is down, and must not open connections as often.
type Strangers = Mutex<HashMap<Address, Connection>>;

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
                template.silence = Some(SILENCE);
                (
                    Self::Cluster {
                        seeds,
                        strangers: Mutex::default(),
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
                server.silence = Some(SILENCE);
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
            Self::Cluster { seeds, strangers } => {
                View::agreed(views(seeds, strangers, template, view, nodes).await)
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

    /// Lets whoever announces changes tell the router.
    pub(crate) fn watch(&self, router: &Weak<Router>) {
        if let Self::Sentinel(sentinels) = self {
            sentinels.watch(router);
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

/// The views of some masters that are up; if they are few, or none of them answers, also of whoever else may know.
async fn views(
    seeds: &[Endpoint],
    strangers: &Strangers,
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
        ask_strangers(&mut asked, seeds, strangers, template, view, nodes);
    } else {
        strangers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }
    let views = collect(asked).await;
    if !views.is_empty() {
        return views;
    }
    let mut asked = Race::new();
    ask_strangers(&mut asked, seeds, strangers, template, view, nodes);
    collect(asked).await
}

/// Asks the seeds, the masters that are not up (nobody may have needed them yet), and their replicas (one of them may be
/// master by now).
fn ask_strangers(
    asked: &mut Race<'_, Result<View, Error>>,
    seeds: &[Endpoint],
    strangers: &Strangers,
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
    let mut strangers = strangers.lock().unwrap_or_else(PoisonError::into_inner);
    let mut kept = HashMap::new();
    for mut endpoint in candidates
        .filter(|endpoint| known.insert(known_as(&endpoint.address)))
        .take(STRANGERS_ASKED)
    {
        endpoint.connect_timeout = endpoint.connect_timeout.min(PATIENCE);
        let connection = strangers.remove(&endpoint.address);
        let connection = connection.unwrap_or_else(|| Connection::lazy(endpoint.clone(), None));
        kept.insert(endpoint.address.clone(), connection.clone());
        if may_answer(&connection) {
            ask(asked, connection, endpoint);
        }
    }
    *strangers = kept;
}

fn ask(asked: &mut Race<'_, Result<View, Error>>, connection: Connection, endpoint: Endpoint) {
    asked.add(async move { view_of(&connection, &endpoint).await });
}

/// Whether to ask there: not where the last attempt to connect failed. It goes on trying by itself, and whoever waited for it
/// each time would learn of a successor later than need be.
pub(crate) fn may_answer(connection: &Connection) -> bool {
    // A runtime that has ended has taken its driver along.
    connection.start();
    !connection.is_failing()
}

/// What comes in time. Whatever is still under way then ends with the race.
async fn collect(mut asked: Race<'_, Result<View, Error>>) -> Vec<View> {
    let mut views = Vec::new();
    let mut until = Instant::now() + PATIENCE;
    while let Ok(Some(answer)) = tokio::time::timeout_at(until, asked.next()).await {
        if let Ok(view) = answer {
            views.push(view);
            until = until.min(Instant::now() + GRACE);
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
    View::parse(&reply, &asked, endpoint.tls).map_err(|error| {
        Error::new(ErrorKind::NotSent, connection.node(), error.to_string()).with_source(error)
    })
}
