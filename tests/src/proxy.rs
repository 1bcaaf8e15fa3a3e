//! A proxy between client and server that misbehaves on demand.
//!
//! Faults are set for a direction and hold for live connections and new ones alike. Cuts and
//! corruptions happen once, on the connection that reaches them first, and the direction is healthy
//! afterwards: so a test can count to byte `k` and then watch the client recover.
//!
//! The proxy runs on a thread of its own. A test that blocks its runtime, or pauses its clock, does
//! not touch it.

mod accept;
mod fault;
mod frame;
mod ports;
mod pump;

pub use fault::{Accept, Cut, Fault};

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::{Notify, watch};

use crate::ports::Port;
use fault::Plan;

/// A running proxy; it stops, and closes every connection, when dropped.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// use leasehold_testkit::proxy::{Cut, Fault, Proxy};
/// use leasehold_testkit::{Raw, Server};
///
/// let server = Server::start().await;
/// let proxy = Proxy::start(server.addr());
/// let mut client = Raw::connect(proxy.addr()).await.unwrap();
/// // The next command is executed, and its reply is lost.
/// proxy.to_client(Fault::LoseReply { nth: 1, how: Cut::Rst });
/// assert!(client.try_cmd(&["INCR", "count"]).await.is_err());
/// assert_eq!(server.raw().await.cmd(&["GET", "count"]).await.str(), "1");
/// # }
/// ```
#[derive(Debug)]
pub struct Proxy {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    stop: Arc<Notify>,
    port: Port,
}

/// State shared by the handle and the proxy's thread.
#[derive(Debug)]
struct Shared {
    target: SocketAddr,
    to_server: watch::Sender<Plan>,
    to_client: watch::Sender<Plan>,
    accept: watch::Sender<Accept>,
    /// The mode the accept loop has acted on.
    accepting: watch::Sender<Option<Accept>>,
    accepts: AtomicU64,
    from_client: AtomicU64,
    from_server: AtomicU64,
    /// Open connections, each with the signal that resets it.
    open: Mutex<HashMap<u64, Arc<Notify>>>,
}

impl Proxy {
    /// Starts a healthy proxy in front of `target`.
    ///
    /// # Panics
    ///
    /// When no port or thread is to be had.
    #[must_use]
    pub fn start(target: SocketAddr) -> Self {
        let port = Port::reserve();
        let shared = Arc::new(Shared {
            target,
            to_server: watch::Sender::new(Plan::default()),
            to_client: watch::Sender::new(Plan::default()),
            accept: watch::Sender::new(Accept::Forward),
            accepting: watch::Sender::new(None),
            accepts: AtomicU64::new(0),
            from_client: AtomicU64::new(0),
            from_server: AtomicU64::new(0),
            open: Mutex::default(),
        });
        let stop = Arc::new(Notify::new());
        let addr = (Ipv4Addr::LOCALHOST, port.number()).into();
        let work = (Arc::clone(&shared), Arc::clone(&stop));
        let thread = std::thread::Builder::new()
            .name("proxy".into())
            .spawn(move || {
                let (shared, stop) = work;
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .expect("a runtime");
                // Open connections are closed with the runtime.
                runtime.block_on(async {
                    tokio::select! {
                        () = stop.notified() => {}
                        () = accept::run(addr, shared) => {}
                    }
                });
            })
            .expect("a thread");
        let proxy = Self {
            shared,
            thread: Some(thread),
            stop,
            port,
        };
        proxy.wait_for("listening", || proxy.shared.accepting.borrow().is_some());
        proxy
    }

