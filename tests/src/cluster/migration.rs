//! A slot on its way from one master to another, step by step.

use super::Cluster;
use crate::raw::RawValue;
use crate::wait::until;

/// A migration in the way all servers have: `SETSLOT`, `MIGRATE` for the keys, `SETSLOT`. Nothing
/// happens before a step is called.
#[derive(Debug)]
pub struct Migration<'a> {
    cluster: &'a Cluster,
    slot: u16,
    source: usize,
    target: usize,
}

impl Cluster {
    /// Prepares to move `slot` from where it is now to the node `target`.
    ///
    /// # Panics
    ///
    /// When no node serves the slot.
    pub async fn migration(&self, slot: u16, target: usize) -> Migration<'_> {
        let source = self.source_of(slot).await;
        Migration {
            cluster: self,
            slot,
            source,
            target,
        }
    }

    /// The node that serves `slot`, when one does.
    pub(super) async fn source_of(&self, slot: u16) -> usize {
        until("a node serves the slot", async || {
            self.master_of_slot(slot)
                .await
                .ok_or_else(|| format!("slot {slot}"))
        })
        .await
    }
}

impl Migration<'_> {
    /// Where the slot comes from.
    #[must_use]
    pub fn source(&self) -> usize {
        self.source
    }

    /// Where it goes.
    #[must_use]
    pub fn target(&self) -> usize {
        self.target
    }

    /// `SETSLOT IMPORTING` at the target: from now on it serves the slot behind an `ASKING`.
    ///
    /// # Panics
    ///
    /// As every step: when the server refuses it.
    pub async fn import(&self) {
        self.set_slot(self.target, "IMPORTING", Some(self.source))
            .await;
    }

    /// `SETSLOT MIGRATING` at the source: from now on it answers `ASK` for keys that it does not
    /// have.
    ///
    /// # Panics
    ///
    /// When the server refuses it.
    pub async fn migrate(&self) {
        self.set_slot(self.source, "MIGRATING", Some(self.target))
            .await;
    }

    /// [`import`](Self::import) and [`migrate`](Self::migrate), in the order in which no request
    /// falls between.
    ///
    /// # Panics
    ///
    /// As they do.
    pub async fn begin(&self) {
        self.import().await;
        self.migrate().await;
    }

    /// Moves these keys. Asks again while the target is not ready: one that came back holds the
    /// cluster to be down for a moment.
    ///
    /// # Panics
    ///
    /// When the server refuses it; a key that is not there is no reason.
    pub async fn move_keys<K: AsRef<[u8]>>(&self, keys: &[K]) {
        let port = self.cluster.node(self.target).port().to_string();
        let mut options: Vec<&[u8]> = vec![b"KEYS"];
        until("the target takes keys", async || {
            let mut command: Vec<&[u8]> = vec![
                b"MIGRATE",
                b"127.0.0.1",
                port.as_bytes(),
                b"",
                b"0",
                b"5000",
            ];
            command.extend(&options);
            command.extend(keys.iter().map(AsRef::as_ref));
            let reply = self.cluster.raw(self.source).await.cmd(&command).await;
            let unknown = reply.error().is_some_and(|line| line.starts_with("IOERR"));
            if unknown {
                // The target may have taken keys that the source still has.
                options = vec![b"REPLACE", b"KEYS"];
            }
            if unknown || reply.is_transient() {
                return Err(format!("{reply:?}"));
            }
            assert_eq!(reply.error(), None, "{}", self.cluster.addr(self.source));
            Ok(())
        })
        .await;
    }

    /// Moves all keys that are in the slot now. Returns how many they were.
    ///
    /// # Panics
    ///
    /// When the server refuses it.
    pub async fn move_all_keys(&self) -> usize {
        let mut raw = self.cluster.raw(self.source).await;
        let mut moved = 0;
        loop {
            let reply = raw
                .cmd(&["CLUSTER", "GETKEYSINSLOT", &self.slot.to_string(), "100"])
                .await;
            let keys: Vec<Vec<u8>> = reply
                .array()
                .iter()
                .map(|key| match key {
                    RawValue::Bulk(bytes) => bytes.clone(),
                    other => panic!("not a key: {other:?}"),
                })
                .collect();
            if keys.is_empty() {
                return moved;
            }
            moved += keys.len();
            self.move_keys(&keys).await;
        }
    }

    /// `SETSLOT NODE` at target and source, which then agree. The other nodes learn it by gossip,
    /// half a second later, and until then point to the source;
    /// [`tell_everybody`](Self::tell_everybody) is for tests that need no such gap.
    ///
    /// # Panics
    ///
    /// When a server refuses it: the source does while it has keys.
    pub async fn finish(&self) {
        // The target first: if it stopped here, the source would still point to it.
        self.set_slot(self.target, "NODE", Some(self.target)).await;
        self.set_slot(self.source, "NODE", Some(self.target)).await;
    }

    /// `SETSLOT NODE` at all other masters.
    ///
    /// # Panics
    ///
    /// When a server refuses it.
    pub async fn tell_everybody(&self) {
        for index in 0..self.cluster.len() {
            let other = index != self.source && index != self.target;
            if other && self.cluster.node(index).is_awake() && self.cluster.is_master(index).await {
                self.set_slot(index, "NODE", Some(self.target)).await;
            }
        }
    }

    /// `SETSLOT STABLE` at both: the slot stays where it was. Keys that were moved stay where they
    /// are, and are lost to clients.
    ///
    /// # Panics
    ///
    /// When the server refuses it.
    pub async fn cancel(&self) {
        self.set_slot(self.source, "STABLE", None).await;
        self.set_slot(self.target, "STABLE", None).await;
    }

    async fn set_slot(&self, at: usize, what: &str, node: Option<usize>) {
        let slot = self.slot.to_string();
        let mut command = vec!["CLUSTER", "SETSLOT", &slot, what];
        command.extend(node.map(|node| self.cluster.id(node)));
        until("the node takes the slot's state", async || {
            let reply = self.cluster.raw(at).await.cmd(&command).await;
            if reply.is_transient() {
                return Err(format!("{reply:?}"));
            }
            assert!(reply.is_ok(), "node {at}, {}: {reply:?}", command.join(" "));
            Ok(())
        })
        .await;
    }
}
