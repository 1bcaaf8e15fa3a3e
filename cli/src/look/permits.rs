//! Permits of a semaphore that are given back from outside of their process.

use std::str::FromStr;
use std::sync::LazyLock;
use std::time::Instant;

use leasehold::Locks;
use leasehold_cluster::Script;

use super::shape::{client_of, suffixed};
use super::{Looker, failure};
use crate::exit::Failure;

/// The id of a hold of permits, `<client>:<n>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PermitId {
    client: String,
    number: u64,
}

static EXPIRE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("permits/expire.lua")));

/// Lets permits expire now: those that begin with these bytes. Returns how many were taken.
pub(crate) async fn expire(looker: &Looker, key: &[u8], prefix: &[u8]) -> Result<u64, Failure> {
    let taken = suffixed(key, "timeout");
    let (keys, args) = ([&taken[..]], [prefix]);
    let deadline = Instant::now() + looker.client.command_timeout();
    let evaluated = looker
        .client
        .eval(&EXPIRE.call(&keys, &args), deadline)
        .await;
    let evaluated = evaluated.map_err(|error| failure(&error))?;
    Ok(evaluated.value.as_int().unwrap_or(0).max(0).cast_unsigned())
}

/// Hands permits that have expired to those in line.
pub(crate) async fn hand_on(locks: &Locks, key: &[u8]) -> Result<(), Failure> {
    let Ok(name) = std::str::from_utf8(key) else {
        return Ok(());
    };
    let capacity = locks.semaphore(name, 1).capacity().await?;
    // Setting what is set settles what has expired.
    Ok(locks
        .semaphore(name, capacity)
        .set_permits(capacity)
        .await?)
}

impl PermitId {
    /// What its permits begin with on the server: the first four and the last three bytes of the client's UUID, and five of
    /// the number.
    pub(crate) fn prefix(&self) -> Vec<u8> {
        let hex: Vec<u8> = self.client.bytes().filter(|byte| *byte != b'-').collect();
        let byte = |pair: &[u8]| {
            let digit = |at: usize| pair.get(at).and_then(|c| char::from(*c).to_digit(16));
            (digit(0).unwrap_or(0) * 16 + digit(1).unwrap_or(0)) as u8
        };
        let bytes: Vec<u8> = hex.chunks(2).map(byte).collect();
        [&bytes[..4], &bytes[13..], &self.number.to_be_bytes()[3..]].concat()
    }
}

impl FromStr for PermitId {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let client = client_of(text).ok_or("this is not what `leasehold sem acquire` printed")?;
        let number = text
            .get(client.len() + 1..)
            .and_then(|number| number.parse().ok());
        Ok(Self {
            client: client.to_owned(),
            number: number.ok_or("this is not what `leasehold sem acquire` printed")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_what_was_printed() {
        let id: PermitId = "0190c0de-0000-7000-8000-0000000a0b0c:7".parse().unwrap();
        assert_eq!(
            id.prefix(),
            [0x01, 0x90, 0xc0, 0xde, 0x0a, 0x0b, 0x0c, 0, 0, 0, 0, 7]
        );
        for bad in [
            "",
            "7",
            "a:7",
            "0190c0de-0000-7000-8000-0000000a0b0c:",
            "0190c0de-0000-7000-8000-0000000a0b0c:x",
        ] {
            assert!(bad.parse::<PermitId>().is_err(), "{bad}");
        }
    }
}
