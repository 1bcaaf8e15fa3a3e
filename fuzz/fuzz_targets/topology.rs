//! Any reply to `CLUSTER SLOTS`: no panic, and a map that is consistent and never empty.
#![no_main]

use leasehold_cluster::slot::SLOTS;
use leasehold_cluster::topology::{NodeAddress, View};
use leasehold_fuzz::decode;
use leasehold_resp::{Frame, Limits};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let asked = NodeAddress {
        host: "asked".to_owned(),
        port: 1,
    };
    let (frames, _) = decode(Limits::default(), [input]);
    let mut views = Vec::new();
    for frame in frames {
        let Frame::Reply(reply) = frame else { continue };
        for names in [false, true] {
            let Ok(view) = View::parse(&reply, &asked, names) else {
                continue;
            };
            let owners: Vec<_> = (0..SLOTS).filter_map(|slot| view.owner(slot)).collect();
            assert!(!owners.is_empty() && owners.len() == view.coverage());
            assert!(owners.iter().all(|owner| *owner < view.shards().len()));
            for shard in view.shards() {
                for node in shard.replicas.iter().chain([&shard.master]) {
                    assert!(!node.host.is_empty() && node.host != "?");
                }
            }
            // A master has the name that the map gives it.
            assert!(
                view.shards()
                    .iter()
                    .all(|shard| view.known_as(&shard.master) == &shard.master)
            );
            // A redirect may name any slot and any node.
            for slot in [0, SLOTS - 1, SLOTS] {
                let moved = view.with_moved(slot, &asked);
                let owner = moved.owner(slot).map(|owner| &moved.shards()[owner].master);
                assert!(owner == (slot < SLOTS).then_some(&asked));
            }
            views.push(view);
        }
    }
    let any = !views.is_empty();
    assert_eq!(View::agreed(views).is_some(), any);
});
