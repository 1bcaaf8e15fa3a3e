//! Where maps come from: fixed for one server, `CLUSTER SLOTS` in a cluster, sentinels otherwise.

use std::time::Duration;

use leasehold_resp::{AskServer, Endpoint, Error};

use crate::pacing::Effort;
use crate::sentinel::{OnSwitch, Sentinels};
use crate::target::Target;
use crate::topology::{NodeAddress, Shard, View};
use crate::views::{ClusterNodes, Present};

/// How long a node with unanswered commands may send nothing before its successor is looked for. A frozen master goes on
/// accepting what is sent to it and keeps its connections open.
const STALLED_AFTER: Duration = Duration::from_millis(250);

/// A source of maps.
#[derive(Debug)]
pub(crate) enum Discovery {
    /// One server, which serves everything.
    Single(Endpoint),
    /// The nodes of a cluster.
    Cluster(ClusterNodes),
    /// The sentinels of a service.
    Sentinel(Sentinels),
}

/// The first map.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) view: View,
    /// Whether channels belong to slots.
    pub(crate) sharded: bool,
}

impl Discovery {
    /// Splits a target into where maps come from and how to get at a server.
    pub(crate) fn new(mut target: Target) -> (Self, Endpoint) {
        for server in target.servers_mut() {
            server.keys_only = true;
            if server.ask_server == AskServer::Never {
                // The run id tells whether a connection that was given up can still be alive at the server.
                server.ask_server = AskServer::IfPermitted;
            }
        }
        match target {
            Target::Single(endpoint) => (Self::Single(endpoint.clone()), endpoint),
            Target::Cluster {
                seeds,
                sharded_channels,
            } => {
                let mut template = seeds[0].clone();
                template.stall_after = Some(STALLED_AFTER);
                let nodes = ClusterNodes::new(seeds, sharded_channels);
                (Self::Cluster(nodes), template)
            }
            Target::Sentinel {
                sentinels,
                service,
                mut server,
            } => {
                // A master that was replaced in the meantime must not be taken for one.
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

    /// The only server, with its map, where it is known without a question.
    pub(crate) fn known(&self) -> Option<(&Endpoint, View)> {
        match self {
            Self::Single(endpoint) => Some((endpoint, view_of_server(endpoint))),
            Self::Cluster(_) | Self::Sentinel(_) => None,
        }
    }

    /// The first map, where it has to be asked for.
    pub(crate) async fn first(&self, template: &Endpoint) -> Result<Option<Found>, Error> {
        let (view, sharded) = match self {
            Self::Single(_) => return Ok(None),
            Self::Cluster(cluster) => cluster.first().await?,
            Self::Sentinel(sentinels) => (sentinels.first(template).await?, false),
        };
        Ok(Some(Found { view, sharded }))
    }

    /// A view that may be newer than the `present` one, if there is any.
    pub(crate) async fn again(&self, present: Present<'_>, effort: Effort) -> Option<View> {
        match self {
            Self::Single(_) => None,
            Self::Cluster(cluster) => cluster.again(present, effort).await,
            Self::Sentinel(sentinels) => sentinels.again(present, effort).await,
        }
    }

    /// Has `on_switch` called when a new master is announced. Only sentinels announce any.
    pub(crate) fn watch(&self, on_switch: &OnSwitch) {
        if let Self::Sentinel(sentinels) = self {
            sentinels.watch(on_switch);
        }
    }

    /// Ends the connections that were opened for questions. The next question opens others.
    pub(crate) fn end_probes(&self) {
        match self {
            Self::Single(_) => {}
            Self::Cluster(cluster) => cluster.probes.clear(),
            Self::Sentinel(sentinels) => sentinels.probes.clear(),
        }
    }

    /// Ends all connections of its own.
    pub(crate) fn close(&self) {
        match self {
            Self::Single(_) => {}
            Self::Cluster(cluster) => cluster.probes.close(),
            Self::Sentinel(sentinels) => sentinels.close(),
        }
    }
}

/// The view of a server that is not part of anything.
fn view_of_server(endpoint: &Endpoint) -> View {
    let master = NodeAddress {
        host: endpoint.node().to_string(),
        port: 0,
    };
    View::single(Shard {
        master,
        replicas: Vec::new(),
    })
}
