//! Any reply of sentinels, and any `ROLE` of the masters they name: no panic, only addresses that
//! can be connected to, no replica lost, and an order that follows the votes.
#![no_main]

use leasehold_cluster::role::{Votes, master_shard, named_master};
use leasehold_cluster::topology::NodeAddress;
use leasehold_fuzz::decode;
use leasehold_resp::{Frame, Limits, Value};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let asked = NodeAddress {
        host: "asked".to_owned(),
        port: 1,
    };
    let (frames, _) = decode(Limits::default(), [input]);
    let (mut votes, mut named) = (Votes::default(), Vec::new());
    for frame in &frames {
        let Frame::Reply(reply) = frame else { continue };
        if let Some(master) = named_master(reply) {
            assert!(master.port != 0 && is_host(&master.host));
            named.push(master.clone());
            votes.add(master);
        }
        if let Some(shard) = master_shard(reply, &asked) {
            assert!(
                shard.master == asked
                    && shard.replicas.iter().all(|replica| is_host(&replica.host))
            );
            assert_eq!(reply.as_array().unwrap()[0].as_str(), Some("master"));
            // Fewer would have to confirm a lock than there are.
            let shown = reply
                .as_array()
                .and_then(|role| role[2].as_array())
                .map(<[Value]>::len);
            assert_eq!(shown, Some(shard.replicas.len()));
        }
    }
    let count = |master: &NodeAddress| named.iter().filter(|other| *other == master).count();
    let most = named.iter().map(count).max().unwrap_or(0);
    for sentinels in [1, 2, 3, 5, named.len(), named.len() * 2] {
        assert_eq!(votes.are_decided(sentinels), most > sentinels / 2);
    }
    let ranked = votes.ranked();
    assert!(
        ranked
            .iter()
            .map(count)
            .is_sorted_by(|first, second| first >= second)
    );
    // Each once.
    assert_eq!(ranked.iter().map(count).sum::<usize>(), named.len());
});

/// An address that can be connected to and written into a message.
fn is_host(host: &str) -> bool {
    !host.is_empty() && !host.contains(|c: char| c.is_whitespace() || c.is_control())
}
