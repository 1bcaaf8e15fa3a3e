//! A party of a barrier: a state machine without time or I/O.

use std::time::Duration;

/// A barrier, as the server has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct View {
    /// The present generation; 0 if the barrier is gone.
    pub(crate) generation: u64,
    /// The first one since the server has the barrier.
    pub(crate) first: u64,
    /// How long the first of those that have arrived lives if it is not renewed; `None` if nobody has.
    pub(crate) first_end: Option<Duration>,
    /// How the latest generations ended.
    pub(crate) ended: Vec<(u64, How)>,
}

/// How a generation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum How {
    Broken,
    /// All parties have arrived, this one last.
    Passed {
        leader: Box<[u8]>,
    },
}

/// The known fate of the generation of a party.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Waits,
    Passed {
        is_leader: bool,
    },
    Broken,
    /// It is over, and so long ago that its end is forgotten.
    Forgotten,
}

impl View {
    /// The fate of `party`, which arrived in this generation.
    pub(crate) fn fate(&self, generation: u64, party: &[u8]) -> Fate {
        let ended = self.ended.iter().find(|(known, _)| *known == generation);
        match ended {
            Some((_, How::Passed { leader })) => Fate::Passed {
                is_leader: **leader == *party,
            },
            Some((_, How::Broken)) => Fate::Broken,
            None if self.generation == generation => Fate::Waits,
            None if (self.first..self.generation).contains(&generation) => Fate::Forgotten,
            // The server lost it.
            None => Fate::Broken,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_party_hears_how_its_own_generation_ended() {
        let view = View {
            generation: 12,
            first: 4,
            first_end: None,
            ended: vec![
                (9, How::Broken),
                (
                    11,
                    How::Passed {
                        leader: (*b"c:7").into(),
                    },
                ),
            ],
        };
        assert_eq!(view.fate(11, b"c:7"), Fate::Passed { is_leader: true });
        assert_eq!(view.fate(11, b"c:8"), Fate::Passed { is_leader: false });
        assert_eq!(view.fate(9, b"c:8"), Fate::Broken);
        assert_eq!(view.fate(12, b"c:8"), Fate::Waits);
        assert_eq!(view.fate(5, b"c:8"), Fate::Forgotten);
        for lost in [3, 13] {
            assert_eq!(view.fate(lost, b"c:8"), Fate::Broken, "the server lost it");
        }
    }
}
