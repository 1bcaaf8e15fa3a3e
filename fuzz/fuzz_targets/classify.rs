//! Any error line: no panic, and consistent predicates.
#![no_main]

use leasehold_resp::{ServerError, ServerErrorKind};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|line: &[u8]| {
    let error = ServerError::parse(line);
    let _ = (error.is_transient(), error.may_have_executed());
    assert!(error.to_string().chars().all(|c| !c.is_control()));
    match error.kind() {
        ServerErrorKind::Moved { slot, host, port } | ServerErrorKind::Ask { slot, host, port } => {
            assert!(*slot < 16384 && host.as_deref() != Some(""));
            assert!(*port > 0 || host.as_deref() == Some("?"));
            assert!(matches!(error.code(), "MOVED" | "ASK"));
        }
        ServerErrorKind::NoScript => assert_eq!(error.code(), "NOSCRIPT"),
        _ => {}
    }
});
