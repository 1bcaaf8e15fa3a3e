//! Sentinels: which server is the master of a service.
//!
//! A sentinel may be wrong, late or cut off, and a master that was frozen while it was replaced goes on calling itself
//! master for seconds. So several sentinels are asked, and the one they name must itself confirm its role.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use leasehold_resp::connection::{Event, Observer};
use leasehold_resp::push::{Confirmation, Push, Subscribe};
use leasehold_resp::{Command, Connection, Endpoint, Error, ErrorKind, ServerErrorKind};

use crate::node::Node;
use crate::pacing::Effort;
use crate::probes::{Probes, may_answer};
use crate::race::Race;
use crate::random::shuffle;
use crate::role::{Votes, master_shard, named_master};
use crate::sentinel_account::{Account, ServiceState};
use crate::topology::{NodeAddress, View};
use crate::views::Present;

/// The channel on which sentinels publish that a service has a new master.
const SWITCHED: &[u8] = b"+switch-master";

/// How many times one attempt asks again because the sentinels named another master meanwhile.
const LOOKS: usize = 3;

/// Upper bound on connecting to sentinels and to the master they name, and on their answers.
const ANSWER_WAIT: Duration = Duration::from_secs(1);

/// Upper bound on waiting for the present master to confirm its role, on a connection that is open already.
const PRESENT_MASTER_WAIT: Duration = Duration::from_millis(250);

/// Upper bound on waiting for the slower sentinels once most of them have said what they know of the replicas.
const FURTHER_ACCOUNTS_WAIT: Duration = Duration::from_millis(25);

/// Called when a sentinel announces a new master.
pub(crate) type OnSwitch = Arc<dyn Fn() + Send + Sync>;

