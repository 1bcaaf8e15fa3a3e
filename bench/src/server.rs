//! A private server, for as long as the benchmark runs.

use std::io::{Error, Result};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::cpu;
use crate::floor::raw_blocking::RawBlocking;
use crate::scripts::{ACQUIRE, RELEASE, TOGGLE};

/// A running server; stopped when dropped.
pub struct Server {
    child: Child,
    dir: PathBuf,
    /// Its port on the loopback address.
    pub port: u16,
    /// Its program.
    pub program: PathBuf,
    /// Its version, as it reports it.
    pub version: String,
}

impl Server {
    /// Starts one pinned to `cpu`, without persistence, with the scripts of the simple pair loaded.
    pub fn start(cpu: usize) -> Result<Self> {
        let program = program()?;
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let dir =
            std::env::temp_dir().join(format!("leasehold-bench-{}-{port}", std::process::id()));
        std::fs::create_dir_all(&dir)?;
        let mut command = command(&program, port, &dir);
        let child = cpu::pinned(cpu, || command.spawn())?;
        let version = Command::new(&program).arg("--version").output()?.stdout;
        let version = String::from_utf8_lossy(&version);
        let version = version
            .split(" sha=")
            .next()
            .unwrap_or_default()
            .trim()
            .to_owned();
        let server = Self {
            child,
            dir,
            port,
            program,
            version,
        };
        server.prepare()?;
        Ok(server)
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The CPU seconds it has used.
    pub fn cpu_seconds(&self) -> f64 {
        cpu::of_process(self.child.id())
    }

    /// The benchmark tool of the same make beside it or in PATH, if it is installed.
    pub fn benchmark_tool(&self) -> Option<PathBuf> {
        let name = self
            .program
            .file_name()?
            .to_str()?
            .replace("-server", "-benchmark");
        let beside = self.program.with_file_name(&name);
        if beside.is_file() {
            Some(beside)
        } else {
            in_path(&name)
        }
    }

    fn prepare(&self) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(10);
        let mut connection = loop {
            match RawBlocking::open(self.port) {
                Ok(connection) => break connection,
                Err(e) if Instant::now() > deadline => return Err(e),
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        for script in [&ACQUIRE, &RELEASE, &TOGGLE] {
            connection.load(script)?;
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Nothing is kept, so there is nothing to shut down in order.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// The command that starts `program` on the loopback address, without persistence, with its files
/// in `dir`.
pub fn command(program: &Path, port: u16, dir: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
        .args(["--save", "", "--appendonly", "no"])
        .arg("--dir")
        .arg(dir)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    command
}

/// The program of a server.
pub fn program() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("LEASEHOLD_SERVER") {
        return Ok(path.into());
    }
    in_path("redis-server").or_else(|| in_path("valkey-server")).ok_or_else(|| {
        Error::other("no redis-server or valkey-server in PATH; LEASEHOLD_SERVER=/path/to/one names another")
    })
}

/// A program of this name in PATH.
pub fn in_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
}
