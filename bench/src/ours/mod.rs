//! leasehold, floor by floor.

pub mod cluster;
pub mod resp;
