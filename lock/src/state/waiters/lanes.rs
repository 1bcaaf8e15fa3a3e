//! The lanes of one name: waiters of this process of which each has a ticket of its own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use super::super::lane_order::{LaneOrder, Rank};
use super::super::names::Name;
use super::{Entry, Waiters};

/// The lanes of one name that are held or wanted.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    by_number: BTreeMap<u64, Arc<Name>>,
    /// Their order in line.
    order: LaneOrder,
}

impl<H: Clone, L: Default, F> Waiters<H, L, F> {
    /// The ticket of this lane stands at `rank`.
    pub(crate) fn rank(&mut self, lane: &Arc<Name>, rank: Rank) {
        if let Some((order, number)) = self.order_of(lane) {
            order.put(number, rank);
        }
    }

    /// The lane whose ticket is the first in the run of the one of this lane, if that is another one.
    pub(crate) fn first_before(&self, lane: &Arc<Name>) -> Option<Arc<Name>> {
        let lanes = self.entries.get(lane.whole())?.lanes.as_ref()?;
        let first = lanes.order.first_before(lane.lane_number()?)?;
        lanes.by_number.get(&first).cloned()
    }

    /// Whether this lane is to look instead of the first one, which does not.
    pub(crate) fn stands_in(&mut self, lane: &Arc<Name>, now: Instant) -> bool {
        let order = self.order_of(lane);
        order.is_some_and(|(order, _)| order.stands_in(now))
    }

    /// The lane whose ticket is the next one in the run of the one of this lane.
    pub(crate) fn next_behind(&self, lane: &Arc<Name>) -> Option<Arc<Name>> {
        let lanes = self.entries.get(lane.whole())?.lanes.as_ref()?;
        let next = lanes.order.next_behind(lane.lane_number()?)?;
        lanes.by_number.get(&next).cloned()
    }

    /// The order of the lanes of a name, and the number of this one.
    pub(super) fn order_of(&mut self, lane: &Arc<Name>) -> Option<(&mut LaneOrder, u64)> {
        let number = lane.lane_number()?;
        let lanes = self.entries.get_mut(lane.whole())?.lanes.as_mut()?;
        Some((&mut lanes.order, number))
    }

    /// The lanes of this name that are held or wanted, by their numbers.
    pub(crate) fn lanes(&self, name: &Arc<Name>) -> impl Iterator<Item = &Arc<Name>> {
        let entry = self.entries.get(name).into_iter();
        let lanes = entry.filter_map(|entry| entry.lanes.as_deref());
        lanes.flat_map(|lanes| lanes.by_number.values())
    }

    /// The lane of this name whose ticket is the first in this run.
    pub(crate) fn first_in_run(&self, name: &Arc<Name>, run: u8) -> Option<&Arc<Name>> {
        let lanes = self.entries.get(name)?.lanes.as_ref()?;
        lanes.by_number.get(&lanes.order.first(Some(run))?)
    }

    /// The name of a lane keeps an entry for what all of its lanes share.
    pub(super) fn open_lane(&mut self, name: &Arc<Name>) {
        if let Some(number) = name.lane_number() {
            let whole = self.entries.entry(Arc::clone(name.whole()));
            let whole = whole.or_insert_with(Entry::empty);
            let lanes = whole.lanes.get_or_insert_default();
            lanes.by_number.insert(number, Arc::clone(name));
        }
    }
}

/// The lane with this number is neither held nor wanted any more.
pub(super) fn close(lanes: &mut Option<Box<Lanes>>, number: u64) {
    if let Some(open) = lanes {
        open.by_number.remove(&number);
        if open.by_number.is_empty() {
            *lanes = None;
        }
    }
}
