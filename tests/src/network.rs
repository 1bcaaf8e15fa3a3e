//! Servers that speak from addresses of their own, so that a proxy in front of one knows who calls and can cut off one
//! of them: a partition without a firewall, which would take root.
//!
//! All of `127.0.0.0/8` is this machine on Linux; other systems have but `127.0.0.1`, unless they are told.

use std::net::{IpAddr, Ipv4Addr, TcpListener};

use crate::server::Server;

/// How many sentinels watch over a service.
pub(crate) const SENTINELS: usize = 3;

/// Whether servers can have addresses of their own here. Prints that they cannot.
#[must_use]
pub fn can_be_cut() -> bool {
    let can = TcpListener::bind((server(0), 0)).is_ok();
    if !can {
        eprintln!("skipped: this system has no second loopback address");
    }
    can
}

/// Where server `index` speaks from. Everything listens at `127.0.0.1`, and whoever is no server speaks from there, too.
#[must_use]
pub(crate) fn server(index: usize) -> IpAddr {
    Ipv4Addr::new(127, 0, 1, u8::try_from(index + 1).expect("few servers")).into()
}

/// The same for sentinel `index`.
#[must_use]
pub(crate) fn sentinel(index: usize) -> IpAddr {
    Ipv4Addr::new(127, 0, 2, u8::try_from(index + 1).expect("few sentinels")).into()
}

/// The line of a server's configuration that has it speak from `source`; `like` is a server of the same kind.
pub(crate) async fn speak_from(source: IpAddr, like: &Server) -> String {
    let known = like
        .raw()
        .await
        .cmd(&["CONFIG", "GET", "bind-source-addr"])
        .await;
    // Redis 6.2 speaks from the first address at which it listens.
    if known.array().is_empty() {
        format!("bind {source} 127.0.0.1")
    } else {
        format!("bind-source-addr {source}")
    }
}
