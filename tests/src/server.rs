//! Real servers: private processes on free loopback ports, gone when the test is.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::ports::Port;
use crate::process::{self, Watched};
use crate::raw::Raw;
use crate::scratch::Scratch;

/// A bound against hangs, not a promise: a server on an idle machine answers within 50 ms.
const STARTUP: Duration = Duration::from_secs(30);

/// How often a start that lost its port to a stranger is tried with another one.
const PORT_ATTEMPTS: usize = 20;

/// Whether the server knows `enable-debug-command`. Redis 6.2 does not and allows `DEBUG` without; found out by the
/// first server that refuses to start with it, and remembered for the process.
static DEBUG_DIRECTIVE: AtomicBool = AtomicBool::new(true);

/// A Redis or Valkey server of this test's own, without persistence.
///
/// It dies by SIGKILL when dropped, also in a panic, and when this process is killed.
#[derive(Debug)]
pub struct Server {
    /// `None` after [`kill`](Self::kill). First, so that the process is gone before its directory and port are.
    process: Mutex<Option<Watched>>,
    options: ServerBuilder,
    dir: Scratch,
    port: Port,
}

/// Options for [`Server::builder`].
#[derive(Debug, Clone, Default)]
pub struct ServerBuilder {
    lines: Vec<String>,
    password: Option<String>,
    sentinel: bool,
}

impl ServerBuilder {
    /// Adds a line of the server's own configuration language: `maxmemory 1mb`, `user app on >secret ~* +@all`,
    /// `cluster-enabled yes`. It stands after the kit's lines, and the last one counts.
    #[must_use]
    pub fn config(mut self, line: impl Into<String>) -> Self {
        self.lines.push(line.into());
        self
    }

    /// Asks the default user for this password (plain letters and digits, please: it also goes into the URL).
    #[must_use]
    pub fn requirepass(mut self, password: &str) -> Self {
        self.password = Some(password.into());
        self
    }

    /// Makes it a Sentinel. What it watches is said by [`config`](Self::config) lines.
    #[must_use]
    pub fn sentinel(mut self) -> Self {
        self.sentinel = true;
        self
    }

    /// Starts the server and waits until it answers.
    ///
    /// # Panics
    ///
    /// When there is no server binary, or it does not start; the message holds its log.
    pub async fn start(self) -> Server {
        // Off the runtime: starting blocks, and under paused tokio time a sleep would not wait for a process.
        tokio::task::spawn_blocking(|| self.start_blocking()).await.expect("the server starts")
    }

    /// As [`start`](Self::start), outside of a runtime.
    ///
    /// # Panics
    ///
    /// As [`start`](Self::start).
    #[must_use]
    pub fn start_blocking(self) -> Server {
        let dir = Scratch::new();
        for _ in 0..PORT_ATTEMPTS {
            let port = Port::reserve();
            match self.launch(dir.path(), port.number()) {
                Ok(process) => return Server { process: Mutex::new(Some(process)), options: self, dir, port },
                Err(log) if port_was_taken(&log) => {}
                Err(log) => panic!("the server did not start; it said:\n{log}"),
            }
        }
        panic!("{PORT_ATTEMPTS} ports in a row were taken by other programs")
    }

    /// Starts a process and waits for its first answer, or returns its log.
    fn launch(&self, dir: &Path, port: u16) -> Result<Watched, String> {
        loop {
            let debug = DEBUG_DIRECTIVE.load(Ordering::Relaxed);
            match self.launch_once(dir, port, debug) {
                Err(log) if debug && log.contains("enable-debug-command") => {
                    DEBUG_DIRECTIVE.store(false, Ordering::Relaxed);
                }
                outcome => return outcome,
            }
        }
    }

