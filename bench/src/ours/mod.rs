//! leasehold, floor by floor.

pub mod cluster;
pub mod lock;
pub mod resp;
