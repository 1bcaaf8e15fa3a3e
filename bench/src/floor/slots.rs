//! floor-slots: the node of a key, from one table for the CRC and one for the map; learned once.

use std::sync::Arc;

use crate::client::PairClient;
use crate::floor::mux::Mux;
use crate::floor::raw_blocking::RawBlocking;
use crate::scripts::Job;

const SLOTS: usize = 16384;

/// The slot of `key`.
pub fn slot(key: &[u8]) -> u16 {
    let mut hashed = key;
    if let Some(open) = key.iter().position(|&byte| byte == b'{')
        && let Some(len) = key[open + 1..].iter().position(|&byte| byte == b'}')
        && len > 0
    {
        hashed = &key[open + 1..open + 1 + len];
    }
    let mut crc = 0_u16;
    for &byte in hashed {
        crc = (crc << 8) ^ CRC[usize::from((crc >> 8) as u8 ^ byte)];
    }
    crc % SLOTS as u16
}

const CRC: [u16; 256] = {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        let mut crc = (index as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = (crc << 1) ^ (0x1021 * (crc >> 15));
            bit += 1;
        }
        table[index] = crc;
        index += 1;
    }
    table
};

/// The masters and their slots.
pub struct Slots {
    /// The ports of the masters.
    pub ports: Vec<u16>,
    owners: Vec<u8>,
}

impl Slots {
    /// The map of the node on `port`.
    pub fn learn(port: u16) -> Self {
        let reply = RawBlocking::open(port)
            .and_then(|mut node| node.call(&[b"CLUSTER", b"NODES"]))
            .expect("a cluster");
        let (mut ports, mut owners) = (Vec::new(), vec![u8::MAX; SLOTS]);
        // <id> <ip:port@bus> <flags> <master> <sent> <received> <epoch> <link> <slots> ...
        for line in String::from_utf8_lossy(&reply).lines() {
            let fields: Vec<&str> = line.split(' ').collect();
            let [_, address, flags, _, _, _, _, _, ranges @ ..] = fields.as_slice() else {
                continue;
            };
            if !flags.contains("master") {
                continue;
            }
            let port = address
                .split(['@', ','])
                .next()
                .and_then(|address| address.rsplit(':').next());
            for range in ranges.iter().filter(|range| !range.starts_with('[')) {
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                let (first, last): (usize, usize) = (
                    first.parse().expect("a slot"),
                    last.parse().expect("a slot"),
                );
                owners[first..=last].fill(ports.len() as u8);
            }
            ports.push(port.and_then(|port| port.parse().ok()).expect("a port"));
        }
        assert!(!owners.contains(&u8::MAX), "a slot is not served");
        Self { ports, owners }
    }

    /// The index of the master that serves `key`.
    pub fn owner(&self, key: &[u8]) -> usize {
        usize::from(self.owners[usize::from(slot(key))])
    }
}

/// One floor-mux a master.
#[derive(Clone)]
pub struct MuxCluster {
    slots: Arc<Slots>,
    nodes: Vec<Mux>,
}

impl PairClient for MuxCluster {
    async fn connect(port: u16) -> Self {
        let slots = Arc::new(Slots::learn(port));
        let mut nodes = Vec::new();
        for port in &slots.ports {
            nodes.push(Mux::connect(*port).await);
        }
        Self { slots, nodes }
    }

    async fn pair(&mut self, job: &Job) {
        // A client has to look up each command, not the pair.
        let key = job.key.as_bytes();
        self.nodes[self.slots.owner(key)].acquire(job).await;
        self.nodes[self.slots.owner(key)].release(job).await;
    }
}
