//! Contents of the screen: a state machine of looks and keys. Pure.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::feed::Snapshot;
use crate::look::seen::Seen;
use crate::look::text::escaped;
use crate::look::view::holder;

/// A column, to sort by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Column {
    Key,
    Kind,
    Holder,
    Held,
    Ttl,
    Waiting,
    Oldest,
}

/// Effects of a key beyond the screen.
#[derive(Debug)]
pub(super) enum Act {
    None,
    Quit,
    Break(Box<Seen>),
}

/// The present meaning of keys.
#[derive(Debug)]
pub(super) enum Mode {
    Browse,
    /// The filter is being written; what it was before.
    Filter {
        before: String,
    },
    /// Whether to break this lock.
    Confirm(Box<Seen>),
}

/// A lock on the screen.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) seen: Seen,
    /// The key as it is shown.
    pub(super) key: String,
    pub(super) holder: String,
    /// Since when this holder is seen here: a lower bound where the server does not know the time.
    pub(super) first_seen: Instant,
}

/// The screen.
#[derive(Debug)]
pub(super) struct State {
    /// The servers, for the headline.
    pub(super) place: String,
    pub(super) coloured: bool,
    rows: Vec<Row>,
    pub(super) sort: Column,
    reversed: bool,
    pub(super) filter: String,
    pub(super) mode: Mode,
    /// The selected key: rows move.
    selected: Option<Vec<u8>>,
    pub(super) paused: bool,
    pub(super) message: Option<String>,
    pub(super) failures: Vec<String>,
    /// When the latest look ended, and how long it took.
    pub(super) looked: Option<(Instant, Duration)>,
    /// Hand-offs a second between the latest two looks.
    pub(super) hand_offs: Option<f64>,
    /// Renewals a second between them.
    pub(super) renewals: Option<f64>,
}

const COLUMNS: [Column; 7] = [
    Column::Key,
    Column::Kind,
    Column::Holder,
    Column::Held,
    Column::Ttl,
    Column::Waiting,
    Column::Oldest,
];
/// Rows that page up and page down pass.
const PAGE: isize = 10;

impl State {
    pub(super) const fn new(place: String, coloured: bool) -> Self {
        Self {
            place,
            coloured,
            rows: Vec::new(),
            sort: Column::Waiting,
            reversed: false,
            filter: String::new(),
            mode: Mode::Browse,
            selected: None,
            paused: false,
            message: None,
            failures: Vec::new(),
            looked: None,
            hand_offs: None,
            renewals: None,
        }
    }

    /// A look has ended.
    pub(super) fn look(&mut self, snapshot: Snapshot, now: Instant) {
        if self.paused {
            return;
        }
        if snapshot.is_blind {
            // The earlier locks are shown, with their age, until they answer again.
            self.failures = snapshot.failures;
            return;
        }
        let before: BTreeMap<Vec<u8>, Row> = std::mem::take(&mut self.rows)
            .into_iter()
            .map(|row| (row.seen.key.clone(), row))
            .collect();
        let (mut handed, mut renewed) = (0, 0);
        for seen in snapshot.locks {
            let known = before.get(&seen.key);
            let same = known.is_some_and(|row| {
                row.seen.holders == seen.holders || is_same_hold(&row.seen, &seen)
            });
            let both_held = known.is_some_and(|row| row.seen.is_held()) && seen.is_held();
            handed += usize::from(both_held && !same);
            renewed += known.map_or(0, |row| renewals(&row.seen, &seen));
            self.rows.push(Row {
                key: escaped(&seen.key),
                holder: holder(&seen, &snapshot.processes),
                first_seen: known.filter(|_| same).map_or(now, |row| row.first_seen),
                seen,
            });
        }
        let since = self.looked.map(|(last, _)| {
            let seconds = now.saturating_duration_since(last).as_secs_f64();
            seconds.max(0.001)
        });
        self.hand_offs = since.map(|seconds| handed as f64 / seconds);
        self.renewals = since.map(|seconds| renewed as f64 / seconds);
        self.failures = snapshot.failures;
        self.looked = Some((now, snapshot.took));
        self.arrange();
    }

