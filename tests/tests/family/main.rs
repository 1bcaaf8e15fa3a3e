//! What all primitives of the family promise alike: the same faults for each of them.

mod cancelled;
mod connections;
mod keys;
mod redisson;
mod rows;
mod stage;
#[path = "../lock/support.rs"]
#[allow(dead_code, reason = "helpers of another suite as well")]
mod support;
