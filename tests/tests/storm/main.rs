//! Storms: worker processes that contend for locks while faults are injected.

mod cluster;
mod deck;
mod family;
mod fault;
mod fleet;
mod leftover;
mod proxied;
mod roles;
mod sentinel;
mod single;
mod verdict;
