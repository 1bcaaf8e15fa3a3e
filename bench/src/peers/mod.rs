//! Other clients, each tuned as its own documentation advises.

pub mod fred;
pub mod redis;
pub mod redis_protocol;
pub mod redisson;
pub mod rslock;
pub mod rustis;
