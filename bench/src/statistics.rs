//! What a server says of itself.

use crate::floor::raw_blocking::RawBlocking;

/// Statistics of a server since its start.
pub struct Statistics {
    /// Script calls.
    pub scripts: f64,
    /// Commands that were run, in scripts too.
    pub commands: f64,
    /// Of these, those that set an expiry: each renewal is one.
    pub renewals: f64,
    /// Seconds of CPU time.
    pub cpu: f64,
}

impl Statistics {
    /// The sums of those of the servers on these ports.
    ///
    /// # Panics
    ///
    /// When one does not answer.
    pub fn of_all(ports: &[u16]) -> Self {
        let all: Vec<_> = ports.iter().map(|port| Self::read(*port)).collect();
        let sum = |figure: fn(&Self) -> f64| all.iter().map(figure).sum();
        Self {
            scripts: sum(|of| of.scripts),
            commands: sum(|of| of.commands),
            renewals: sum(|of| of.renewals),
            cpu: sum(|of| of.cpu),
        }
    }

    /// Asks the server on `port`.
    ///
    /// # Panics
    ///
    /// When it does not answer.
    pub fn read(port: u16) -> Self {
        let mut client = RawBlocking::open(port).expect("the server is up");
        let reply = client.call(&[b"INFO", b"ALL"]).expect("an answer");
        let text = String::from_utf8_lossy(&reply);
        let sum = |prefixes: &[&str]| -> f64 {
            let values = text.lines().filter_map(|line| {
                let value = prefixes
                    .iter()
                    .find_map(|prefix| line.strip_prefix(prefix))?;
                let end = value.find(',').unwrap_or(value.len());
                value[..end].parse::<f64>().ok()
            });
            values.sum()
        };
        Self {
            scripts: sum(&["cmdstat_evalsha:calls=", "cmdstat_eval:calls="]),
            commands: calls(&text),
            renewals: sum(&["cmdstat_pexpire:calls="]),
            cpu: sum(&["used_cpu_sys:", "used_cpu_user:"]),
        }
    }
}

/// The calls of all commands together.
fn calls(statistics: &str) -> f64 {
    let calls = statistics.lines().filter_map(|line| {
        let (_, calls) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        calls.split(',').next()?.parse::<f64>().ok()
    });
    calls.sum()
}
