//! Connections that listen as clients of ours and of Redisson do.

use std::net::SocketAddr;

use leasehold_testkit::Raw;

use super::requests::{CLIENTS, NAMES, keys};

/// Where grants and Redisson's messages are published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Plain,
    Sharded,
    Cluster,
}

impl Mode {
    pub(super) const ALL: [Self; 3] = [Self::Plain, Self::Cluster, Self::Sharded];

    /// Its letter in the arguments of the scripts.
    pub(super) fn letter(self) -> &'static str {
        match self {
            Self::Plain => "P",
            Self::Sharded => "S",
            Self::Cluster => "C",
        }
    }
}

/// Who listens to messages about one lock while a batch of requests runs.
pub(super) struct Heard {
    clients: Vec<(&'static str, Mode)>,
    redisson: Vec<(Mode, i64)>,
}

impl Heard {
    pub(super) fn new(name: usize, clients: &[Ear], java: &[Ear]) -> Self {
        let name = NAMES[name];
        let mut heard = Self {
            clients: Vec::new(),
            redisson: Vec::new(),
        };
        for mode in Mode::ALL {
            for (client, ear) in CLIENTS.iter().zip(clients) {
                if ear.listens(&client_channel(name, client, mode), mode) {
                    heard.clients.push((client, mode));
                }
            }
            let channel = redisson_channel(name);
            let count = java
                .iter()
                .filter(|ear| ear.listens(&channel, mode))
                .count();
            heard.redisson.push((mode, count as i64));
        }
        heard
    }

    pub(super) fn client(&self, client: &str, mode: Mode) -> bool {
        self.clients.contains(&(client, mode))
    }

    /// Number of subscribers of Redisson's channel.
    pub(super) fn redisson(&self, mode: Mode) -> i64 {
        let mut counts = self.redisson.iter();
        counts
            .find(|(of, _)| *of == mode)
            .map_or(0, |(_, count)| *count)
    }
}

/// A connection that listens on some channels.
pub(super) struct Ear {
    raw: Raw,
    marker: String,
    plain: Vec<String>,
    sharded: Vec<String>,
}

impl Ear {
    pub(super) async fn open(address: SocketAddr, name: &str) -> Self {
        let mut raw = Raw::connect(address).await.expect("the server is up");
        raw.hello3().await;
        let marker = format!("marker of {name}");
        raw.send(&["SUBSCRIBE", &marker]).await.expect("connected");
        Self {
            raw,
            marker,
            plain: Vec::new(),
            sharded: Vec::new(),
        }
    }

    pub(super) fn listens(&self, channel: &str, mode: Mode) -> bool {
        match mode {
            Mode::Sharded => self.sharded.iter().any(|own| own == channel),
            Mode::Plain | Mode::Cluster => self.plain.iter().any(|own| own == channel),
        }
    }

    pub(super) async fn listen(&mut self, channel: &str, mode: Mode, listens: bool) {
        if self.listens(channel, mode) == listens {
            return;
        }
        let (channels, on, off) = match mode {
            Mode::Sharded => (&mut self.sharded, "SSUBSCRIBE", "SUNSUBSCRIBE"),
            Mode::Plain | Mode::Cluster => (&mut self.plain, "SUBSCRIBE", "UNSUBSCRIBE"),
        };
        let command = if listens {
            channels.push(channel.to_owned());
            on
        } else {
            channels.retain(|own| own != channel);
            off
        };
        self.raw.send(&[command, channel]).await.expect("connected");
    }

    /// The messages since the last call, and their channels.
    pub(super) async fn heard(&mut self) -> Vec<(String, String)> {
        self.raw.cmd(&["PUBLISH", &self.marker, ""]).await;
        let mut heard = Vec::new();
        loop {
            let push = self.raw.push().await;
            if !push[0].str().ends_with("message") {
                continue;
            }
            let channel = push[1].str();
            if channel == self.marker {
                return heard;
            }
            heard.push((channel.to_owned(), push[2].str().to_owned()));
        }
    }
}

/// The channel on which a client is told of its grants.
pub(super) fn client_channel(name: &str, client: &str, mode: Mode) -> String {
    match mode {
        Mode::Sharded => format!("{}:{client}", keys(name)[2]),
        Mode::Plain | Mode::Cluster => format!("leasehold:{client}"),
    }
}

pub(super) fn redisson_channel(name: &str) -> String {
    format!("redisson_lock__channel:{{{name}}}")
}