    fn launch_once(&self, dir: &Path, port: u16, debug: bool) -> Result<Watched, String> {
        let config = dir.join("server.conf");
        // A restarted Sentinel goes on with the file it has rewritten: what it has learnt is in it.
        if !(self.sentinel && config.exists()) {
            std::fs::write(&config, self.config_text(dir, port, debug)).expect("the scratch directory is writable");
        }
        let log = dir.join("log");
        let logged = std::fs::metadata(&log).map_or(0, |m| m.len());
        let mut args = vec![config.display().to_string()];
        args.extend(self.sentinel.then(|| "--sentinel".into()));
        let mut process = Watched::spawn(&server_binary(), &args, dir, &log);

        let give_up = Instant::now() + STARTUP;
        while !answers(&dir.join("sock")) {
            if !process.is_running() || Instant::now() > give_up {
                drop(process);
                let text = std::fs::read(&log).unwrap_or_default();
                let new = text.get(usize::try_from(logged).unwrap_or(0)..).unwrap_or_default();
                return Err(String::from_utf8_lossy(new).into_owned());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(process)
    }

    fn config_text(&self, dir: &Path, port: u16, debug: bool) -> String {
        let dir = dir.display();
        let mut text = format!("port {port}\nbind 127.0.0.1\nprotected-mode no\ndir {dir}\nunixsocket {dir}/sock\n");
        if !self.sentinel {
            text.push_str("save \"\"\nappendonly no\n");
            if debug {
                text.push_str("enable-debug-command yes\n");
            }
        }
        if let Some(password) = &self.password {
            text.push_str(&format!("requirepass {password}\n"));
        }
        for line in &self.lines {
            text.push_str(line);
            text.push('\n');
        }
        text
    }
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

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port()).into()
    }

    /// The port, the same for the server's whole life, restarts included.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port.number()
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

    /// A connection of the raw client, with the password given if there is one.
    ///
    /// # Panics
    ///
    /// When it cannot connect.
    pub async fn raw(&self) -> Raw {
        let mut raw =
            Raw::connect(self.addr()).await.unwrap_or_else(|e| panic!("cannot connect to {}: {e}", self.addr()));
        if let Some(password) = &self.options.password {
            let reply = raw.cmd(&["AUTH", password]).await;
            assert!(reply.is_ok(), "the server refused its own password: {reply:?}");
        }
        raw
    }

    /// Whether the server knows this command: features are asked for, never derived from a version number.
    ///
    /// # Panics
    ///
    /// When it does not answer.
    pub async fn knows(&self, command: &str) -> bool {
        let reply = self.raw().await.cmd(&["COMMAND", "INFO", command]).await;
        !reply.array().first().is_none_or(crate::raw::RawValue::is_null)
    }

    /// SIGSTOP. The kernel goes on accepting connections and buffering requests; nothing is answered, and the
    /// server's clock runs on, so keys expire meanwhile.
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

    /// SIGKILL. Returns when the process is gone; all data is lost, and the port stays reserved for a
    /// [`restart`](Self::restart).
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
        let (options, dir, port) = (self.options.clone(), self.dir.path().to_owned(), self.port());
        let process = tokio::task::spawn_blocking(move || options.launch(&dir, port)).await.expect("the server starts");
        *self.lock() = Some(process.unwrap_or_else(|log| panic!("the server did not restart; it said:\n{log}")));
    }

    /// Kills it for good, before the end of its scope.
    pub fn stop(self) {
        drop(self);
    }

    /// The server's log, for a failed test's message.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read(self.dir.join("log")).map(|log| String::from_utf8_lossy(&log).into_owned()).unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Watched>> {
        // A panic in another test thread says nothing about the process behind the lock.
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the server answers on its unix socket. The TCP port would not do: a stranger may have taken it, but
/// nobody else has a socket in our directory, and the server binds its TCP port before it.
fn answers(socket: &Path) -> bool {
    let ask = || -> std::io::Result<bool> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        stream.write_all(b"PING\r\n")?;
        let mut reply = [0; 64];
        let n = stream.read(&mut reply)?;
        // "-NOAUTH" or "-NOPERM" is an answer too; "-LOADING" means not yet.
        Ok(n > 0 && !reply.starts_with(b"-LOADING"))
    };
    ask().unwrap_or(false)
}

fn port_was_taken(log: &str) -> bool {
    log.contains("in use") || log.contains("Failed listening")
}

/// The server to test with: `LEASEHOLD_SERVER`, or what is on the `PATH`.
///
/// # Panics
///
/// When there is none.
#[must_use]
pub fn server_binary() -> PathBuf {
    if let Some(chosen) = std::env::var_os("LEASEHOLD_SERVER").filter(|v| !v.is_empty()) {
        let path = PathBuf::from(&chosen);
        assert!(path.is_file(), "LEASEHOLD_SERVER={} is not a file", path.display());
        // The server starts in a directory of its own. (Not canonicalised: Debian's redis-server is a link, and what
        // the program does depends on the name it is called by.)
        return std::path::absolute(&path).unwrap_or(path);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    ["redis-server", "valkey-server"]
        .iter()
        .flat_map(|name| std::env::split_paths(&path).map(move |dir| dir.join(name)))
        .find(|candidate| candidate.is_file())
        .expect(
            "no redis-server or valkey-server on the PATH: `make test` installs one, \
             or set LEASEHOLD_SERVER=/path/to/server",
        )
}
