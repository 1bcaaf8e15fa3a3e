//! The same bytes whole, byte by byte and in pieces: the same frames, the same error, the same
//! rest.
#![no_main]

use leasehold_fuzz::{LIMITS, cut, decode};
use leasehold_resp::Limits;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let (bytes, pieces) = cut(input);
    for limits in [Limits::default(), LIMITS] {
        // By their text, in which not-a-number equals itself.
        let whole = format!("{:?}", decode(limits, [bytes]));
        assert_eq!(
            format!("{:?}", decode(limits, bytes.chunks(1))),
            whole,
            "byte by byte"
        );
        assert_eq!(
            format!("{:?}", decode(limits, pieces.iter().copied())),
            whole,
            "in pieces"
        );
    }
});
