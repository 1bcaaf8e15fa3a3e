//! `rediss-sentinel://`: the master that sentinels name must show a certificate for the name that
//! they give it.

use leasehold::{Error, ErrorKind, Locks};
use leasehold_testkit::sentinels::SentinelsBuilder;
use leasehold_testkit::tls::{Identity, speaks_tls};
use leasehold_testkit::{Sentinels, until};

use crate::support::{ms, taken, within};

/// Servers and sentinels that show `identity` to each other and to clients.
fn servers(identity: &Identity) -> SentinelsBuilder {
    let lines = identity.lines();
    let builder = lines
        .iter()
        .fold(Sentinels::builder().tls(), |builder, line| {
            builder.config(line)
        });
    lines
        .iter()
        .fold(builder, |builder, line| builder.sentinel_config(line))
}

async fn locks(sentinels: &Sentinels, identity: &Identity) -> Result<Locks, Error> {
    let builder = Locks::builder(sentinels.tls_url("localhost")).tls(identity.authority.trusted());
    builder
        .lease(ms(5000))
        .command_timeout(ms(2000))
        .connect()
        .await
}

/// The error of a connect that a certificate ends. A busy machine may be too slow for the handshake.
async fn refused(sentinels: &Sentinels, identity: &Identity) -> Error {
    until("a refusal", async || {
        match locks(sentinels, identity).await {
            Err(error) if error.kind() == ErrorKind::Config => Ok(error),
            other => Err(format!("{other:?}")),
        }
    })
    .await
}

#[tokio::test]
async fn sentinels_and_the_masters_they_name_are_called_by_their_names() {
    if !speaks_tls().await {
        return;
    }
    let identity = Identity::new(&["localhost"]);
    let sentinels = servers(&identity).start().await;
    let ours = locks(&sentinels, &identity).await.unwrap();
    let theirs = locks(&sentinels, &identity).await.unwrap();
    let guard = taken(&ours, "lock").await;
    assert!(theirs.mutex("lock").try_lock().await.unwrap().is_none());
    let lock = theirs.mutex("lock").lock();
    let waiter = tokio::spawn(async move { lock.await });
    guard.release().await.unwrap();
    within("the waiter", waiter)
        .await
        .unwrap()
        .unwrap()
        .release()
        .await
        .unwrap();

    let master = sentinels.failover().await;
    until("the client follows", async || {
        let guard = taken(&ours, "after").await;
        let kept = sentinels
            .node(master)
            .raw()
            .await
            .cmd(&["EXISTS", "after"])
            .await;
        guard.release().await.map_err(|error| error.to_string())?;
        if kept.int() == 1 {
            Ok(())
        } else {
            Err("the lock is not at the new master".into())
        }
    })
    .await;

    sentinels.node(master).kill();
    drop(taken(&theirs, "after a kill").await);
}

#[tokio::test]
async fn certificates_for_another_name_are_refused_and_the_sentinel_is_named() {
    if !speaks_tls().await {
        return;
    }
    let identity = Identity::new(&["elsewhere.example"]);
    let sentinels = servers(&identity).start().await;
    let error = refused(&sentinels, &identity).await;
    let text = error.to_string();
    assert!(
        text.contains("certificate") && text.contains("elsewhere.example"),
        "{text}"
    );
    let named = |index| {
        text.contains(&format!(
            "localhost:{}",
            sentinels.sentinel(index).tls_port()
        ))
    };
    assert!((0..3).any(named), "{text}");
}

/// The sentinels themselves are reached by the names in the URL.
#[tokio::test]
async fn a_master_that_is_named_by_its_address_needs_a_certificate_for_that() {
    if !speaks_tls().await {
        return;
    }
    let identity = Identity::new(&["localhost"]);
    let sentinels = servers(&identity).start().await;
    for index in 0..3 {
        let told = sentinels
            .sentinel(index)
            .raw()
            .await
            .cmd(&["SENTINEL", "CONFIG", "SET", "announce-hostnames", "no"])
            .await;
        assert!(told.is_ok(), "{told:?}");
    }
    let error = refused(&sentinels, &identity).await;
    let (text, node) = (
        error.to_string(),
        format!("127.0.0.1:{}", sentinels.node(0).tls_port()),
    );
    assert!(
        text.contains(&node) && text.contains("certificate") && text.contains("localhost"),
        "{text}"
    );
}
