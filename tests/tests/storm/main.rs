//! Everything at once: worker processes that fight over locks while faults are injected.

mod cluster;
mod deck;
mod fault;
mod fleet;
mod proxied;
mod roles;
mod sentinel;
mod single;
mod verdict;
