//! Configuration and start of a server.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::Server;
use crate::ports::Port;
use crate::process::Watched;
use crate::scratch::Scratch;

/// Upper bound on a start. A server on an idle machine answers within 50 ms.
const STARTUP: Duration = Duration::from_secs(30);

/// Number of starts, each on another port, while other programs take the port first.
const PORT_ATTEMPTS: usize = 20;

/// Whether the server knows `enable-debug-command`. Redis 6.2 does not and allows `DEBUG` without;
/// found out by the first server that refuses to start with it, and remembered for the process.
static DEBUG_DIRECTIVE: AtomicBool = AtomicBool::new(true);

/// Options for [`Server::builder`].
#[derive(Debug, Clone, Default)]
pub struct ServerBuilder {
    lines: Vec<String>,
    pub(super) password: Option<String>,
    sentinel: bool,
    tls: bool,
}

impl ServerBuilder {
    /// Adds a line of the server's own configuration language: `maxmemory 1mb`,
    /// `user app on >secret ~* +@all`, `cluster-enabled yes`. It stands after the kit's lines, and
    /// the last one counts.
    #[must_use]
    pub fn config(mut self, line: impl Into<String>) -> Self {
        self.lines.push(line.into());
        self
    }

    /// As [`config`](Self::config), in front of the lines so far, which therefore override it.
    #[must_use]
    pub(crate) fn config_first(mut self, line: String) -> Self {
        self.lines.insert(0, line);
        self
    }

    /// Asks the default user for this password (plain letters and digits, please: it also goes into
    /// the URL).
    #[must_use]
    pub fn requirepass(mut self, password: &str) -> Self {
        self.password = Some(password.into());
        self
    }

    /// Makes it a Sentinel. The masters it watches are given by [`config`](Self::config) lines.
    #[must_use]
    pub fn sentinel(mut self) -> Self {
        self.sentinel = true;
        self
    }

    /// Gives it a second port, for TLS. Certificate and key are given by [`config`](Self::config)
    /// lines.
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Starts the server and waits until it answers.
    ///
    /// # Panics
    ///
    /// When there is no server binary, or it does not start; the message holds its log.
    pub async fn start(self) -> Server {
        // Off the runtime: starting blocks, and under paused tokio time a sleep would not wait for
        // a process.
        tokio::task::spawn_blocking(|| self.start_blocking())
            .await
            .expect("the server starts")
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
            let (port, tls) = (Port::reserve(), self.tls.then(Port::reserve));
            match self.launch(dir.path(), port.number(), tls.as_ref().map(Port::number)) {
                Ok(process) => {
                    return Server {
                        process: Mutex::new(Some(process)),
                        options: self,
                        dir,
                        port,
                        tls,
                    };
                }
                Err(log) if was_taken(&log) => {}
                Err(log) => panic!("the server did not start; it said:\n{log}"),
            }
        }
        panic!("{PORT_ATTEMPTS} ports in a row were taken by other programs")
    }

    /// Starts a process and waits for its first answer, or returns its log.
    pub(super) fn launch(
        &self,
        dir: &Path,
        port: u16,
        tls: Option<u16>,
    ) -> Result<Watched, String> {
        loop {
            let debug = DEBUG_DIRECTIVE.load(Ordering::Relaxed);
            match self.launch_once(dir, port, tls, debug) {
                Err(log) if debug && log.contains("enable-debug-command") => {
                    DEBUG_DIRECTIVE.store(false, Ordering::Relaxed);
                }
                outcome => return outcome,
            }
        }
    }

    /// As [`launch`](Self::launch), on a port that the server had before. A child that it forked
    /// just before it was killed may keep the port, and the file of the cluster, for a moment.
    pub(super) fn launch_again(
        &self,
        dir: &Path,
        port: u16,
        tls: Option<u16>,
    ) -> Result<Watched, String> {
        let give_up = Instant::now() + STARTUP;
        loop {
            match self.launch(dir, port, tls) {
                Err(log) if was_taken(&log) && Instant::now() < give_up => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                outcome => return outcome,
            }
        }
    }

    fn launch_once(
        &self,
        dir: &Path,
        port: u16,
        tls: Option<u16>,
        debug: bool,
    ) -> Result<Watched, String> {
        let config = dir.join("server.conf");
        // A restarted Sentinel goes on with the file it has rewritten: what it has learnt is in it.
        if !(self.sentinel && config.exists()) {
            std::fs::write(&config, self.config_text(dir, port, tls, debug))
                .expect("the scratch directory is writable");
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
                let new = text
                    .get(usize::try_from(logged).unwrap_or(0)..)
                    .unwrap_or_default();
                return Err(String::from_utf8_lossy(new).into_owned());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(process)
    }

    fn config_text(&self, dir: &Path, port: u16, tls: Option<u16>, debug: bool) -> String {
        let dir = dir.display();
        let mut text = format!(
            "port {port}\nbind 127.0.0.1\nprotected-mode no\ndir {dir}\nunixsocket {dir}/sock\n"
        );
        if !self.sentinel {
            text.push_str("save \"\"\nappendonly no\n");
            if debug {
                text.push_str("enable-debug-command yes\n");
            }
        }
        if let Some(tls) = tls {
            text.push_str(&format!("tls-port {tls}\n"));
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

/// Whether the server answers on its unix socket. The TCP port proves nothing, since another
/// program may have taken it. The socket is in our own directory, and the server binds its TCP port
/// before it.
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

/// Whether the server ended since another process has its port, or its cluster's file.
fn was_taken(log: &str) -> bool {
    ["in use", "Failed listening", "already used by"]
        .iter()
        .any(|words| log.contains(words))
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
        assert!(
            path.is_file(),
            "LEASEHOLD_SERVER={} is not a file",
            path.display()
        );
        // The server starts in a directory of its own. (Not canonicalised: Debian's redis-server is
        // a link, and what the program does depends on the name it is called by.)
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
