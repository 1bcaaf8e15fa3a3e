//! The command as its users start it: real processes, at real servers.

#![cfg(target_os = "linux")]

mod cron;
mod exits;
mod holds;
mod kinds;
mod lost_fd;
mod nested;
mod promise;
mod signals;
mod streams;
mod support;
mod terminal;
