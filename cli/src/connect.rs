//! From the global arguments to the locks.

use std::time::Duration;

use leasehold::{Locks, LocksBuilder};

use crate::args::Global;
use crate::exit::Failure;
use crate::output::Output;

/// Connects to the server that the arguments name. `lease` is that of locks which are renewed; 30 s if none is given.
///
/// There is no server by default: locks on two servers exclude nobody.
pub(crate) async fn connect(
    global: &Global,
    lease: Option<Duration>,
    output: &Output,
) -> Result<Locks, Failure> {
    let locks = builder(global, lease)?.connect().await?;
    for warning in locks.warnings() {
        output.note(&format!("warning: {warning}"));
    }
    Ok(locks)
}

/// Waits, for a second at most, until what was given back is free on the server: a process that ends takes unsent requests along.
pub(crate) async fn close(locks: &Locks) {
    let _ = tokio::time::timeout(Duration::from_secs(1), locks.shutdown()).await;
}

/// The URL of the arguments.
pub(crate) fn url(global: &Global) -> Result<&str, Failure> {
    let url = global.url.as_deref().filter(|url| !url.is_empty());
    url.ok_or_else(|| {
        Failure::usage(
            "no server: set LEASEHOLD_URL or give --url, for example redis://127.0.0.1:6379",
        )
    })
}

/// The settings of locks whose names are whole keys.
pub(crate) fn of_keys(global: &Global) -> Result<LocksBuilder, Failure> {
    let url = url(global)?;
    let builder = Locks::builder(url).interop(global.interop.into());
    #[cfg(feature = "tls")]
    if let Some(config) = global.tls.config([url])? {
        return Ok(builder.tls(config));
    }
    Ok(builder)
}

/// The settings of [`connect`].
fn builder(global: &Global, lease: Option<Duration>) -> Result<LocksBuilder, Failure> {
    let mut builder = of_keys(global)?;
    if let Some(namespace) = &global.namespace {
        builder = builder.namespace(namespace);
    }
    if let Some(lease) = lease {
        builder = builder.lease(lease);
    }
    Ok(builder)
}
