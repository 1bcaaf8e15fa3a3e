//! Where a lock of `run` is: at one deployment, or at several that a majority of decides.

use std::collections::BTreeMap;

use leasehold::{Error, Locks, Redlock};

use crate::exit::Failure;

/// Connected locks.
#[derive(Debug)]
pub(crate) enum Servers {
    One(Locks),
    Several(Redlock),
}

impl Servers {
    /// The key of this lock.
    pub(crate) fn key(&self, name: &str) -> String {
        match self {
            Self::One(locks) => locks.mutex(name).key().to_owned(),
            Self::Several(locks) => locks.mutex(name).key().to_owned(),
        }
    }

    pub(crate) const fn is_several(&self) -> bool {
        matches!(self, Self::Several(_))
    }

    /// The ids of those who hold it; of a read lock, those who read.
    pub(crate) async fn holders(&self, name: &str, shared: bool) -> Result<Vec<String>, Failure> {
        let found = match self {
            Self::Several(locks) => return majority(locks, name).await,
            Self::One(locks) if shared => locks.rw_lock(name).inspect().await?,
            Self::One(locks) => locks.mutex(name).inspect().await?,
        };
        let ids = found.holders().iter().map(|holder| holder.id().to_owned());
        Ok(ids.collect())
    }

    /// What waits is given up: see [`close`](crate::connect::close).
    pub(crate) async fn close(&self) {
        if let Self::One(locks) = self {
            crate::connect::close(locks).await;
        }
    }
}

/// The ids that a majority of the servers has.
async fn majority(locks: &Redlock, name: &str) -> Result<Vec<String>, Failure> {
    let answers = locks.mutex(name).inspect().await;
    let needed = answers.len() / 2 + 1;
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let mut failures: Vec<Error> = Vec::new();
    let all = answers.len();
    for answer in answers {
        match answer {
            Ok(found) => {
                for holder in found.holders() {
                    *counts.entry(holder.id().to_owned()).or_default() += 1;
                }
            }
            Err(error) => failures.push(error),
        }
    }
    if all - failures.len() < needed
        && let Some(error) = failures.pop()
    {
        return Err(error.into());
    }
    counts.retain(|_, count| *count >= needed);
    Ok(counts.into_keys().collect())
}
