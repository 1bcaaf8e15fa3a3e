//! Reads a history and says which invariants it breaks.
//!
//! Each invariant is a function from the facts of a history to violations; the facts (claims, open
//! calls, active faults) are derived once, in `facts`. Nothing here touches a socket or a clock.
//!
//! | | invariant | where |
//! |---|---|---|
//! | I1 | claims of different owners do not overlap; what is claimed is held at the server | `exclusion` |
//! | I2 | tokens increase; the resource takes no older one | `tokens`, `tickets` |
//! | I3 | a hold ends by its owner, by its expiry or by a fault | `exclusion` |
//! | I4 | nothing renews or resurrects a hold after its end | `ending` |
//! | I5 | a holder is notified of its loss | `ending` |
//! | I6 | a free lock with waiters is handed on in time | `waiting` |
//! | I7 | where waiters are served in order, nobody passes one that came before | `order` |
//! | I8 | a bounded wait ends in time | `waiting` |
//! | I9 | a cancelled or failed acquisition leaves no hold | `waiting` |
//! | I10 | every key has an expiry, and none is left at the end | `keyspace` |
//! | I11 | nested holds end with the last release, not before | `ending` |
//! | I12 | an expiry is no longer than the lease, and renewal does not shorten it | `keyspace` |
//! | I13 | one grant for a call, one hold for a key | `keyspace` |
//! | I14 | a latch counts what was counted, opens at zero and for all; a generation of a barrier is complete and has one leader | `meeting` |
//! | I15 | readers who come after a waiting writer give way to it | `order` |
//! | I16 | a release's outcome is true | `ending` |
//! | I17 | no more permits are out than the capacity | `permits` |
//! | I18 | of a request for several, all are granted, held and given back, or none | `together` |
//! | I19 | what is held by majority is at the majority of the servers, and nothing stays at the others | `majority` |
//! | I20 | a grant to a process that is well is taken or handed on | `tickets` |
//! | I21 | no ticket in line is passed over, but once for each expiry | `tickets` |

mod claim;
mod ending;
mod exclusion;
mod facts;
mod keyspace;
mod majority;
mod meeting;
mod order;
mod permits;
mod tickets;
mod together;
mod tokens;
mod waiting;

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use facts::Facts;

use crate::history::{Change, Event, What};

/// The bounds a history is held to. They are bounds against hangs and forgotten work, not speed
/// limits: on a busy machine they should be generous.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The longest lease in use.
    pub lease: Duration,
    /// I5: from the end of a hold at the server until its holder knows.
    pub loss_notice: Duration,
    /// I6: from a release until the next waiter holds. When a holder died, the lease comes on top.
    pub handoff: Duration,
    /// I8: what a bounded wait may take above its bound: the command timeout.
    pub overrun: Duration,
    /// I9: from the end of a cancelled or failed acquisition until the server has removed it. When
    /// its process died, the lease comes on top.
    pub cleanup: Duration,
}

/// One breach of one invariant.
#[derive(Debug, Clone)]
pub struct Violation {
    /// `"I1"` to `"I21"`.
    pub invariant: &'static str,
    /// Whether an active fault suspends the guarantee. Excused violations are reported and do not
    /// fail.
    pub excused: bool,
    /// A sentence about it.
    pub message: String,
    /// The events that show it.
    pub events: Vec<Event>,
}

/// The result of a check.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Number of events.
    pub events: usize,
    /// Number of requested acquisitions.
    pub calls: usize,
    /// Number of grants.
    pub grants: usize,
    /// Number of grants to another client than the grant before, on the same key.
    pub handoffs: usize,
    /// Number of loss notices.
    pub losses: usize,
    /// Number of injected faults.
    pub faults: usize,
    /// The lines, by the record of the servers.
    pub lines: Lines,
    /// Number of writes that the guarded resource accepted, and refused as stale.
    pub uses: (usize, usize),
    /// The breaches, the inexcusable first.
    pub violations: Vec<Violation>,
}

/// Servers' records of lines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lines {
    /// Number of tickets that joined a line.
    pub joined: usize,
    /// Number of grants that a process was told of.
    pub granted: usize,
    /// Number of tickets that nobody heard of a grant for.
    pub skipped: usize,
    /// Number of holds whose lease ran out.
    pub expired: usize,
    /// The greatest number of tickets in a line at a time.
    pub longest: usize,
    /// Number of times the record of a line began, for the first time or after a gap.
    pub known: usize,
}

