//! Handing over when something fails: a process that is cut off, frozen or killed, a message that is
//! lost, a server that is restarted or replaced.
//!
//! Leases are 30 s, and waits are shorter.

use std::time::Duration;

use leasehold::{Error, Guard, Locks};
use leasehold_testkit::statistics::subscribers;
use leasehold_testkit::{Accept, Cluster, Failover, Fault, Proxy, Raw, Sentinels, Server};
use tokio::task::JoinHandle;

use crate::support::{fields, in_line, its_turn, line, locks, ms, pttl, tickets, until, within};

/// A process behind a proxy of its own.
struct Remote {
    proxy: Proxy,
    locks: Locks,
}

impl Remote {
    async fn new(server: &Server) -> Self {
        let proxy = Proxy::start(server.addr());
        let locks = patient(proxy.url()).await;
        Self { proxy, locks }
    }

    /// Its connections end, and it gets no other one.
    fn cut(&self) {
        self.proxy.accept(Accept::Refuse);
        self.proxy.reset_all();
    }
}

/// A waiter that looks while the server is away goes on waiting for it.
async fn patient(url: String) -> Locks {
    Locks::builder(url)
        .command_timeout(Duration::from_secs(18))
        .connect()
        .await
        .unwrap()
}

/// Whether this process has the lock on the server.
async fn has(raw: &mut Raw, locks: &Locks) -> bool {
    let holders = fields(raw, "a").await;
    holders.starts_with(locks.client_id()) && holders.ends_with("=1")
}

/// The waiters have their turns in this order.
async fn served_in_order(waiters: Vec<JoinHandle<Result<Guard, Error>>>) {
    let mut token = None;
    for waiter in waiters {
        let guard = its_turn(waiter).await;
        assert!(token < Some(guard.token()), "tokens grow");
        token = Some(guard.token());
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_process_that_is_gone_is_passed_over_by_the_grant() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (holder, gone, next) = (
        locks(&server).await,
        Remote::new(&server).await,
        locks(&server).await,
    );
    let held = holder.mutex("a").lock().await.unwrap();
    let lost = in_line(&mut raw, &gone.locks, "a").await;
    let waiter = in_line(&mut raw, &next, "a").await;
    gone.cut();
    until("the server notices", async || {
        let channel = format!("leasehold:{}", gone.locks.client_id());
        subscribers(&mut raw, &channel).await == 0
    })
    .await;
    assert_eq!(tickets(&mut raw, "a").await, 2);
    held.release().await.unwrap();
    // At once, by the release itself.
    assert!(has(&mut raw, &next).await);
    assert_eq!(tickets(&mut raw, "a").await, 0);
    drop(its_turn(waiter).await);
    lost.abort();
}

#[tokio::test]
async fn a_process_that_was_cut_off_comes_back_to_its_place() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let holder = locks(&server).await;
    let remote = [
        Remote::new(&server).await,
        Remote::new(&server).await,
        Remote::new(&server).await,
    ];
    let held = holder.mutex("a").lock().await.unwrap();
    let mut waiters = Vec::new();
    for remote in &remote {
        waiters.push(in_line(&mut raw, &remote.locks, "a").await);
    }
    let before = line(&mut raw, "a").await;
    // For a moment: nothing happens to its ticket.
    remote[1].proxy.reset_all();
    until("it is back", async || remote[1].proxy.open() > 0).await;
    tokio::time::sleep(ms(200)).await;
    assert_eq!(line(&mut raw, "a").await, before);

    // During a grant: its ticket is passed over, and comes back with its old score.
    remote[0].cut();
    until("the server notices", async || {
        let channel = format!("leasehold:{}", remote[0].locks.client_id());
        subscribers(&mut raw, &channel).await == 0
    })
    .await;
    held.release().await.unwrap();
    let [first, second, third] = waiters.try_into().expect("three");
    let guard = its_turn(second).await;
    assert_eq!(line(&mut raw, "a").await, before[2..]);
    remote[0].proxy.heal();
    until("its ticket is back", async || {
        tickets(&mut raw, "a").await == 2
    })
    .await;
    assert_eq!(line(&mut raw, "a").await, [&*before[0], &*before[2]]);
    guard.release().await.unwrap();
    served_in_order(vec![first, third]).await;
}

/// Its connection stays, so the message is sent; the ticket is used up, and costs nothing later.
#[tokio::test]
async fn a_frozen_process_costs_one_grant_lease_and_no_more() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (holder, second, third) = (
        locks(&server).await,
        locks(&server).await,
        locks(&server).await,
    );
    let frozen = Remote::new(&server).await;
    let held = holder.mutex("a").lock().await.unwrap();
    let stopped = in_line(&mut raw, &frozen.locks, "a").await;
    let next = in_line(&mut raw, &second, "a").await;
    let last = in_line(&mut raw, &third, "a").await;
    frozen.proxy.blackhole();
    held.release().await.unwrap();
    assert!(has(&mut raw, &frozen.locks).await);
    let left = pttl(&mut raw, "a").await;
    assert!((0..=1_000).contains(&left), "{left}");
    assert_eq!(tickets(&mut raw, "a").await, 2);
    let guard = its_turn(next).await;
    assert_eq!(tickets(&mut raw, "a").await, 1);
    guard.release().await.unwrap();
    assert!(has(&mut raw, &third).await, "granted by the release itself");
    its_turn(last).await.release().await.unwrap();
    frozen.proxy.reset_all();
    frozen.proxy.heal();
    its_turn(stopped).await.release().await.unwrap();
}

