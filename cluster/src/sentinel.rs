//! Sentinels: who is master of a service, and who says so.
//!
//! A sentinel may be wrong, late or cut off, and a master that was frozen while it was replaced goes on calling itself
//! master for seconds. So several sentinels are asked, and the one they name must itself confirm its role.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use leasehold_resp::connection::{Event, Observer};
use leasehold_resp::push::{Confirmation, Push, Subscribe};
use leasehold_resp::{Command, Connection, Endpoint, Error, ErrorKind};

use crate::node::Node;
use crate::race::Race;
use crate::role::{Votes, master_shard, named_master};
use crate::router::Router;
use crate::topology::{NodeAddress, View};

/// What sentinels publish when a service has another master.
const SWITCHED: &[u8] = b"+switch-master";

/// How often to look for the master if another one is announced meanwhile: three sentinels announce it three times.
const LOOKS: usize = 4;

/// How long to wait for sentinels and for the master they name. Those that live answer within a round trip.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long to wait for the master we have already, which has nothing to say but that it is still one.
const GLANCE: Duration = Duration::from_millis(250);

/// The sentinels of one service.
#[derive(Debug)]
pub(crate) struct Sentinels {
    endpoints: Vec<Endpoint>,
    service: Arc<str>,
    /// One a sentinel: they listen for changes, and are asked. Opened once the first master is known.
    connections: OnceLock<Vec<Connection>>,
    /// How often they have announced a new master.
    announced: Arc<AtomicU64>,
}

impl Sentinels {
    pub(crate) fn new(mut endpoints: Vec<Endpoint>, service: String) -> Self {
        for endpoint in &mut endpoints {
            endpoint.connect_timeout = endpoint.connect_timeout.min(PATIENCE);
            endpoint.command_timeout = endpoint.command_timeout.min(PATIENCE);
        }
        Self { endpoints, service: service.into(), connections: OnceLock::new(), announced: Arc::default() }
    }

    /// The master that most sentinels name, if it says so itself; otherwise the next one named. The `present` one is
    /// asked through the connection that there is: while it is frozen or dead, its successor is waited for.
    pub(crate) async fn master(&self, template: &Endpoint, present: Option<&Node>) -> Result<View, Error> {
        for _ in 1..LOOKS {
            let announced = self.announced.load(Ordering::Acquire);
            let master = self.look(template, present).await;
            // Otherwise sentinels have changed their minds since we asked them. The master they named then may have been
            // frozen, and wake up just now, and confirm it.
            if self.announced.load(Ordering::Acquire) == announced {
                return master;
            }
        }
        self.look(template, present).await
    }

    async fn look(&self, template: &Endpoint, present: Option<&Node>) -> Result<View, Error> {
        let (named, mut last) = self.named().await;
        for address in named {
            let answer = match present.filter(|node| node.address == address) {
                Some(node) => still_master(node).await,
                None => confirmed(template, &address).await,
            };
            match answer {
                Ok(view) => return Ok(view),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Subscribes to all sentinels: the first word of a new master starts a refresh.
    pub(crate) fn watch(&self, router: &Weak<Router>) {
        let connect = |endpoint: &Endpoint| {
            let (router, announced) = (router.clone(), Arc::clone(&self.announced));
            let observer: Observer = Arc::new(move |connection, event| match event {
                Event::Up => {
                    let channels = vec![Bytes::from_static(SWITCHED)];
                    let subscribe = Subscribe { kind: Confirmation::Subscribe, channels };
                    connection.subscribe(&subscribe).detach(|_| {});
                }
                Event::Push(Push::Message { .. }) => {
                    announced.fetch_add(1, Ordering::AcqRel);
                    if let Some(router) = router.upgrade() {
                        router.refresh();
                    }
                }
                Event::Down | Event::Silent | Event::Push(_) => {}
            });
            let connection = Connection::lazy(endpoint.clone(), Some(observer));
            connection.start();
            connection
        };
        self.connections.get_or_init(|| self.endpoints.iter().map(connect).collect());
    }

    /// The addresses that sentinels name, the one named most often first; and why there are none.
    async fn named(&self) -> (Vec<NodeAddress>, Error) {
        let mut asked = Race::new();
        for (index, endpoint) in self.endpoints.iter().enumerate() {
            let open = self.connections.get().and_then(|connections| connections.get(index));
            asked.add(async move {
                match open {
                    Some(connection) => ask(connection, &self.service).await,
                    None => ask(&Connection::connect(endpoint.clone()).await?, &self.service).await,
                }
            });
        }
        let mut votes = Votes::default();
        let mut last = Error::config("the URL names no sentinel");
        while let Some(answer) = asked.next().await {
            match answer {
                Ok(address) => votes.add(address),
                Err(error) => last = error,
            }
            // Most of them agree: the slow ones cannot change it.
            if votes.are_decided(self.endpoints.len()) {
                break;
            }
        }
        (votes.ranked(), last)
    }
}

/// One sentinel's word.
async fn ask(connection: &Connection, service: &str) -> Result<NodeAddress, Error> {
    // After the runtime that drove it has ended.
    connection.start();
    if connection.is_failing() {
        return Err(Error::not_sent(connection.node(), "the sentinel cannot be reached"));
    }
    let question = Command::new("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(service);
    let reply = connection.send(&question).await?;
    named_master(&reply).ok_or_else(|| {
        let detail = format!("the sentinel knows no service called '{service}'");
        Error::new(ErrorKind::Config, connection.node(), detail)
    })
}

/// The view of a server that we do not know yet.
async fn confirmed(template: &Endpoint, address: &NodeAddress) -> Result<View, Error> {
    let mut endpoint = address.endpoint(template);
    endpoint.connect_timeout = endpoint.connect_timeout.min(PATIENCE);
    endpoint.command_timeout = endpoint.command_timeout.min(PATIENCE);
    says_master(&Connection::connect(endpoint).await?, address).await
}

/// The view of the master that we have, if it still is one and says so at once.
async fn still_master(node: &Node) -> Result<View, Error> {
    let connection = node.connection();
    connection.start();
    let unheard = || Error::not_sent(connection.node(), "the sentinels name a master that says nothing");
    if connection.is_failing() || connection.is_silent() {
        return Err(unheard());
    }
    tokio::time::timeout(GLANCE, says_master(connection, &node.address)).await.unwrap_or_else(|_| Err(unheard()))
}

/// The view of a server that confirms that it is a master: `ROLE` is the only word that counts.
async fn says_master(connection: &Connection, address: &NodeAddress) -> Result<View, Error> {
    let role = connection.send(&Command::new("ROLE")).await?;
    match master_shard(&role, address) {
        Some(shard) => Ok(View::single(shard)),
        None => Err(Error::not_sent(connection.node(), "the sentinels name a master that is none")),
    }
}
