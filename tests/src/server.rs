//! Real servers: private processes on free loopback ports, gone when the test is.

mod launch;

pub use launch::{ServerBuilder, server_binary};

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::ports::Port;
use crate::process::{self, Watched};
use crate::raw::{Raw, RawValue};
use crate::scratch::Scratch;
use crate::wait::{BOUND, ms};

/// A Redis or Valkey server of this test's own, without persistence.
///
/// It dies by SIGKILL when dropped, also in a panic, and when this process is killed. The program is `redis-server` or
/// `valkey-server` on the `PATH`, or what `LEASEHOLD_SERVER` says.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// use leasehold_testkit::Server;
///
/// let server = Server::start().await;
/// let mut raw = server.raw().await;
/// assert!(raw.cmd(&["SET", "key", "value"]).await.is_ok());
/// server.restart().await; // it has no persistence
/// assert!(server.raw().await.cmd(&["GET", "key"]).await.is_null());
/// # }
/// ```
#[derive(Debug)]
pub struct Server {
    /// `None` after [`kill`](Self::kill). First, so that the process is gone before its directory
    /// and port are.
    process: Mutex<Option<Watched>>,
    options: ServerBuilder,
    dir: Scratch,
    port: Port,
    tls: Option<Port>,
}

impl Server {
    /// A server with nothing special.
    ///
    /// # Panics
    ///
    /// As [`ServerBuilder::start`].
    pub async fn start() -> Self {
        Self::builder().start().await
    }

    /// A server with options.
    #[must_use]
    pub fn builder() -> ServerBuilder {
        ServerBuilder::default()
    }

    /// `redis://127.0.0.1:21000`, with the password if it has one.
    #[must_use]
    pub fn url(&self) -> String {
        match &self.options.password {
            Some(password) => format!("redis://:{password}@{}", self.addr()),
            None => format!("redis://{}", self.addr()),
        }
    }

    /// Its address.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port()).into()
    }

    /// The port, the same for the server's whole life, restarts included.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The port for TLS.
    ///
    /// # Panics
    ///
    /// When it has none.
    #[must_use]
    pub fn tls_port(&self) -> u16 {
        self.tls.as_ref().expect("a server with TLS").number()
    }

    /// Its address for replicas and other nodes: with the port for TLS if it has one.
    #[must_use]
    pub(crate) fn peer_port(&self) -> u16 {
        self.tls.as_ref().map_or_else(|| self.port(), Port::number)
    }

    /// The unix socket on which it listens as well.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.dir.join("sock")
    }

    /// The server's own directory, for files its configuration names.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The server's process id.
    ///
    /// # Panics
    ///
    /// When it was killed.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.lock().as_ref().expect("the server was killed").pid()
    }

    /// Whether the process lives, frozen or not.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.lock().as_mut().is_some_and(Watched::is_running)
    }

    /// Whether it can answer: the process lives and is not frozen.
    #[must_use]
    pub fn is_awake(&self) -> bool {
        self.lock()
            .as_mut()
            .is_some_and(|process| process.is_running() && !process::is_stopped(process.pid()))
    }

    /// A connection of the raw client, with the password given if there is one. Tries again while
    /// the server runs: sentinels end the connections of one whose role they change.
    ///
    /// # Panics
    ///
    /// When it cannot connect.
    pub async fn raw(&self) -> Raw {
        let give_up = Instant::now() + BOUND;
        loop {
            match self.try_raw().await {
                Ok(raw) => return raw,
                Err(e) => assert!(
                    self.is_running() && Instant::now() < give_up,
                    "cannot connect to {}: {e}",
                    self.addr()
                ),
            }
            tokio::time::sleep(ms(5)).await;
        }
    }

    /// As [`raw`](Self::raw), in one attempt.
    pub(crate) async fn try_raw(&self) -> std::io::Result<Raw> {
        let mut raw = Raw::connect(self.addr()).await?;
        if let Some(password) = &self.options.password {
            let reply = raw.try_cmd(&["AUTH", password]).await?;
            assert!(
                reply.is_ok(),
                "the server refused its own password: {reply:?}"
            );
        }
        Ok(raw)
    }

    /// Whether the server knows this command: features are asked for, never derived from a version
    /// number.
    ///
    /// # Panics
    ///
    /// When it does not answer.
    pub async fn knows(&self, command: &str) -> bool {
        let reply = self.raw().await.cmd(&["COMMAND", "INFO", command]).await;
        !reply.array().first().is_none_or(RawValue::is_null)
    }

    /// SIGSTOP. The kernel goes on accepting connections and buffering requests; nothing is
    /// answered, and the server's clock runs on, so keys expire meanwhile.
    ///
    /// # Panics
    ///
    /// When it was killed.
    pub fn pause(&self) {
        process::freeze(self.pid());
    }

    /// SIGCONT.
    ///
    /// # Panics
    ///
    /// When it was killed.
    pub fn resume(&self) {
        process::thaw(self.pid());
    }

    /// SIGKILL. Returns when the process is gone; all data is lost, and the port stays reserved for
    /// a [`restart`](Self::restart).
    pub fn kill(&self) {
        // Dropping it kills it, outside of the lock's critical section.
        let process = self.lock().take();
        drop(process);
    }

    /// Kills it if it runs, and starts it empty on the same port.
    ///
    /// # Panics
    ///
    /// When it does not come up.
    pub async fn restart(&self) {
        self.kill();
        let (options, dir, port) = (
            self.options.clone(),
            self.dir.path().to_owned(),
            self.port(),
        );
        let tls = self.tls.as_ref().map(Port::number);
        let process = tokio::task::spawn_blocking(move || options.launch_again(&dir, port, tls))
            .await
            .expect("the server starts");
        *self.lock() = Some(
            process.unwrap_or_else(|log| panic!("the server did not restart; it said:\n{log}")),
        );
    }

    /// Starts it again with more lines in its configuration.
    pub(crate) async fn reconfigure(&mut self, lines: impl IntoIterator<Item = String>) {
        self.options = lines
            .into_iter()
            .fold(self.options.clone(), ServerBuilder::config);
        self.restart().await;
    }

    /// Kills it for good, before the end of its scope.
    pub fn stop(self) {
        drop(self);
    }

    /// The server's log, for a failed test's message.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read(self.dir.join("log"))
            .map(|log| String::from_utf8_lossy(&log).into_owned())
            .unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Watched>> {
        // A panic in another test thread does not affect the process behind the lock.
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
