//! Sentinels: who is master of a service, and who says so.
//!
//! A sentinel may be wrong, late or cut off, and a master that was frozen while it was replaced goes on calling itself
//! master for seconds. So several sentinels are asked, and the one they name must itself confirm its role.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use leasehold_resp::connection::{Event, Observer};
use leasehold_resp::push::{Confirmation, Push, Subscribe};
use leasehold_resp::{Command, Connection, Endpoint, Error, ErrorKind, Value};
use tokio::task::JoinSet;

use crate::router::Router;
use crate::topology::{NodeAddress, Shard, View};

/// What sentinels publish when a service has another master.
const SWITCHED: &[u8] = b"+switch-master";

/// How long to wait for sentinels and for the master they name. Those that live answer within a round trip.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long to wait for the master we have already, which has nothing to say but that it is still one.
const GLANCE: Duration = Duration::from_millis(250);

/// The sentinels of one service.
#[derive(Debug)]
pub(crate) struct Sentinels {
    endpoints: Vec<Endpoint>,
    service: Arc<str>,
    /// Connections that listen for changes, one a sentinel.
    listening: Mutex<Vec<Connection>>,
}

impl Sentinels {
    pub(crate) fn new(endpoints: Vec<Endpoint>, service: String) -> Self {
        Self { endpoints, service: service.into(), listening: Mutex::default() }
    }

    /// The master that most sentinels name, if it says so itself; otherwise the next one named. If it is still the
    /// `present` one it should confirm that at once: while it is frozen or dead, its successor is waited for.
    pub(crate) async fn master(&self, template: &Endpoint, present: Option<&NodeAddress>) -> Result<View, Error> {
        let (named, mut last) = self.named().await;
        for address in named {
            let patience = if present == Some(&address) { GLANCE } else { PATIENCE };
            match confirmed(template, &address, patience).await {
                Ok(view) => return Ok(view),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Subscribes to all sentinels: the first word of a new master starts a refresh.
    pub(crate) fn watch(&self, router: &Weak<Router>) {
        let mut listening = self.listening.lock().unwrap_or_else(PoisonError::into_inner);
        for endpoint in &self.endpoints {
            let router = router.clone();
            let observer: Observer = Arc::new(move |connection, event| match event {
                Event::Up => {
                    let channels = vec![Bytes::from_static(SWITCHED)];
                    let subscribe = Subscribe { kind: Confirmation::Subscribe, channels };
                    connection.subscribe(&subscribe).detach(|_| {});
                }
                Event::Push(Push::Message { .. }) => drop(router.upgrade().map(|router| router.refresh())),
                Event::Down | Event::Silent | Event::Push(_) => {}
            });
            let connection = Connection::lazy(endpoint.clone(), Some(observer));
            connection.start();
            listening.push(connection);
        }
    }

    /// The addresses that sentinels name, the one named most often first; and why there are none.
    async fn named(&self) -> (Vec<NodeAddress>, Error) {
        let mut asked = JoinSet::new();
        for endpoint in &self.endpoints {
            let mut endpoint = endpoint.clone();
            endpoint.connect_timeout = endpoint.connect_timeout.min(PATIENCE);
            endpoint.command_timeout = endpoint.command_timeout.min(PATIENCE);
            let service = Arc::clone(&self.service);
            asked.spawn(async move { ask(endpoint, &service).await });
        }
        let mut votes: Vec<(NodeAddress, usize)> = Vec::new();
        let mut last = Error::config("the URL names no sentinel");
        while let Some(answer) = asked.join_next().await {
            match answer {
                Ok(Ok(address)) => match votes.iter_mut().find(|(known, _)| *known == address) {
                    Some((_, count)) => *count += 1,
                    None => votes.push((address, 1)),
                },
                Ok(Err(error)) => last = error,
                Err(_panicked_or_cancelled) => {}
            }
            // Most of them agree: the slow ones cannot change it.
            if votes.iter().any(|(_, count)| *count > self.endpoints.len() / 2) {
                break;
            }
        }
        votes.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        (votes.into_iter().map(|(address, _)| address).collect(), last)
    }
}

/// One sentinel's word.
async fn ask(endpoint: Endpoint, service: &str) -> Result<NodeAddress, Error> {
    let connection = Connection::connect(endpoint).await?;
    let question = Command::new("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(service);
    let reply = connection.send(&question).await?;
    host_and_port(&reply).ok_or_else(|| {
        let detail = format!("the sentinel knows no service called '{service}'");
        Error::new(ErrorKind::Config, connection.node(), detail)
    })
}

/// `[host, port, …]`, both as text.
fn host_and_port(reply: &Value) -> Option<NodeAddress> {
    let [host, port, ..] = reply.as_array()? else { return None };
    let host = host.as_str().filter(|host| !host.is_empty())?;
    Some(NodeAddress { host: host.to_owned(), port: port.as_str()?.parse().ok()? })
}

/// The view of a server that confirms that it is a master: `ROLE` is the only word that counts.
async fn confirmed(template: &Endpoint, address: &NodeAddress, patience: Duration) -> Result<View, Error> {
    let mut endpoint = address.endpoint(template);
    endpoint.connect_timeout = endpoint.connect_timeout.min(patience);
    endpoint.command_timeout = endpoint.command_timeout.min(patience);
    let connection = Connection::connect(endpoint).await?;
    let role = connection.send(&Command::new("ROLE")).await?;
    match master_shard(&role, address) {
        Some(shard) => Ok(View::single(shard)),
        None => Err(Error::not_sent(connection.node(), "the sentinels name a master that is none")),
    }
}

/// What the reply to `ROLE` of the server at `address` says of its replicas, if it is a master.
pub(crate) fn master_shard(role: &Value, address: &NodeAddress) -> Option<Shard> {
    let [kind, _offset, replicas, ..] = role.as_array()? else { return None };
    if kind.as_str() != Some("master") {
        return None;
    }
    let replicas = replicas.as_array()?.iter().filter_map(host_and_port).collect();
    Some(Shard { master: address.clone(), replicas })
}
