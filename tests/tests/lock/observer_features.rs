//! The observers for `tracing` and `metrics`, and what is made of their names under `docs/`.

#[cfg(feature = "metrics")]
mod metered;
#[cfg(feature = "tracing")]
mod traced;
