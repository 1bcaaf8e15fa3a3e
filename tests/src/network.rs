//! Servers with source addresses of their own, so that a proxy in front of one can tell its peers
//! apart and cut off one of them: a partition without a firewall, which would need root.
//!
//! All of `127.0.0.0/8` is this machine on Linux; other systems have only `127.0.0.1` by default.

use std::net::{IpAddr, Ipv4Addr, TcpListener};

use crate::server::Server;

/// Number of sentinels of a service.
pub(crate) const SENTINELS: usize = 3;

/// Whether servers can have source addresses of their own on this system. Prints why the test is
/// skipped if not.
#[must_use]
pub fn can_be_cut() -> bool {
    let can = TcpListener::bind((server(0), 0)).is_ok();
    if !can {
        eprintln!("skipped: this system has no second loopback address");
    }
    can
}

/// Source address of server `index`. Everything listens at `127.0.0.1`, which is also the source of
/// clients.
#[must_use]
pub(crate) fn server(index: usize) -> IpAddr {
    Ipv4Addr::new(127, 0, 1, u8::try_from(index + 1).expect("few servers")).into()
}

/// Source address of sentinel `index`.
#[must_use]
pub(crate) fn sentinel(index: usize) -> IpAddr {
    Ipv4Addr::new(127, 0, 2, u8::try_from(index + 1).expect("few sentinels")).into()
}

/// The configuration line that sets a server's source address; `like` is a server of the same
/// version.
pub(crate) async fn speak_from(source: IpAddr, like: &Server) -> String {
    let known = like
        .raw()
        .await
        .cmd(&["CONFIG", "GET", "bind-source-addr"])
        .await;
    // Redis 6.2 connects from the first address at which it listens.
    if known.array().is_empty() {
        format!("bind {source} 127.0.0.1")
    } else {
        format!("bind-source-addr {source}")
    }
}
