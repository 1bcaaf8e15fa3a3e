//! Private clusters: of masters alone, and of masters with replicas whose members can be killed.

use std::io::{Error, Result};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use crate::cpu;
use crate::floor::raw_blocking::RawBlocking;
use crate::scripts::{ACQUIRE, RELEASE};
use crate::server;

/// Upper bound on each wait for the cluster.
const BOUND: Duration = Duration::from_secs(30);

const SLOTS: usize = 16384;

/// A running cluster; stopped when dropped.
pub struct Cluster {
    /// The masters as started, then a replica for each, if there are replicas.
    members: Vec<Member>,
    masters: usize,
    program: PathBuf,
    node_timeout: Duration,
    dir: PathBuf,
}

struct Member {
    port: u16,
    child: Child,
}

impl Cluster {
    /// Starts `masters` that share the slots, each with a replica if asked for, and waits until all
    /// agree. The nodes are not pinned to CPUs.
    pub fn start(
        program: &Path,
        masters: usize,
        replicas: bool,
        node_timeout: Duration,
    ) -> Result<Self> {
        let count = if replicas { 2 * masters } else { masters };
        let dir =
            std::env::temp_dir().join(format!("leasehold-bench-cluster-{}", std::process::id()));
        let mut cluster = Self {
            members: Vec::new(),
            masters,
            program: program.to_owned(),
            node_timeout,
            dir,
        };
        for port in free_ports(count)? {
            let child = cluster.launch(port)?;
            cluster.members.push(Member { port, child });
        }
        cluster.form()?;
        Ok(cluster)
    }

    /// The port of the node that was started as number `member`.
    pub fn port(&self, member: usize) -> u16 {
        self.members[member].port
    }

    /// Number of masters with slots.
    pub fn masters(&self) -> usize {
        self.masters
    }

    /// The CPU seconds all nodes have used.
    pub fn cpu_seconds(&self) -> f64 {
        self.members
            .iter()
            .map(|member| cpu::of_process(member.child.id()))
            .sum()
    }

    /// As `kill -9`.
    pub fn kill(&mut self, member: usize) -> Result<()> {
        let child = &mut self.members[member].child;
        child.kill()?;
        child.wait().map(drop)
    }

    /// Starts a killed node again, with its node id.
    pub fn restart(&mut self, member: usize) -> Result<()> {
        self.members[member].child = self.launch(self.members[member].port)?;
        Ok(())
    }

    /// Waits until `replica` follows a master and has all of its data, and every node calls the
    /// cluster ok.
    pub fn healed(&self, replica: usize) -> Result<()> {
        self.until(replica, &[b"INFO", b"replication"], "master_link_status:up")?;
        self.all_ok()
    }

    fn launch(&self, port: u16) -> Result<Child> {
        let dir = self.dir.join(port.to_string());
        std::fs::create_dir_all(&dir)?;
        let mut command = server::command(&self.program, port, &dir);
        command.args([
            "--cluster-enabled",
            "yes",
            "--cluster-config-file",
            "nodes.conf",
        ]);
        command.args([
            "--cluster-node-timeout",
            &self.node_timeout.as_millis().to_string(),
        ]);
        command.args([
            "--cluster-require-full-coverage",
            "no",
            "--repl-diskless-sync-delay",
            "0",
        ]);
        // Replicas stay with the master they were given to, also when another one has none.
        command.args(["--cluster-migration-barrier", "999"]);
        command.spawn()
    }

    fn form(&self) -> Result<()> {
        let mut ids = Vec::new();
        for member in 0..self.members.len() {
            let id = self.until(member, &[b"CLUSTER", b"MYID"], "$40")?;
            ids.push(id.lines().nth(1).unwrap_or_default().to_owned());
            // Epochs that differ from the start spare the cluster the elections that would make
            // them differ.
            self.ok(
                member,
                &["CLUSTER", "SET-CONFIG-EPOCH", &(member + 1).to_string()],
            )?;
        }
        for master in 0..self.masters {
            let bound = |i: usize| SLOTS * i / self.masters;
            let slots: Vec<String> = (bound(master)..bound(master + 1))
                .map(|slot| slot.to_string())
                .collect();
            let command: Vec<&str> = ["CLUSTER", "ADDSLOTS"]
                .into_iter()
                .chain(slots.iter().map(String::as_str))
                .collect();
            self.ok(master, &command)?;
            // All nodes meet all others: gossip alone takes seconds.
            for other in master + 1..self.members.len() {
                self.ok(
                    master,
                    &[
                        "CLUSTER",
                        "MEET",
                        "127.0.0.1",
                        &self.port(other).to_string(),
                    ],
                )?;
            }
        }
        for replica in self.masters..self.members.len() {
            let id = ids[replica - self.masters].as_bytes();
            self.until(replica, &[b"CLUSTER", b"REPLICATE", id], "+OK")?;
        }
        for replica in self.masters..self.members.len() {
            self.healed(replica)?;
        }
        self.all_ok()?;
        for master in 0..self.masters {
            let mut connection = RawBlocking::open(self.port(master))?;
            for script in [&ACQUIRE, &RELEASE] {
                connection.load(script)?;
            }
        }
        Ok(())
    }

    fn all_ok(&self) -> Result<()> {
        let nodes = format!("cluster_known_nodes:{}\r", self.members.len());
        for member in 0..self.members.len() {
            self.until(member, &[b"CLUSTER", b"INFO"], &nodes)?;
            self.until(member, &[b"CLUSTER", b"INFO"], "cluster_slots_ok:16384\r")?;
            self.until(member, &[b"CLUSTER", b"INFO"], "cluster_state:ok")?;
        }
        Ok(())
    }

    fn ok(&self, member: usize, parts: &[&str]) -> Result<()> {
        let parts: Vec<&[u8]> = parts.iter().map(|part| part.as_bytes()).collect();
        self.until(member, &parts, "+OK").map(drop)
    }

    /// Asks `member` until the reply contains `wanted`.
    fn until(&self, member: usize, parts: &[&[u8]], wanted: &str) -> Result<String> {
        let deadline = Instant::now() + BOUND;
        loop {
            let reply = RawBlocking::open(self.port(member))
                .and_then(|mut connection| connection.call(parts));
            let said = match reply {
                Ok(reply) => String::from_utf8_lossy(&reply).into_owned(),
                Err(e) => e.to_string(),
            };
            if said.contains(wanted) {
                return Ok(said);
            }
            if Instant::now() > deadline {
                return Err(Error::other(format!(
                    "a node of the cluster never said {wanted}, but {said}"
                )));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Nothing is kept, so there is nothing to shut down in order.
        for member in &mut self.members {
            let _ = member.child.kill();
            let _ = member.child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Ports that are free now, as are the ports 10000 above them, which are for the bus.
fn free_ports(count: usize) -> Result<Vec<u16>> {
    // Below the range that Linux takes the ports of outgoing connections from, the bus included.
    let start = 11_000 + (std::process::id() % 9_000) as u16;
    let free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    let ports: Vec<u16> = (start..start + 1_000)
        .filter(|&port| free(port) && free(port + 10_000))
        .take(count)
        .collect();
    if ports.len() == count {
        Ok(ports)
    } else {
        Err(Error::other("no free ports for a cluster"))
    }
}
