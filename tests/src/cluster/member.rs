//! A node's view of the others: the lines of `CLUSTER NODES`.

/// A line of `CLUSTER NODES`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Forty hexadecimal digits.
    pub id: String,
    /// The port it announces.
    pub port: u16,
    /// `myself`, `master`, `slave`, `fail?`, `fail`, `handshake`, `noaddr`, …
    pub flags: Vec<String>,
    /// The id of its master, if it is a replica.
    pub master: Option<String>,
    /// Its configuration epoch: of two that claim a slot, the higher one owns it.
    pub epoch: u64,
    /// Whether the one who was asked has a bus connection to it.
    pub linked: bool,
    /// The ranges it serves, both ends included, as far as the one who was asked knows.
    pub slots: Vec<(u16, u16)>,
}

impl Member {
    /// Reads all lines; what is none is left out.
    #[must_use]
    pub fn parse_all(text: &str) -> Vec<Self> {
        text.lines().filter_map(Self::parse).collect()
    }

    /// Whether it has this flag.
    #[must_use]
    pub fn is(&self, flag: &str) -> bool {
        self.flags.iter().any(|f| f == flag)
    }

    /// Whether it serves this slot.
    #[must_use]
    pub fn serves(&self, slot: u16) -> bool {
        self.slots
            .iter()
            .any(|(first, last)| (*first..=*last).contains(&slot))
    }

    /// `id host:port@busport[,name] flags master ping pong epoch link slot slot …`
    fn parse(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split(' ').collect();
        let [id, address, flags, master, _, _, epoch, link, slots @ ..] = words.as_slice() else {
            return None;
        };
        let port = address
            .split(['@', ','])
            .next()?
            .rsplit_once(':')?
            .1
            .parse()
            .ok()?;
        // A slot on the move stands behind the others as `[5->-id]`; its owner is still who it was.
        let slots = slots.iter().filter_map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            Some((first.parse().ok()?, last.parse().ok()?))
        });
        Some(Self {
            id: (*id).into(),
            port,
            flags: flags.split(',').map(Into::into).collect(),
            master: (*master != "-").then(|| (*master).into()),
            epoch: epoch.parse().ok()?,
            linked: *link == "connected",
            slots: slots.collect(),
        })
    }
}