    /// A key was pressed.
    pub(super) fn key(&mut self, key: KeyEvent) -> Act {
        self.message = None;
        if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) {
            return Act::Quit;
        }
        match std::mem::replace(&mut self.mode, Mode::Browse) {
            Mode::Browse => self.browse(key.code),
            Mode::Filter { before } => {
                self.write_filter(key.code, before);
                Act::None
            }
            Mode::Confirm(seen) if matches!(key.code, KeyCode::Char('y' | 'Y')) => Act::Break(seen),
            Mode::Confirm(_) => {
                self.message = Some("nothing was done".into());
                Act::None
            }
        }
    }

    /// Tells the outcome of what a key asked for.
    pub(super) fn say(&mut self, message: String) {
        self.message = Some(message);
    }

    /// The rows that pass the filter, in their order.
    pub(super) fn shown(&self) -> Vec<&Row> {
        let filter = self.filter.to_lowercase();
        let passes = |row: &&Row| {
            filter.is_empty()
                || row.key.to_lowercase().contains(&filter)
                || row.holder.to_lowercase().contains(&filter)
                || row.seen.kind_text().contains(&filter)
        };
        self.rows.iter().filter(passes).collect()
    }

    /// The index of the selected row among those that are shown.
    pub(super) fn selected(&self, shown: &[&Row]) -> Option<usize> {
        let key = self.selected.as_ref();
        let at = key.and_then(|key| shown.iter().position(|row| row.seen.key == *key));
        at.or_else(|| (!shown.is_empty()).then_some(0))
    }

    pub(super) fn held(&self) -> usize {
        self.rows.iter().filter(|row| row.seen.is_held()).count()
    }

    pub(super) fn waiting(&self) -> u64 {
        self.rows.iter().map(|row| row.seen.waiting).sum()
    }

    /// The one that has waited longest, and for how long.
    pub(super) fn oldest(&self) -> Option<(&Row, Duration)> {
        let waits = self
            .rows
            .iter()
            .filter_map(|row| Some((row, row.seen.oldest_wait?)));
        waits.max_by_key(|(_, wait)| *wait)
    }

    /// Whether the rows run downwards by the column.
    pub(super) fn descends(&self) -> bool {
        let usually = matches!(self.sort, Column::Held | Column::Waiting | Column::Oldest);
        usually != self.reversed
    }

    fn browse(&mut self, key: KeyCode) -> Act {
        match key {
            KeyCode::Char('q') => return Act::Quit,
            KeyCode::Esc if self.filter.is_empty() => return Act::Quit,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Up | KeyCode::Char('k') => self.select(-1),
            KeyCode::Down | KeyCode::Char('j') => self.select(1),
            KeyCode::PageUp => self.select(-PAGE),
            KeyCode::PageDown => self.select(PAGE),
            KeyCode::Home => self.select(isize::MIN),
            KeyCode::End => self.select(isize::MAX),
            KeyCode::Char('s') => {
                let at = COLUMNS.iter().position(|column| *column == self.sort);
                self.sort = COLUMNS[(at.unwrap_or(0) + 1) % COLUMNS.len()];
                self.reversed = false;
                self.arrange();
            }
            KeyCode::Char('r') => {
                self.reversed = !self.reversed;
                self.arrange();
            }
            KeyCode::Char('/') => {
                let before = self.filter.clone();
                self.mode = Mode::Filter { before };
            }
            KeyCode::Char(' ') => self.paused = !self.paused,
            KeyCode::Char('b') => self.ask(),
            _ => {}
        }
        Act::None
    }

    fn write_filter(&mut self, key: KeyCode, before: String) {
        match key {
            KeyCode::Enter => return,
            KeyCode::Esc => {
                self.filter = before;
                return;
            }
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Char(c) => self.filter.push(c),
            _ => {}
        }
        self.mode = Mode::Filter { before };
    }

    fn ask(&mut self) {
        let shown = self.shown();
        let row = self.selected(&shown).map(|at| shown[at]);
        match row.filter(|row| row.seen.is_held()) {
            Some(row) => self.mode = Mode::Confirm(Box::new(row.seen.clone())),
            None => self.message = Some("nothing is held there".into()),
        }
    }

    fn select(&mut self, by: isize) {
        let shown = self.shown();
        let Some(at) = self.selected(&shown) else {
            return;
        };
        let to = at
            .cast_signed()
            .saturating_add(by)
            .clamp(0, shown.len().cast_signed() - 1);
        let key = shown[to.cast_unsigned()].seen.key.clone();
        self.selected = Some(key);
    }

    fn arrange(&mut self) {
        let (sort, descends) = (self.sort, self.descends());
        self.rows.sort_by(|a, b| {
            let order = compare(sort, a, b);
            let order = if descends { order.reverse() } else { order };
            order.then_with(|| a.seen.key.cmp(&b.seen.key))
        });
    }
}

impl Row {
    /// How long it has been held, and whether for longer than that: seen from here, where the server does not know.
    pub(super) fn held_for(&self, now: Instant) -> Option<(Duration, bool)> {
        if !self.seen.is_held() {
            return None;
        }
        Some(match self.seen.held_for {
            Some(held) => (held, false),
            None => (now.saturating_duration_since(self.first_seen), true),
        })
    }
}

/// Renewed, so that only its lease has changed.
fn is_same_hold(before: &Seen, after: &Seen) -> bool {
    let ids = |seen: &Seen| {
        seen.holders
            .iter()
            .map(|held| held.id.clone())
            .collect::<Vec<_>>()
    };
    before.token == after.token && ids(before) == ids(after)
}

/// How many of the same holds have more of their lease left than before: a lower bound, since one that was renewed twice counts
/// once, and so is exact where a look comes before a third of the lease has passed.
fn renewals(before: &Seen, after: &Seen) -> usize {
    let of_holders = after.holders.iter().filter(|held| {
        let known = before.holders.iter().find(|known| known.id == held.id);
        let left = known.and_then(|known| known.remaining.zip(held.remaining));
        left.is_some_and(|(before, after)| after > before)
    });
    let has_leases = |seen: &Seen| seen.holders.iter().any(|held| held.remaining.is_some());
    if has_leases(before) || has_leases(after) {
        return of_holders.count();
    }
    let left = before.lease.left().zip(after.lease.left());
    let is_longer = left.is_some_and(|(before, after)| after > before);
    usize::from(is_longer && after.is_held() && is_same_hold(before, after))
}

fn compare(sort: Column, a: &Row, b: &Row) -> Ordering {
    let (x, y) = (&a.seen, &b.seen);
    match sort {
        Column::Key => x.key.cmp(&y.key),
        Column::Kind => x.kind_text().cmp(&y.kind_text()),
        Column::Holder => a.holder.cmp(&b.holder),
        // First seen later is held for less.
        Column::Held => {
            (x.is_held(), x.held_for, b.first_seen).cmp(&(y.is_held(), y.held_for, a.first_seen))
        }
        Column::Ttl => {
            let left = |seen: &Seen| seen.lease.left().unwrap_or(Duration::MAX);
            left(x).cmp(&left(y))
        }
        Column::Waiting => (x.waiting, x.oldest_wait).cmp(&(y.waiting, y.oldest_wait)),
        Column::Oldest => x.oldest_wait.cmp(&y.oldest_wait),
    }
}