/// The sentinels of one service.
#[derive(Debug)]
pub(crate) struct Sentinels {
    endpoints: Vec<Endpoint>,
    service: Arc<str>,
    /// One for each sentinel, subscribed to its announcements and used for questions. Opened once the first master is
    /// known.
    connections: OnceLock<Vec<Connection>>,
    /// Connections to servers that sentinels name and that have not confirmed their role.
    pub(crate) probes: Probes,
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
            probes: Probes::default(),
        }
    }

    /// The first master.
    pub(crate) async fn first(&self, template: &Endpoint) -> Result<View, Error> {
        self.master(template, None).await
    }

    /// The master now; `None` if there is none, or if a single sentinel names the present one.
    pub(crate) async fn again(&self, present: Present<'_>, effort: Effort) -> Option<View> {
        let node = present.nodes.first().map(|node| &**node);
        if effort == Effort::One
            && self.named_by_one().await.as_ref() == node.map(|node| &node.address)
        {
            return None;
        }
        self.master(present.template, node).await.ok()
    }

    /// Ends the connections to the sentinels, and those to servers that they named.
    pub(crate) fn close(&self) {
        self.probes.close();
        for connection in self.connections.get().into_iter().flatten() {
            connection.abort();
        }
    }

    /// The master that most sentinels name, if it confirms its role; otherwise the next one named. The `present` one is
    /// asked on its own connection: while it is frozen or dead, its successor is waited for.
    ///
    /// Another one than that must still be named when it has confirmed its role: a master that was frozen, and replaced
    /// while it was asked, confirms its role as soon as it wakes up.
    async fn master(&self, template: &Endpoint, present: Option<&Node>) -> Result<View, Error> {
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
                None if present.is_none() => confirmed(template, &address).await,
                None => self.confirmed_by_probe(template, &address).await,
            };
            match answer {
                Ok(view) => return Ok(view),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// The state of the service and its replicas, by all sentinels that answer soon after most of them have.
    pub(crate) async fn state(&self) -> Result<ServiceState, Error> {
        let mut asked = Race::new();
        for index in 0..self.endpoints.len() {
            asked.add(async move { account(&self.open(index).await?, &self.service).await });
        }
        let (mut accounts, mut last) = (Vec::new(), None);
        let mut until = Instant::now() + ANSWER_WAIT;
        while let Ok(Some(answer)) = tokio::time::timeout_at(until.into(), asked.next()).await {
            match answer {
                Ok(account) => accounts.push(account),
                Err(error) => last = Some(error),
            }
            if accounts.len() > self.endpoints.len() / 2 {
                until = until.min(Instant::now() + FURTHER_ACCOUNTS_WAIT);
            }
        }
        ServiceState::of(&accounts, self.endpoints.len()).ok_or_else(|| {
            last.unwrap_or_else(|| {
                Error::not_sent(&Arc::from(""), "the sentinels do not agree on a master")
            })
        })
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

    /// As [`confirmed`], on a connection that is kept: sentinels may name a server that is no master for a long time.
    async fn confirmed_by_probe(
        &self,
        template: &Endpoint,
        address: &NodeAddress,
    ) -> Result<View, Error> {
        let mut endpoint = probe_endpoint(template, address);
        // `ROLE` is asked anyway, and the connection is kept when the answer is no.
        endpoint.master_only = false;
        match self.probes.get(&endpoint) {
            Some(connection) if may_answer(&connection) => says_master(&connection, address).await,
            _ => Err(Error::not_sent(
                &endpoint.node(),
                "the master that the sentinels name cannot be reached",
            )),
        }
    }

    /// The address that a random sentinel names, of those that can be reached.
    async fn named_by_one(&self) -> Option<NodeAddress> {
        let mut sentinels: Vec<_> = self.connections.get()?.iter().collect();
        shuffle(&mut sentinels);
        let sentinel = sentinels
            .into_iter()
            .find(|connection| may_answer(connection))?;
        ask(sentinel, &self.service).await.ok()
    }

    /// The addresses that sentinels name, the one named most often first; and why there are none.
    async fn named(&self) -> (Vec<NodeAddress>, Error) {
        let mut asked = Race::new();
        for index in 0..self.endpoints.len() {
            asked.add(async move { ask(&self.open(index).await?, &self.service).await });
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

    /// The open connection to a sentinel, or one for the questions before there is a first master.
    async fn open(&self, index: usize) -> Result<Connection, Error> {
        let open = self.connections.get().map(|open| &open[index]);
        match open {
            Some(connection) if may_answer(connection) => Ok(connection.clone()),
            Some(connection) => Err(Error::not_sent(
                connection.node(),
                "the sentinel cannot be reached",
            )),
            None => Connection::connect(self.endpoints[index].clone()).await,
        }
    }
}

/// One sentinel's account of the service and its replicas. A sentinel that is changing its mind is asked again.
async fn account(connection: &Connection, service: &str) -> Result<Account, Error> {
    let ask = |what| Command::new("SENTINEL").arg(what).arg(service);
    for _ in 0..LOOKS {
        // In one go, and answered in this order.
        let before = connection.submit(&ask("MASTER"));
        let replicas = connection.submit(&ask("REPLICAS"));
        let after = connection.submit(&ask("MASTER"));
        let (before, replicas, after) = (before.await?, replicas.await?, after.await?);
        if let Some(account) = Account::parse(&before, &replicas, &after) {
            return Ok(account);
        }
    }
    Err(Error::not_sent(
        connection.node(),
        "the sentinel's account of the service cannot be read, or changes each time it is asked",
    ))
}

/// The master that one sentinel names.
async fn ask(connection: &Connection, service: &str) -> Result<NodeAddress, Error> {
    let question = Command::new("SENTINEL")
        .arg("GET-MASTER-ADDR-BY-NAME")
        .arg(service);
    let reply = connection.send(&question).await;
    let reply = reply.map_err(explain_no_sentinel)?;
    named_master(&reply).ok_or_else(|| {
        let detail = format!(
            "the sentinel knows no service called '{service}', see `sentinel monitor` in its configuration"
        );
        Error::new(ErrorKind::Config, connection.node(), detail)
    })
}

/// Says what it means that a server does not know of services.
fn explain_no_sentinel(error: Error) -> Error {
    let server = error.as_server().map(|server| server.kind());
    if server != Some(&ServerErrorKind::UnknownCommand) {
        return error;
    }
    let detail = format!(
        "it is no sentinel, which mostly listen on port 26379; for a server use redis://host:port ({})",
        error.detail()
    );
    Error::new(ErrorKind::Config, &error.node().into(), detail)
}

/// The view of a server that there is no connection to yet.
async fn confirmed(template: &Endpoint, address: &NodeAddress) -> Result<View, Error> {
    let connection = Connection::connect(probe_endpoint(template, address)).await?;
    says_master(&connection, address).await
}

fn probe_endpoint(template: &Endpoint, address: &NodeAddress) -> Endpoint {
    let mut endpoint = address.endpoint(template);
    endpoint.connect_timeout = endpoint.connect_timeout.min(ANSWER_WAIT);
    endpoint.command_timeout = endpoint.command_timeout.min(ANSWER_WAIT);
    endpoint
}

/// The view of the present master, if it confirms its role at once.
async fn still_master(node: &Node) -> Result<View, Error> {
    let connection = node.connection();
    let no_answer = || {
        Error::not_sent(
            connection.node(),
            "the master that the sentinels name does not answer",
        )
    };
    if !may_answer(connection) || connection.is_stalled() {
        return Err(no_answer());
    }
    tokio::time::timeout(PRESENT_MASTER_WAIT, says_master(connection, &node.address))
        .await
        .unwrap_or_else(|_| Err(no_answer()))
}

/// The view of a server that confirms that it is a master. Only its own reply to `ROLE` counts.
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
