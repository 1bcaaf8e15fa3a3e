//! leasehold, layer by layer.

pub mod cluster;
pub mod family;
pub mod lock;
pub mod resp;