#[tokio::test]
async fn a_grant_whose_message_is_lost_is_found_by_the_next_look() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (holder, behind) = (locks(&server).await, locks(&server).await);
    let deaf = Remote::new(&server).await;
    deaf.proxy.to_client(Fault::DropMessages);
    let held = holder.mutex("a").lock().await.unwrap();
    let first = in_line(&mut raw, &deaf.locks, "a").await;
    let second = in_line(&mut raw, &behind, "a").await;
    held.release().await.unwrap();
    assert!(has(&mut raw, &deaf.locks).await);
    let guard = its_turn(first).await;
    assert!(guard.is_held() && !second.is_finished());
    // A look finds the lock for the whole lease, or what is left of the grant, which is renewed.
    until("the whole lease", async || {
        pttl(&mut raw, "a").await > 20_000
    })
    .await;
    guard.release().await.unwrap();
    its_turn(second).await.release().await.unwrap();
}

#[tokio::test]
async fn a_connection_that_ends_with_the_message_of_a_grant_costs_no_turn() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (holder, behind) = (locks(&server).await, locks(&server).await);
    let remote = Remote::new(&server).await;
    for _ in 0..5 {
        let held = holder.mutex("a").lock().await.unwrap();
        let first = in_line(&mut raw, &remote.locks, "a").await;
        let second = in_line(&mut raw, &behind, "a").await;
        // The message does not pass, and the end does.
        remote.proxy.to_client(Fault::Stall);
        held.release().await.unwrap();
        assert!(has(&mut raw, &remote.locks).await);
        remote.proxy.reset_all();
        remote.proxy.heal();
        let guard = its_turn(first).await;
        assert!(guard.is_held() && !second.is_finished());
        guard.release().await.unwrap();
        its_turn(second).await.release().await.unwrap();
    }
}

/// The task that delivers messages ends with its runtime; the same `Locks` go on in another one.
#[test]
fn a_process_whose_runtime_has_ended_hears_of_its_grants_in_the_next_one() {
    let runtime = || tokio::runtime::Runtime::new().expect("a runtime");
    let outer = runtime();
    let server = Server::builder().start_blocking();
    let mut raw = outer.block_on(server.raw());
    let holder = outer.block_on(locks(&server));
    let first = runtime();
    let ours = first.block_on(patient(server.url()));
    let held = outer.block_on(holder.mutex("a").lock().into_future());
    let held = held.unwrap();
    drop(first.block_on(in_line(&mut raw, &ours, "a")));
    let former = outer.block_on(line(&mut raw, "a"));
    drop(first);
    let second = runtime();
    let waiter = second.spawn(ours.mutex("a").lock().into_future());
    outer.block_on(async {
        let channel = format!("leasehold:{}", ours.client_id());
        until("it listens and is in line", async || {
            let line = line(&mut raw, "a").await;
            subscribers(&mut raw, &channel).await == 1 && line.len() == 1 && line != former
        })
        .await;
        held.release().await.unwrap();
        assert!(has(&mut raw, &ours).await);
    });
    let guard = second.block_on(its_turn(waiter));
    second.block_on(guard.release()).unwrap();
    assert_eq!(outer.block_on(tickets(&mut raw, "a")), 0);
}

/// The server has forgotten all of it, and the clients come back in another order.
#[tokio::test]
async fn after_a_restart_the_line_forms_again_in_its_old_order() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let hold = ["HSET", "a", "other:1", "1"];
    let keep = ["PEXPIRE", "a", "60000"];
    raw.cmd(&hold).await;
    raw.cmd(&keep).await;
    let mut remote = Vec::new();
    let mut waiters = Vec::new();
    for _ in 0..4 {
        let one = Remote::new(&server).await;
        waiters.push(in_line(&mut raw, &one.locks, "a").await);
        remote.push(one);
    }
    let before = line(&mut raw, "a").await;
    remote.iter().for_each(Remote::cut);
    server.kill();
    server.restart().await;
    let mut raw = server.raw().await;
    assert_eq!(tickets(&mut raw, "a").await, 0);
    raw.cmd(&hold).await;
    raw.cmd(&keep).await;
    for (back, remote) in (1..).zip(remote.iter().rev()) {
        remote.proxy.heal();
        until("its ticket is back", async || {
            tickets(&mut raw, "a").await == back
        })
        .await;
    }
    assert_eq!(line(&mut raw, "a").await, before);
    // Without a release: whoever finds it free serves the first.
    raw.cmd(&["DEL", "a"]).await;
    served_in_order(waiters).await;
}

