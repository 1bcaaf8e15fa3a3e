//! The example of a pool of connections runs.

use leasehold_testkit::Server;

use crate::support::within;

#[expect(
    dead_code,
    unreachable_pub,
    reason = "its `main` reads the command line, and calls the rest"
)]
#[path = "../../../lock/examples/connection_pool.rs"]
mod connection_pool;

#[tokio::test]
async fn a_pool_of_connections() {
    let server = Server::start().await;
    let answered = within("the pool", connection_pool::run(server.url())).await;
    assert_eq!(answered.unwrap(), 20);
    let mut raw = server.raw().await;
    let taken = raw.cmd(&["ZCARD", "{fragile:connections}:timeout"]).await;
    assert_eq!(taken.int(), 0);
}
