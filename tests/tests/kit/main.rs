//! The kit's own tests.

mod cancel;
mod checker;
mod checker_catches_broken_clients;
mod checker_catches_broken_kinds;
mod cluster;
mod history;
mod isolation;
mod ledger;
mod proxy;
mod sentinels;
mod server;
mod tickets;
