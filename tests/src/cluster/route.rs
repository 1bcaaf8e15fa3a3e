//! A way to the cluster that one client has for itself.

use super::Cluster;
use crate::proxy::Proxy;

/// A proxy for each node beside the one that the cluster announces, for a single client: it can be
/// cut off from nodes that others reach, and reach one that others do not. The addresses that
/// servers tell it are those of these proxies.
#[derive(Debug)]
pub struct Route {
    proxies: Vec<Proxy>,
}

impl Cluster {
    /// A way of its own for a client.
    #[must_use]
    pub fn route(&self) -> Route {
        let proxies: Vec<_> = self
            .nodes
            .iter()
            .map(|node| Proxy::start(node.server.addr()))
            .collect();
        let ports: Vec<_> = (0..self.len())
            .map(|index| (self.addr(index).port(), proxies[index].addr().port()))
            .collect();
        for proxy in &proxies {
            proxy.rename_ports(&ports);
        }
        Route { proxies }
    }

    /// Cuts a node and the client of `route` off from all other nodes, and all other clients off
    /// from that node.
    ///
    /// # Panics
    ///
    /// When the cluster is not [`isolable`](super::ClusterBuilder::isolable).
    pub fn isolate_with(&self, index: usize, route: &Route) {
        self.isolate(index);
        self.proxy(index).stall();
        for (other, proxy) in route.proxies.iter().enumerate() {
            if other != index {
                proxy.stall();
            }
        }
    }
}

impl Route {
    /// As [`Cluster::url`].
    #[must_use]
    pub fn url(&self) -> String {
        let seeds: Vec<_> = self
            .proxies
            .iter()
            .map(|proxy| proxy.addr().to_string())
            .collect();
        format!("redis-cluster://{}", seeds.join(","))
    }

    /// The proxy in front of a node.
    #[must_use]
    pub fn proxy(&self, index: usize) -> &Proxy {
        &self.proxies[index]
    }
}
