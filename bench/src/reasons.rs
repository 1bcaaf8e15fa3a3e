//! Why an aim is missed, where that is known: what the results say beside the figure.

/// How an aim's text begins, and the reason.
pub const REASONS: &[(&str, &str)] = &[];
