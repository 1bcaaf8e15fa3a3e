//! The scheme of a URL, by all names that are in use for it, and what was meant by one that is none.
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]

/// A scheme that is understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scheme {
    /// Whether connections speak TLS.
    pub tls: bool,
    /// The kind of deployment.
    pub deployment: Deployment,
}

/// The servers that the rest of a URL names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deployment {
    /// A server, by host and port.
    Server,
    /// A server, by the path of its socket.
    Socket,
    /// Nodes of a cluster.
    Cluster,
    /// Sentinels, and a service.
    Sentinel,
}

/// The names of schemes with which others are compared, in the order in which they are proposed.
const NAMES: &[&str] = &[
    "redis",
    "rediss",
    "unix",
    "valkey",
    "valkeys",
    "redis-cluster",
    "rediss-cluster",
    "redis-sentinel",
    "rediss-sentinel",
    "valkey-cluster",
    "valkeys-cluster",
    "valkey-sentinel",
    "valkeys-sentinel",
];

/// Schemes that are written by habit, and the ones that are meant.
const HABITS: &[(&str, &str)] = &[
    ("http", "redis"),
    ("https", "rediss"),
    ("tcp", "redis"),
    ("tls", "rediss"),
    ("ssl", "rediss"),
    ("redis+tls", "rediss"),
    ("redis+ssl", "rediss"),
    ("redis-tls", "rediss"),
    ("redis-ssl", "rediss"),
    ("valkey+tls", "valkeys"),
    ("valkey+ssl", "valkeys"),
    ("cluster", "redis-cluster"),
    ("sentinel", "redis-sentinel"),
    ("file", "unix"),
    ("socket", "unix"),
];

impl Scheme {
    /// The scheme called `name`, in any case. `redis` may be `valkey`, and `-` a `+`.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let name = name.to_ascii_lowercase().replace('+', "-");
        let (server, kind) = match name.split_once('-') {
            Some((server, kind)) => (server, Some(kind)),
            None => (&*name, None),
        };
        let tls = match server {
            "redis" | "valkey" => false,
            "rediss" | "valkeys" => true,
            "unix" if kind.is_none() => return Some(Self::of(Deployment::Socket, false)),
            _ => return None,
        };
        match kind {
            None => Some(Self::of(Deployment::Server, tls)),
            Some("cluster") => Some(Self::of(Deployment::Cluster, tls)),
            Some("sentinel") => Some(Self::of(Deployment::Sentinel, tls)),
            Some("unix" | "socket") if !tls => Some(Self::of(Deployment::Socket, tls)),
            _ => None,
        }
    }

    const fn of(deployment: Deployment, tls: bool) -> Self {
        Self { tls, deployment }
    }
}

/// The scheme that is meant by one that is none, if that can be told.
pub(super) fn meant(name: &str) -> Option<&'static str> {
    let name = name.to_ascii_lowercase();
    let habit = HABITS.iter().find(|(habit, _)| *habit == name);
    habit
        .map(|(_, meant)| *meant)
        .or_else(|| nearest(&name.replace('+', "-"), NAMES))
}

/// The one of `names` from which `text` differs by one letter that is missing, superfluous or another, or by two that have
/// changed places.
pub(super) fn nearest(text: &str, names: &[&'static str]) -> Option<&'static str> {
    names.iter().copied().find(|name| is_near(text, name))
}

fn is_near(text: &str, name: &str) -> bool {
    let same = text.bytes().zip(name.bytes());
    let begin = same.take_while(|(a, b)| a == b).count();
    let (text, name) = (text.as_bytes().get(begin..), name.as_bytes().get(begin..));
    let (text, name) = (text.unwrap_or_default(), name.unwrap_or_default());
    let same = text.iter().rev().zip(name.iter().rev());
    let end = same.take_while(|(a, b)| a == b).count();
    let middle = |bytes: &[u8]| -> Vec<u8> {
        let length = bytes.len().saturating_sub(end);
        bytes.iter().copied().take(length).collect()
    };
    match (&*middle(text), &*middle(name)) {
        ([], [_]) | ([_], []) | ([_], [_]) => true,
        ([a, b], [c, d]) => a == d && b == c,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_that_is_proposed_is_understood() {
        for name in NAMES.iter().chain(HABITS.iter().map(|(_, meant)| meant)) {
            assert!(Scheme::parse(name).is_some(), "{name}");
            assert!(Scheme::parse(&name.to_uppercase().replace('-', "+")).is_some());
        }
        for other in [
            "",
            "redisss",
            "unix-cluster",
            "rediss+unix",
            "redis-",
            "redis--cluster",
            "http",
        ] {
            assert_eq!(Scheme::parse(other), None, "{other}");
        }
    }

    #[test]
    fn typos_and_habits_lead_to_what_was_meant() {
        for (text, expected) in [
            ("reids", Some("redis")),
            ("redi", Some("redis")),
            ("Redsi", Some("redis")),
            ("redisss", Some("rediss")),
            ("valky", Some("valkey")),
            ("redis_cluster", Some("redis-cluster")),
            ("redis+sentinal", Some("redis-sentinel")),
            ("rediscluster", Some("redis-cluster")),
            ("https", Some("rediss")),
            ("redis+ssl", Some("rediss")),
            ("cluster", Some("redis-cluster")),
            ("unxi", Some("unix")),
            ("postgres", None),
            ("", None),
        ] {
            assert_eq!(meant(text), expected, "{text}");
        }
    }
}
