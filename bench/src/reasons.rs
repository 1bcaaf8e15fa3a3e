//! Why an aim is missed, where that is known: what the results say beside the figure.

/// How an aim's text begins, and the reason.
pub const REASONS: &[(&str, &str)] = &[(
    "slot of a 40-byte name",
    "a CRC by one table has to wait for a look-up at each byte, which the floor and the peer do as well.",
)];