/// Asks for the channels of processes that hear of grants.
const LISTENERS: &[&str] = &["PUBSUB", "CHANNELS", "leasehold:*"];

/// Of a holder and three processes that wait.
struct Queue {
    holder: Locks,
    held: Guard,
    waiters: Vec<JoinHandle<Result<Guard, Error>>>,
    before: Vec<String>,
    clients: Vec<Locks>,
    name: String,
}

impl Queue {
    async fn form(url: &str, raw: &mut Raw, name: &str) -> Self {
        let holder = patient(url.into()).await;
        let held = holder.mutex(name).lock().await.unwrap();
        let (mut waiters, mut clients) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            let locks = patient(url.into()).await;
            waiters.push(in_line(raw, &locks, name).await);
            clients.push(locks);
        }
        Self {
            before: line(raw, name).await,
            holder,
            held,
            waiters,
            clients,
            name: name.into(),
        }
    }

    /// At the server that `raw` asks the line is as before, and is served. Who has not subscribed
    /// there when it grants would be taken for dead.
    async fn serves_in_order(self, raw: &mut Raw, channels: &[&str]) {
        until("all of them listen", async || {
            let listening = raw.cmd(channels).await;
            listening.error().is_some() || listening.array().len() == 3
        })
        .await;
        until("the line is as before", async || {
            let now = line(raw, &self.name).await;
            if now == self.before {
                Ok(())
            } else {
                Err(format!("{now:?}, not {:?}", self.before))
            }
        })
        .await;
        // Its answer may come from a master that is not yet known here.
        within("the release", self.held.release()).await.unwrap();
        served_in_order(self.waiters).await;
        drop((self.holder, self.clients));
    }
}

#[tokio::test]
async fn after_a_failover_by_sentinels_the_line_is_served_in_its_old_order() {
    let sentinels = Sentinels::start().await;
    let mut raw = sentinels.node(0).raw().await;
    let queue = Queue::form(&sentinels.url(), &mut raw, "a").await;
    // `WAIT` is about what this connection wrote.
    raw.cmd(&["SET", "probe", "1", "PX", "60000"]).await;
    assert_eq!(raw.cmd(&["WAIT", "2", "20000"]).await.int(), 2);
    let master = sentinels.failover().await;
    let mut raw = sentinels.node(master).raw().await;
    queue.serves_in_order(&mut raw, LISTENERS).await;
}

#[tokio::test]
async fn after_a_crash_of_the_master_the_line_is_served_in_its_old_order() {
    let sentinels = Sentinels::start().await;
    let mut raw = sentinels.node(0).raw().await;
    let queue = Queue::form(&sentinels.url(), &mut raw, "a").await;
    // `WAIT` is about what this connection wrote.
    raw.cmd(&["SET", "probe", "1", "PX", "60000"]).await;
    assert_eq!(raw.cmd(&["WAIT", "2", "20000"]).await.int(), 2);
    sentinels.node(0).kill();
    let master = sentinels.wait_for_writable().await;
    let mut raw = sentinels.node(master).raw().await;
    queue.serves_in_order(&mut raw, LISTENERS).await;
}

#[tokio::test]
async fn after_a_failover_in_a_cluster_the_line_is_served_in_its_old_order() {
    let cluster = Cluster::start().await;
    let name = cluster.key_at(0, "k").await;
    let mut raw = cluster.raw(0).await;
    let queue = Queue::form(&cluster.url(), &mut raw, &name).await;
    cluster.failover(3, Failover::Graceful).await;
    let mut raw = cluster.raw(3).await;
    // Servers without sharded channels do not know this, and hear of a grant at any node.
    let listeners = ["PUBSUB", "SHARDCHANNELS"];
    queue.serves_in_order(&mut raw, &listeners).await;
}

#[tokio::test]
async fn after_a_slot_has_moved_the_line_is_served_in_its_old_order() {
    let cluster = Cluster::builder().masters(2).replicas(0).start().await;
    let name = cluster.key_at(0, "k").await;
    let mut raw = cluster.raw(0).await;
    let queue = Queue::form(&cluster.url(), &mut raw, &name).await;
    let migration = cluster.migration(cluster.slot_of(&name).await, 1).await;
    migration.begin().await;
    // Longer than the time between looks: those that stand in line go on standing there.
    tokio::time::sleep(ms(1_500)).await;
    migration.move_all_keys().await;
    tokio::time::sleep(ms(1_500)).await;
    migration.finish().await;
    migration.tell_everybody().await;
    let mut raw = cluster.raw(1).await;
    queue
        .serves_in_order(&mut raw, &["PUBSUB", "SHARDCHANNELS"])
        .await;
}
