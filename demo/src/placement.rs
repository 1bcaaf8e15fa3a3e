//! Names that spread the locks over the masters of a cluster.

use leasehold_cluster::slot::slot;
use leasehold_testkit::Cluster;

use crate::{Failure, LOCKS};

/// `prefix` with a number behind it, such that every lock is at a master of its own.
pub(crate) async fn spread(cluster: &Cluster, prefix: &str) -> Result<String, Failure> {
    let view = cluster.view(0).await.ok_or("the cluster does not answer")?;
    let at_home = |namespace: &str, lock: usize| {
        let slot = slot(key(namespace, lock).as_bytes());
        view.iter()
            .any(|member| member.port == cluster.node(lock).port() && member.serves(slot))
    };
    let mut names = (0..).map(|n| format!("{prefix}-{n}"));
    let spread = names.find(|namespace| (0..LOCKS.len()).all(|lock| at_home(namespace, lock)));
    Ok(spread.expect("numbers do not run out"))
}

/// The key of a lock.
pub(crate) fn key(namespace: &str, lock: usize) -> String {
    format!("{namespace}:{}", LOCKS[lock])
}
