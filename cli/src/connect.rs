//! From the global arguments to the locks.

use std::time::Duration;

#[cfg(target_os = "linux")]
use leasehold::Redlock;
use leasehold::{Locks, LocksBuilder};

use crate::args::Global;
use crate::exit::Failure;
use crate::output::Output;

/// Connects to the server that the arguments name.
///
/// There is no server by default: locks on two servers exclude nobody.
pub(crate) async fn connect(global: &Global, output: &Output) -> Result<Locks, Failure> {
    connected(builder(global)?, output).await
}

/// The same, for locks that are renewed within `lease`. `metadata` is what others see who ask for their holder.
#[cfg(target_os = "linux")]
pub(crate) async fn connect_as(
    global: &Global,
    lease: Duration,
    metadata: &[(String, String)],
    output: &Output,
) -> Result<Locks, Failure> {
    let mut builder = builder(global)?.lease(lease);
    for (name, value) in metadata {
        builder = builder.metadata(name, value);
    }
    connected(builder, output).await
}

async fn connected(builder: LocksBuilder, output: &Output) -> Result<Locks, Failure> {
    let locks = builder.connect().await?;
    for warning in locks.warnings() {
        output.note(&format!("warning: {warning}"));
    }
    Ok(locks)
}

/// What several servers know of their locks after a restart.
#[cfg(target_os = "linux")]
#[derive(Clone, Copy, Debug)]
pub(crate) enum Durability {
    /// All.
    Forever,
    /// Nothing, of locks with leases up to this.
    UpTo(Duration),
    /// Nothing, of locks with leases up to the one here.
    Unknown,
}

/// Connects to a majority of the servers at `urls`, and waits until they are old enough to grant anything.
#[cfg(target_os = "linux")]
pub(crate) async fn connect_several(
    global: &Global,
    urls: &[&str],
    lease: Duration,
    durability: Durability,
) -> Result<Redlock, Failure> {
    let mut builder = Redlock::builder(urls.iter().copied())
        .interop(global.interop.into())
        .lease(lease);
    if let Some(namespace) = &global.namespace {
        builder = builder.namespace(namespace);
    }
    #[cfg(feature = "tls")]
    if let Some(config) = global.tls.config(urls.iter().copied())? {
        builder = builder.tls(config);
    }
    builder = match durability {
        Durability::Forever => builder.durable(),
        Durability::UpTo(longest) => builder.restart_guard(longest),
        Durability::Unknown => builder,
    };
    Ok(builder.connect().await?)
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
fn builder(global: &Global) -> Result<LocksBuilder, Failure> {
    let mut builder = of_keys(global)?;
    if let Some(namespace) = &global.namespace {
        builder = builder.namespace(namespace);
    }
    Ok(builder)
}
