//! Any URL of a server, a cluster or a service: no panic, an address to connect to, and no password
//! in the message.
#![no_main]

use leasehold_cluster::Target;
use leasehold_cluster::slot::{SLOTS, slot, tag};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|url: &[u8]| {
    // The names of keys are bytes from outside as well.
    assert!(slot(url) < SLOTS && slot(url) == slot(tag(url)) || tag(url).contains(&b'{'));
    let Ok(url) = std::str::from_utf8(url) else {
        return;
    };
    if let Ok(mut target) = Target::parse(url) {
        assert!(!target.endpoints_mut().is_empty());
    }
    for scheme in ["redis-cluster", "redis-sentinel"] {
        // Without characters that have a meaning of their own, so that it is the password and
        // nothing else.
        let secret = "S3cr3tS3cr3t";
        let url = format!("{scheme}://:{secret}@{url}");
        match Target::parse(&url) {
            Ok(target) => assert!(
                !format!("{target:?}").contains(secret)
                    || url.matches(secret).count() > 1
                    || url.matches('@').count() > 1
            ),
            Err(error) => {
                assert!(!error.to_string().contains(secret) || url.matches(secret).count() > 1)
            }
        }
    }
});
