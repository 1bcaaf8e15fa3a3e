//! Servers for the examples in the documentation: each example runs against servers of its own.
//!
//! An example is the body of an async closure. The lines of the closure are hidden from readers:
//!
//! ```
//! # leasehold_testkit::example::with_locks(async |locks| {
//! let guard = locks.mutex("order:42").lock().await?;
//! assert!(guard.is_held());
//! # Ok(())
//! # });
//! ```

use std::error::Error;
use std::pin::Pin;

use leasehold::Locks;

use crate::{Cluster, Replicas, Sentinels, Server};

/// How an example ends.
pub type Outcome = Result<(), Box<dyn Error>>;

/// Runs `body` with the locks of a server of its own.
///
/// # Panics
///
/// When the server does not start, or `body` fails.
pub fn with_locks(body: impl AsyncFnOnce(Locks) -> Outcome) {
    with_url(async |url| body(Locks::connect(url).await?).await);
}

/// Runs `body` with the URL of a server of its own.
///
/// # Panics
///
/// When the server does not start, or `body` fails.
pub fn with_url(body: impl AsyncFnOnce(String) -> Outcome) {
    run(Box::pin(async {
        let server = Server::start().await;
        body(server.url()).await
    }));
}

/// Runs `body` with the URLs of three servers of its own.
///
/// # Panics
///
/// When a server does not start, or `body` fails.
pub fn with_three_urls(body: impl AsyncFnOnce([String; 3]) -> Outcome) {
    run(Box::pin(async {
        let servers = [
            Server::start().await,
            Server::start().await,
            Server::start().await,
        ];
        body(servers.each_ref().map(Server::url)).await
    }));
}

/// Runs `body` with the URL of a master that two replicas follow.
///
/// # Panics
///
/// When a server does not start, or `body` fails.
pub fn with_replicas(body: impl AsyncFnOnce(String) -> Outcome) {
    run(Box::pin(async {
        let servers = Replicas::builder().replicas(2).start().await;
        body(servers.url()).await
    }));
}

/// Runs `body` with the URL of a master with two replicas and three sentinels.
///
/// # Panics
///
/// When a server does not start, or `body` fails.
pub fn with_sentinels(body: impl AsyncFnOnce(String) -> Outcome) {
    run(Box::pin(async {
        let sentinels = Sentinels::builder().replicas(2).start().await;
        body(sentinels.url()).await
    }));
}

/// Runs `body` with the URL of a cluster of three masters.
///
/// # Panics
///
/// When a server does not start, or `body` fails.
pub fn with_cluster(body: impl AsyncFnOnce(String) -> Outcome) {
    run(Box::pin(async {
        let cluster = Cluster::builder().masters(3).replicas(0).start().await;
        body(cluster.url()).await
    }));
}

/// Runs `body` with the URL of a server that speaks TLS, and the certificate of its authority as PEM. Does nothing on a server
/// program that was built without TLS.
///
/// # Panics
///
/// When the server does not start, or `body` fails.
#[cfg(feature = "tls")]
pub fn with_tls(body: impl AsyncFnOnce(String, String) -> Outcome) {
    run(Box::pin(async {
        if !crate::tls::speaks_tls().await {
            return Ok(());
        }
        let identity = crate::tls::Identity::new(&["localhost"]);
        let lines = identity.lines().into_iter();
        let server = lines.fold(Server::builder().tls(), crate::ServerBuilder::config);
        let server = server.start().await;
        let url = format!("rediss://localhost:{}", server.tls_port());
        body(url, identity.authority.pem.clone()).await
    }));
}

/// Not generic: it is built once for all examples of a program.
fn run(body: Pin<Box<dyn Future<Output = Outcome> + '_>>) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime starts");
    if let Err(error) = runtime.block_on(body) {
        panic!("the example failed: {error}");
    }
}