    /// The address for clients.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port.number()).into()
    }

    /// `redis://127.0.0.1:21001`
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}", self.addr())
    }

    /// Sets the fault of the bytes from clients. Byte and reply counts of the fault begin now, on
    /// each connection.
    pub fn to_server(&self, fault: Fault) {
        self.shared
            .to_server
            .send_modify(|plan| plan.replace(fault));
    }

    /// Sets the fault of the bytes from the server. Byte and reply counts of the fault begin now,
    /// on each connection.
    pub fn to_client(&self, fault: Fault) {
        self.shared
            .to_client
            .send_modify(|plan| plan.replace(fault));
    }

    /// Whether the bytes from the server pass as they are: no fault was set, or it is one that
    /// happens once, and has happened.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.shared.to_client.borrow().fault == Fault::None
    }

    /// From now on nothing passes on any connection, in either direction: no data, no end of
    /// stream, no reset.
    pub fn blackhole(&self) {
        self.to_server(Fault::Blackhole);
        self.to_client(Fault::Blackhole);
    }

    /// From now on nothing passes on any connection, in either direction, as if the network between
    /// were cut: nothing is lost, and what is under way arrives after [`heal`](Self::heal).
    pub fn stall(&self) {
        self.to_server(Fault::Stall);
        self.to_client(Fault::Stall);
    }

    /// From now on what the server says of loopback addresses names other ports, `(from, to)`: so
    /// that a client which learns the addresses of servers from it comes to other proxies.
    ///
    /// # Panics
    ///
    /// When one of them has not five digits.
    pub fn rename_ports(&self, ports: &[(u16, u16)]) {
        assert!(ports.iter().all(|(from, to)| *from.min(to) >= 10_000));
        self.shared
            .to_client
            .send_modify(|plan| plan.renamed = ports.into());
    }

    /// From now on nothing passes on connections that come from `peer`, those that are open and new
    /// ones, in either direction, without any notice to either side. Nothing is lost: bytes under
    /// way arrive after [`mend`](Self::mend).
    pub fn sever(&self, peer: IpAddr) {
        for plan in [&self.shared.to_server, &self.shared.to_client] {
            plan.send_if_modified(|plan| plan.severed.insert(peer));
        }
    }

    /// Undoes a [`sever`](Self::sever).
    pub fn mend(&self, peer: IpAddr) {
        for plan in [&self.shared.to_server, &self.shared.to_client] {
            plan.send_if_modified(|plan| plan.severed.remove(&peer));
        }
    }

    /// From now on nothing passes to the server, or from it, on the connections that are open; new
    /// ones are not concerned. Nothing is lost, also if the client ends a connection: the server
    /// notices nothing of that either, as with a machine that goes on retransmitting.
    pub fn hold_up(&self, to_server: bool, to_client: bool) {
        let open = 1..self.shared.accepts.load(Ordering::SeqCst) + 1;
        for (plan, held) in [
            (&self.shared.to_server, to_server),
            (&self.shared.to_client, to_client),
        ] {
            let held = if held { open.clone() } else { 0..0 };
            plan.send_modify(|plan| plan.held = held);
        }
    }

    /// As [`hold_up`](Self::hold_up) to the server, for the connection that was accepted last only.
    pub fn hold_up_latest(&self) {
        let latest = self.shared.accepts.load(Ordering::SeqCst);
        let plan = &self.shared.to_server;
        plan.send_modify(|plan| plan.held = latest..latest + 1);
    }

    /// Of what was sent to the server on each connection that is [held up](Self::hold_up), the
    /// first frame arrives now, and nothing that was sent behind it.
    pub fn let_one_through(&self) {
        self.shared
            .to_server
            .send_modify(|plan| plan.one_passes = true);
    }

    /// Both directions pass everything, except for peers that [`sever`](Self::sever) has cut off,
    /// and new connections are accepted. Swallowed bytes stay lost, and a connection that was cut
    /// stays cut.
    pub fn heal(&self) {
        self.to_server(Fault::None);
        self.to_client(Fault::None);
        self.accept(Accept::Forward);
    }

    /// Sets the treatment of new connections. Returns when it is in effect.
    pub fn accept(&self, mode: Accept) {
        self.shared.accept.send_replace(mode);
        self.wait_for("the accept mode", || {
            *self.shared.accepting.borrow() == Some(mode)
        });
    }

    /// Resets every open connection (RST, not an orderly end). Returns when they are gone.
    pub fn reset_all(&self) {
        let doomed: Vec<(u64, Arc<Notify>)> = self
            .shared
            .open()
            .iter()
            .map(|(id, reset)| (*id, Arc::clone(reset)))
            .collect();
        for (_, reset) in &doomed {
            reset.notify_one();
        }
        self.wait_for("the resets", || {
            let open = self.shared.open();
            doomed.iter().all(|(id, _)| !open.contains_key(id))
        });
    }

    /// Number of connections accepted so far.
    #[must_use]
    pub fn accepts(&self) -> u64 {
        self.shared.accepts.load(Ordering::SeqCst)
    }

    /// Number of open connections.
    #[must_use]
    pub fn open(&self) -> usize {
        self.shared.open().len()
    }

    /// Number of bytes from clients so far, passed on or not.
    #[must_use]
    pub fn from_client(&self) -> u64 {
        self.shared.from_client.load(Ordering::SeqCst)
    }

    /// Number of bytes from the server so far, passed on or not.
    #[must_use]
    pub fn from_server(&self) -> u64 {
        self.shared.from_server.load(Ordering::SeqCst)
    }

    fn wait_for(&self, what: &str, holds: impl Fn() -> bool) {
        let give_up = Instant::now() + Duration::from_secs(20);
        while !holds() {
            assert!(
                Instant::now() < give_up,
                "the proxy at {}: {what}: not within 20 s",
                self.addr()
            );
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic over there has been printed, and this may be a panic already.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn open(&self) -> MutexGuard<'_, HashMap<u64, Arc<Notify>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