/// Checks a merged history against every invariant.
///
/// ```
/// use std::time::Duration;
/// use leasehold_testkit::checker::{Limits, check};
/// use leasehold_testkit::history::{self, Mode, Recorder, What};
/// use leasehold_testkit::Scratch;
///
/// let scratch = Scratch::new();
/// let limits = Limits {
///     lease: Duration::from_secs(10),
///     loss_notice: Duration::from_secs(1),
///     handoff: Duration::from_secs(1),
///     overrun: Duration::from_secs(1),
///     cleanup: Duration::from_secs(1),
/// };
/// // Two owners claim the same lock at the same time.
/// for (client, token) in [("here", 1), ("there", 2)] {
///     let recorder = Recorder::open(scratch.path(), client);
///     let call = recorder.number();
///     recorder.invokes(call, "order:42", Mode::Exclusive, true, None);
///     let hold = format!("{client}:1");
///     recorder.record(What::Ok { call, hold, token, valid_until: history::now() + 10_000_000 });
/// }
/// let report = check(&history::read(scratch.path()), &limits);
/// assert!(report.broken().contains("I1"), "{report}");
/// ```
#[must_use]
pub fn check(events: &[Event], limits: &Limits) -> Report {
    let facts = Facts::new(events, *limits);
    let mut violations = Vec::new();
    for invariant in [
        exclusion::claims_do_not_overlap,
        exclusion::claims_are_true_at_the_server,
        exclusion::only_the_owner_ends_a_hold,
        tokens::tokens_increase,
        tokens::the_resource_takes_no_older_token,
        ending::nothing_renews_after_the_end,
        ending::loss_is_told,
        ending::nesting_is_balanced,
        ending::release_is_honest,
        waiting::handoff_is_bounded,
        waiting::waits_are_bounded,
        waiting::cancelled_calls_leave_nothing,
        order::waiters_are_served_in_order,
        order::readers_give_way_to_a_writer,
        meeting::latches_open_at_zero,
        meeting::counts_are_true,
        meeting::barriers_let_all_parties_through_together,
        meeting::complete_generations_are_let_through,
        permits::permits_stay_within_the_capacity,
        together::all_or_none,
        majority::claims_are_true_at_the_majority,
        majority::nothing_stays_at_a_minority,
        keyspace::nothing_leaks,
        keyspace::expiry_is_disciplined,
        keyspace::requests_are_idempotent,
        tickets::no_ticket_is_passed_over,
        tickets::no_grant_is_lost,
        tickets::no_token_is_granted_twice,
    ] {
        violations.extend(invariant(&facts));
    }
    violations.sort_by_key(|v| v.excused);
    let count = |wanted: fn(&What) -> bool| events.iter().filter(|e| wanted(&e.what)).count();
    Report {
        events: events.len(),
        calls: facts.calls.len(),
        grants: count(|w| matches!(w, What::Ok { .. })),
        handoffs: facts.handoffs(),
        losses: count(|w| matches!(w, What::Lost { .. })),
        faults: facts.faults.len(),
        lines: Lines::of(events),
        uses: (
            count(|w| matches!(w, What::Use { accepted: true, .. })),
            count(|w| {
                matches!(
                    w,
                    What::Use {
                        accepted: false,
                        ..
                    }
                )
            }),
        ),
        violations,
    }
}

impl Lines {
    fn of(events: &[Event]) -> Self {
        let mut lines = Self::default();
        for record in tickets::records(events) {
            let mut line = tickets::Line::default();
            for (event, _, change) in record.changes {
                line.apply(event, change);
                lines.longest = lines.longest.max(line.len());
                match change {
                    Change::Joined(_) => lines.joined += 1,
                    Change::Granted { .. } => lines.granted += 1,
                    Change::Left { is_skipped, .. } => lines.skipped += usize::from(*is_skipped),
                    Change::Expired { .. } => lines.expired += 1,
                    Change::Known { .. } => lines.known += 1,
                    _ => {}
                }
            }
        }
        lines
    }
}

impl Report {
    /// Whether nothing is wrong, excused breaches aside.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.violations.iter().all(|v| v.excused)
    }

    /// The invariants that are broken without excuse.
    #[must_use]
    pub fn broken(&self) -> BTreeSet<&'static str> {
        self.violations
            .iter()
            .filter(|v| !v.excused)
            .map(|v| v.invariant)
            .collect()
    }

    /// Fails the test unless the history [is clean](Self::is_clean).
    ///
    /// # Panics
    ///
    /// With the report, then.
    #[track_caller]
    pub fn assert_clean(&self) {
        assert!(self.is_clean(), "{self}");
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let excused = self.violations.iter().filter(|v| v.excused).count();
        writeln!(
            f,
            "{} events: {} calls, {} grants, {} hand-offs, {} losses told, {} faults, {} writes taken and {} refused",
            self.events,
            self.calls,
            self.grants,
            self.handoffs,
            self.losses,
            self.faults,
            self.uses.0,
            self.uses.1
        )?;
        if self.lines.known > 0 {
            let Lines {
                joined,
                granted,
                skipped,
                expired,
                longest,
                known,
            } = self.lines;
            writeln!(
                f,
                "{joined} tickets, {granted} grants told, {skipped} skipped, {expired} leases ran out, \
                 {longest} in a line, {known} records"
            )?;
        }
        writeln!(
            f,
            "{} violations, {excused} of them excused by a fault",
            self.violations.len()
        )?;
        // A broken history breaks thousands of times; the first few say it.
        for violation in self.violations.iter().take(10) {
            let excuse = if violation.excused { " (excused)" } else { "" };
            writeln!(f, "{}{excuse}: {}", violation.invariant, violation.message)?;
            for event in &violation.events {
                writeln!(
                    f,
                    "    {} {}/{} {:?}",
                    event.at, event.process, event.client, event.what
                )?;
            }
        }
        Ok(())
    }
}
