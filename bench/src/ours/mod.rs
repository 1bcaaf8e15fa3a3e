//! leasehold, layer by layer.

pub mod cluster;
pub mod lock;
pub mod resp;
