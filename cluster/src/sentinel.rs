//! Sentinels: who is master of a service, and who says so.
//!
//! A sentinel may be wrong, late or cut off, and a master that was frozen while it was replaced goes on calling itself
//! master for seconds. So several sentinels are asked, and the one they name must itself confirm its role.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use leasehold_resp::connection::{Event, Observer};
use leasehold_resp::push::{Confirmation, Push, Subscribe};
use leasehold_resp::{Command, Connection, Endpoint, Error, ErrorKind};

use crate::node::Node;
use crate::probes::may_answer;
use crate::race::Race;
use crate::role::{Votes, master_shard, named_master};
use crate::topology::{NodeAddress, View};

/// The channel on which sentinels publish that a service has a new master.
const SWITCHED: &[u8] = b"+switch-master";

/// How many times one attempt asks again because the sentinels named another master meanwhile.
const LOOKS: usize = 3;

/// Upper bound on connecting to sentinels and to the master they name, and on their answers.
const ANSWER_WAIT: Duration = Duration::from_secs(1);

/// Upper bound on waiting for the present master to confirm its role, on a connection that is open already.
const PRESENT_MASTER_WAIT: Duration = Duration::from_millis(250);

/// Called when a sentinel announces a new master.
pub(crate) type OnSwitch = Arc<dyn Fn() + Send + Sync>;

/// The sentinels of one service.
#[derive(Debug)]
pub(crate) struct Sentinels {
    endpoints: Vec<Endpoint>,
    service: Arc<str>,
    /// One a sentinel: they listen for changes, and are asked. Opened once the first master is known.
    connections: OnceLock<Vec<Connection>>,
}

impl Sentinels {
    pub(crate) fn new(mut endpoints: Vec<Endpoint>, service: String) -> Self {
        for endpoint in &mut endpoints {
            endpoint.connect_timeout = endpoint.connect_timeout.min(ANSWER_WAIT);
            endpoint.command_timeout = endpoint.command_timeout.min(ANSWER_WAIT);
        }
        Self {
            endpoints,
            service: service.into(),
            connections: OnceLock::new(),
        }
    }

    /// The master that most sentinels name, if it says so itself; otherwise the next one named. The `present` one is
    /// asked through the connection that there is: while it is frozen or dead, its successor is waited for.
    ///
    /// Another one than that must still be named when it has confirmed its role: a master that was frozen, and replaced
    /// while it was asked, says that it is one as soon as it wakes up.
    pub(crate) async fn master(
        &self,
        template: &Endpoint,
        present: Option<&Node>,
    ) -> Result<View, Error> {
        for _ in 0..LOOKS {
            let view = self.look(template, present).await?;
            let master = view.shards().first().map(|shard| &shard.master);
            if master == present.map(|node| &node.address) || self.named().await.0.first() == master
            {
                return Ok(view);
            }
        }
        Err(Error::not_sent(
            &Arc::from(""),
            "the sentinels name another master each time they are asked",
        ))
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

    /// Subscribes to all sentinels; the first announcement of a new master calls `on_switch`.
    pub(crate) fn watch(&self, on_switch: &OnSwitch) {
        let connect = |endpoint: &Endpoint| {
            let on_switch = Arc::clone(on_switch);
            let observer: Observer = Arc::new(move |connection, event| match event {
                Event::Up => {
                    let channels = vec![Bytes::from_static(SWITCHED)];
                    let subscribe = Subscribe {
                        kind: Confirmation::Subscribe,
                        channels,
                    };
                    connection.subscribe(&subscribe).detach(|_| {});
                }
                Event::Push(Push::Message { .. }) => on_switch(),
                _ => {}
            });
            let connection = Connection::lazy(endpoint.clone(), Some(observer));
            connection.start();
            connection
        };
        self.connections
            .get_or_init(|| self.endpoints.iter().map(connect).collect());
    }

    /// The addresses that sentinels name, the one named most often first; and why there are none.
    async fn named(&self) -> (Vec<NodeAddress>, Error) {
        let mut asked = Race::new();
        for (index, endpoint) in self.endpoints.iter().enumerate() {
            let open = self
                .connections
                .get()
                .and_then(|connections| connections.get(index));
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
    if !may_answer(connection) {
        return Err(Error::not_sent(
            connection.node(),
            "the sentinel cannot be reached",
        ));
    }
    let question = Command::new("SENTINEL")
        .arg("GET-MASTER-ADDR-BY-NAME")
        .arg(service);
    let reply = connection.send(&question).await?;
    named_master(&reply).ok_or_else(|| {
        let detail = format!("the sentinel knows no service called '{service}'");
        Error::new(ErrorKind::Config, connection.node(), detail)
    })
}

/// The view of a server that we do not know yet.
async fn confirmed(template: &Endpoint, address: &NodeAddress) -> Result<View, Error> {
    let mut endpoint = address.endpoint(template);
    endpoint.connect_timeout = endpoint.connect_timeout.min(ANSWER_WAIT);
    endpoint.command_timeout = endpoint.command_timeout.min(ANSWER_WAIT);
    says_master(&Connection::connect(endpoint).await?, address).await
}

/// The view of the master that we have, if it still is one and says so at once.
async fn still_master(node: &Node) -> Result<View, Error> {
    let connection = node.connection();
    let unheard = || {
        Error::not_sent(
            connection.node(),
            "the sentinels name a master that says nothing",
        )
    };
    if !may_answer(connection) || connection.is_stalled() {
        return Err(unheard());
    }
    tokio::time::timeout(PRESENT_MASTER_WAIT, says_master(connection, &node.address))
        .await
        .unwrap_or_else(|_| Err(unheard()))
}

/// The view of a server that confirms that it is a master: `ROLE` is the only word that counts.
async fn says_master(connection: &Connection, address: &NodeAddress) -> Result<View, Error> {
    let role = connection.send(&Command::new("ROLE")).await?;
    match master_shard(&role, address) {
        Some(shard) => Ok(View::single(shard)),
        None => Err(Error::not_sent(
            connection.node(),
            "the sentinels name a master that is none",
        )),
    }
}
