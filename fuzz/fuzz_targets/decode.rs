//! Bytes in pieces, the sizes of the pieces from the input: no panic, no runaway memory, and pushes
//! as promised.
#![no_main]

use leasehold_fuzz::{LIMITS, cut, decode};
use leasehold_resp::{Frame, Limits};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let (_, pieces) = cut(input);
    for limits in [Limits::default(), LIMITS] {
        let (frames, _) = decode(limits, pieces.iter().copied());
        for frame in frames {
            if let Frame::Push(elements) = frame {
                assert!(
                    elements
                        .first()
                        .is_some_and(|kind| kind.as_bytes().is_some()),
                    "a push begins with its kind"
                );
            }
        }
    }
});
