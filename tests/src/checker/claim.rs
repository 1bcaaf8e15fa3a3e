//! An owner's claim to a key, and its changes by events.

use super::facts::{Call, NEVER, Span};
use crate::history::{Event, Mode, Outcome, What};

/// The claim of one owner to one key, from the grant to the end.
pub(super) struct Claim<'a> {
    pub(super) key: &'a str,
    pub(super) mode: Mode,
    pub(super) hold: &'a str,
    pub(super) token: u64,
    /// The time of the request: the grant happened after it and before `granted` was recorded.
    pub(super) asked: u64,
    pub(super) granted: &'a Event,
    /// The spans in which it was claimed: more than one if a renewal came after the validity was
    /// over.
    pub(super) spans: Vec<Span>,
    /// Grants that are not yet released: more than one when nested.
    pub(super) depth: usize,
    /// Number of grants and of releases.
    pub(super) grants: usize,
    pub(super) releases: usize,
    /// The last release or drop, the one that really ends it.
    pub(super) release: Option<&'a Event>,
    pub(super) outcome: Option<(&'a Event, Outcome)>,
    pub(super) lost: Option<&'a Event>,
    pub(super) renewals: Vec<&'a Event>,
    /// The time at which the holder stopped claiming, if it did before its validity ended.
    pub(super) ended: u64,
}

impl<'a> Claim<'a> {
    pub(super) fn new(
        granted: &'a Event,
        call: &Call<'a>,
        hold: &'a str,
        token: u64,
        valid_until: u64,
    ) -> Self {
        Self {
            key: call.key,
            mode: call.mode,
            hold,
            token,
            asked: call.invoke.at,
            granted,
            spans: vec![(granted.at, valid_until)],
            depth: 1,
            grants: 1,
            releases: 0,
            release: None,
            outcome: None,
            lost: None,
            renewals: Vec::new(),
            ended: NEVER,
        }
    }

    /// Granted once more to the same owner, which still holds it.
    pub(super) fn nest(&mut self, at: u64, valid_until: u64) {
        self.depth += 1;
        self.grants += 1;
        self.claim_more(at, valid_until);
    }

    pub(super) fn goes_on(&mut self, event: &'a Event) {
        match &event.what {
            What::RenewOk { valid_until, .. } => {
                self.renewals.push(event);
                self.claim_more(event.at, *valid_until);
            }
            What::Lost { .. } => {
                self.lost.get_or_insert(event);
                self.end_at(event.at);
            }
            What::ReleaseInvoke { .. } | What::Drop { .. } => {
                self.releases += 1;
                self.depth = self.depth.saturating_sub(1);
                if self.depth == 0 {
                    self.release.get_or_insert(event);
                    self.end_at(event.at);
                }
            }
            What::ReleaseOk { outcome, .. } if self.depth == 0 => {
                self.outcome = Some((event, *outcome))
            }
            _ => {}
        }
    }

    fn claim_more(&mut self, at: u64, valid_until: u64) {
        if at >= self.ended {
            return;
        }
        match self.spans.last_mut() {
            Some(last) if at <= last.1 => last.1 = last.1.max(valid_until),
            _ => self.spans.push((at, valid_until)),
        }
    }

    pub(super) fn end_at(&mut self, at: u64) {
        self.ended = self.ended.min(at);
        for span in &mut self.spans {
            span.1 = span.1.min(at);
        }
    }

    /// The moment of its last claim.
    pub(super) fn end(&self) -> u64 {
        self.spans.last().map_or(self.granted.at, |s| s.1)
    }

    /// Whether the holder claims through the whole span.
    pub(super) fn covers(&self, span: Span) -> bool {
        self.spans.iter().any(|s| s.0 <= span.0 && span.1 < s.1)
    }

    /// Whether it was claimed for any time at all: a grant that is learned of too late is not.
    pub(super) fn is_empty(&self) -> bool {
        self.spans.iter().all(|s| s.0 >= s.1)
    }
}
