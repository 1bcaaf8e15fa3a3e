use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;

use super::super::lane_order::Rank;
use super::super::names::{Derived, Layout};
use super::*;

static LAYOUT: Layout = Layout {
    channel: Derived::Prefixed("channel"),
    keys: &[],
};

type Table = Waiters<u64, &'static str, &'static str>;
type Seen = Position<u64, &'static str>;

/// Counts how often it is woken.
#[derive(Default)]
struct Counter(AtomicUsize);

impl Wake for Counter {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Counter {
    fn new() -> (Arc<Self>, Waker) {
        let counter = Arc::<Self>::default();
        (Arc::clone(&counter), Waker::from(counter))
    }

    fn wakes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

fn name(text: &str) -> Arc<Name> {
    Arc::new(Name::new(&LAYOUT, None, text))
}

const fn claim(owner: Option<u64>) -> Claim {
    Claim {
        access: Access::Exclusive,
        owner,
        replicas: Replicas::None,
    }
}

fn held(number: u64, owner: Option<u64>) -> Held<u64> {
    Held {
        number,
        claim: claim(owner),
        hold: number,
    }
}

fn look(table: &mut Table, name: &Arc<Name>, place: u64) -> Seen {
    table.position(name, place, Waker::noop())
}

#[test]
fn an_uncontended_lock_leaves_nothing_behind() {
    let (mut table, a) = (Table::new(), name("a"));
    let place = table.enter(&a, claim(None)).unwrap();
    assert_eq!(look(&mut table, &a, place), Position::Free);
    table.grant(&a, place, held(1, None)).unwrap().run();
    assert_eq!(table.entries.len(), 1);
    table.end(&a, 1).run();
    assert!(table.entries.is_empty());
}

#[test]
fn only_the_head_contends_and_the_next_one_is_woken_when_it_leaves() {
    let (mut table, a) = (Table::new(), name("a"));
    let first = table.enter(&a, claim(None)).unwrap();
    let second = table.enter(&a, claim(None)).unwrap();
    let third = table.enter(&a, claim(None)).unwrap();
    let (counter, waker) = Counter::new();
    assert_eq!(look(&mut table, &a, first), Position::Free);
    assert_eq!(table.position(&a, second, &waker), Position::Queued);
    assert_eq!(look(&mut table, &a, third), Position::Queued);

    table.leave(&a, first).run();
    assert_eq!(counter.wakes(), 1);
    assert_eq!(look(&mut table, &a, second), Position::Free);
    assert_eq!(look(&mut table, &a, third), Position::Queued);
}

#[test]
fn the_next_one_is_woken_when_the_local_hold_ends() {
    let (mut table, a) = (Table::new(), name("a"));
    let first = table.enter(&a, claim(None)).unwrap();
    let second = table.enter(&a, claim(None)).unwrap();
    let (counter, waker) = Counter::new();
    table.position(&a, second, &waker);
    table.grant(&a, first, held(7, None)).unwrap().run();
    assert_eq!(counter.wakes(), 1, "it must watch over the hold now");
    assert_eq!(table.position(&a, second, &waker), Position::Behind(7));

    table.end(&a, 6).run();
    assert_eq!(counter.wakes(), 1, "another hold ended");
    table.end(&a, 7).run();
    assert_eq!(counter.wakes(), 2);
    assert_eq!(table.position(&a, second, &waker), Position::Free);
}

#[test]
fn a_late_end_of_an_old_hold_does_not_free_the_new_one() {
    let (mut table, a) = (Table::new(), name("a"));
    for number in [1, 2] {
        let place = table.enter(&a, claim(None)).unwrap();
        table.grant(&a, place, held(number, None)).unwrap().run();
    }
    table.end(&a, 1).run();
    assert_eq!(table.entries.len(), 1);
    table.end(&a, 2).run();
    assert!(table.entries.is_empty());
}

/// The head asks the server then, and would overwrite what it was passed.
#[test]
fn a_hold_that_the_head_took_out_of_the_way_is_not_passed_on() {
    let mut table = Table::new();
    let a = name("a");
    let first = table.enter(&a, claim(None)).unwrap();
    table.grant(&a, first, held(1, None)).unwrap().run();
    let second = table.enter(&a, claim(None)).unwrap();
    assert_eq!(look(&mut table, &a, second), Position::Behind(1));
    table.end(&a, 1).run();
    assert!(table.pass(&a, 1, |_| panic!("it is gone")).is_none());
    table.grant(&a, second, held(2, None)).unwrap().run();
    table.enter(&a, claim(None)).unwrap();
    assert!(table.pass(&a, 2, |_| true).is_some());
}

#[test]
fn waiters_who_vanish_from_the_middle_lose_nobody_elses_turn() {
    let (mut table, a) = (Table::new(), name("a"));
    let places: Vec<u64> = (0..5)
        .map(|_| table.enter(&a, claim(None)).unwrap())
        .collect();
    for gone in [2, 4, 0] {
        table.leave(&a, places[gone]).run();
    }
    assert_eq!(look(&mut table, &a, places[1]), Position::Free);
    assert_eq!(look(&mut table, &a, places[3]), Position::Queued);
    for gone in [1, 3] {
        table.leave(&a, places[gone]).run();
    }
    assert!(table.entries.is_empty());
}

#[test]
fn try_enters_only_where_nobody_is_ahead() {
    let (mut table, a) = (Table::new(), name("a"));
    let first = table
        .enter_if_free(&a, claim(None), |_| true)
        .unwrap()
        .expect("free");
    assert_eq!(
        table.enter_if_free(&a, claim(None), |_| true),
        Ok(None),
        "a waiter asks the server"
    );
    table.grant(&a, first, held(1, None)).unwrap().run();
    assert_eq!(
        table.enter_if_free(&a, claim(None), |_| true),
        Ok(None),
        "held"
    );
    assert!(
        table
            .enter_if_free(&a, claim(None), |_| false)
            .unwrap()
            .is_some(),
        "held, but it ran out"
    );
    assert!(
        table
            .enter_if_free(&name("b"), claim(None), |_| true)
            .unwrap()
            .is_some(),
        "another name"
    );
}

#[test]
fn the_same_owner_nests_from_anywhere_in_the_queue() {
    let (mut table, a) = (Table::new(), name("a"));
    let first = table.enter(&a, claim(Some(1))).unwrap();
    let stranger_place = table.enter(&a, claim(None)).unwrap();
    let other = table.enter(&a, claim(Some(2))).unwrap();
    let mine = table.enter(&a, claim(Some(1))).unwrap();
    let (counter, waker) = Counter::new();
    assert_eq!(table.position(&a, mine, &waker), Position::Queued);
    table.grant(&a, first, held(9, Some(1))).unwrap().run();
    assert_eq!(counter.wakes(), 1);
    assert_eq!(look(&mut table, &a, mine), Position::Nested(9));
    assert_eq!(look(&mut table, &a, stranger_place), Position::Behind(9));
    assert_eq!(look(&mut table, &a, other), Position::Queued);
}

#[test]
fn what_waiters_have_at_the_server_stays_until_the_last_one_leaves() {
    let (mut table, a) = (Table::new(), name("a"));
    let first = table.enter(&a, claim(None)).unwrap();
    let second = table.enter(&a, claim(None)).unwrap();
    *table.line(&a).unwrap() = "ticket";
    table.stand(7, &a);
    let mut after = table.leave(&a, first);
    assert_eq!(after.take_line(), None, "the second one goes on with it");
    after.run();
    assert_eq!(table.name_of(7), Some(&a));
    let mut after = table.leave(&a, second);
    assert_eq!(after.take_line(), Some("ticket"));
    after.run();
    assert!(table.entries.is_empty());
    table.unstand(7);
    assert_eq!(table.name_of(7), None);
}

#[test]
fn subscriptions_of_a_hold_go_with_its_entry() {
    let (mut table, a) = (Table::new(), name("a"));
    let first = table.enter(&a, claim(None)).unwrap();
    *table.line(&a).unwrap() = "subscription";
    table.grant(&a, first, held(1, None)).unwrap().run();
    assert_eq!(table.line(&a), Some(&mut "subscription"));
    let mut after = table.end(&a, 1);
    assert_eq!(after.take_line(), Some("subscription"));
    assert!(table.entries.is_empty());
}

#[test]
fn lanes_of_a_name_do_not_exclude_each_other_and_share_what_they_hear() {
    let mut table = Table::new();
    let whole = name("a");
    let lanes = [7, 3].map(|number| Arc::new(whole.lane(number)));
    assert!(lanes[0] != lanes[1] && lanes[0] != whole);
    assert_eq!(lanes[0], Arc::new(name("a").lane(7)));
    let places = lanes.each_ref().map(|lane| {
        let place = table.enter(lane, claim(None)).unwrap();
        assert_eq!(look(&mut table, lane, place), Position::Free);
        place
    });
    *table.line(&whole).unwrap() = "heard";
    *table.line(&lanes[0]).unwrap() = "seventh";
    assert!(table.lanes(&whole).eq([&lanes[1], &lanes[0]]));
    for (lane, ticket, score) in [(&lanes[0], 31, 100), (&lanes[1], 32, 200)] {
        table.stand(ticket, lane);
        let run = Some(0);
        table.rank(lane, Rank { run, score });
    }
    assert_eq!(table.first_in_run(&whole, 0), Some(&lanes[0]));
    assert_eq!(table.first_in_run(&whole, 1), None);
    assert_eq!(table.first_before(&lanes[1]).as_ref(), Some(&lanes[0]));
    assert_eq!(table.first_before(&lanes[0]), None);
    assert_eq!(table.next_behind(&lanes[0]).as_ref(), Some(&lanes[1]));
    table.unstand(31);
    assert_eq!(table.first_in_run(&whole, 0), Some(&lanes[1]));
    assert_eq!(table.first_before(&lanes[1]), None);

    table
        .grant(&lanes[0], places[0], held(9, None))
        .unwrap()
        .run();
    assert_eq!(look(&mut table, &lanes[1], places[1]), Position::Free);
    assert_eq!(table.holds(&whole), [9]);
    assert_eq!(table.holds(&lanes[1]), []);

    let mut after = table.leave(&lanes[1], places[1]);
    assert!(after.take_shared().is_none(), "one of them is left");
    let mut after = table.end(&lanes[0], 9);
    assert_eq!(after.take_line(), Some("seventh"));
    let (of, line) = after.take_shared().unwrap();
    assert_eq!((of, line), (whole, "heard"));
    after.run();
    assert!(table.entries.is_empty());
}

#[test]
fn shutdown_wakes_everybody_and_lets_nobody_in() {
    let (mut table, a) = (Table::new(), name("a"));
    let first = table.enter(&a, claim(None)).unwrap();
    table.grant(&a, first, held(1, None)).unwrap().run();
    let second = table.enter(&a, claim(None)).unwrap();
    let third = table.enter(&a, claim(None)).unwrap();
    let (counter, waker) = Counter::new();
    table.position(&a, second, &waker);
    table.position(&a, third, &waker);

    let Remains { wakers, holds, .. } = table.close();
    wakers.into_iter().for_each(Waker::wake);
    assert_eq!(counter.wakes(), 2);
    assert_eq!(holds, [1]);
    assert_eq!(look(&mut table, &a, second), Position::Closed);
    assert_eq!(table.enter(&a, claim(None)), Err(Closed));
    assert_eq!(table.enter_if_free(&a, claim(None), |_| true), Err(Closed));
    assert!(table.grant(&a, second, held(2, None)).is_err());

    table.leave(&a, second).run();
    table.leave(&a, third).run();
    table.end(&a, 1).run();
    assert!(table.entries.is_empty());
}

#[test]
fn the_failure_of_the_head_reaches_all_who_would_fail_like_it() {
    let (mut table, a) = (Table::new(), name("a"));
    let safe = Claim {
        replicas: Replicas::All,
        ..claim(None)
    };
    let head = table.enter(&a, claim(None)).unwrap();
    let same = table.enter(&a, claim(None)).unwrap();
    let other = table.enter(&a, safe).unwrap();
    let (counter, waker) = Counter::new();
    let (unconcerned, other_waker) = Counter::new();
    assert_eq!(table.position(&a, same, &waker), Position::Queued);
    assert_eq!(table.position(&a, other, &other_waker), Position::Queued);
    table.fail(&a, Replicas::None, || "down").run();
    assert_eq!((counter.wakes(), unconcerned.wakes()), (1, 0));
    assert_eq!(look(&mut table, &a, head), Position::Free, "it knows");
    assert_eq!(look(&mut table, &a, same), Position::Failed("down"));
    table.leave(&a, head).run();
    table.leave(&a, same).run();
    assert_eq!(look(&mut table, &a, other), Position::Free);
    table.leave(&a, other).run();
    assert!(table.entries.is_empty());
}

/// The last guard may be gone while its hold is still in the table.
#[test]
fn a_waiter_that_finds_a_hold_to_nest_with_is_woken_by_its_end() {
    let (mut table, a) = (Table::new(), name("a"));
    let first = table.enter(&a, claim(Some(7))).unwrap();
    table.grant(&a, first, held(1, Some(7))).unwrap().run();
    let next = table.enter(&a, claim(Some(7))).unwrap();
    let (counter, waker) = Counter::new();
    assert_eq!(table.position(&a, next, &waker), Position::Nested(1));
    table.end(&a, 1).run();
    assert_eq!(counter.wakes(), 1);
    assert_eq!(look(&mut table, &a, next), Position::Free);
}

#[test]
fn shared_holders_enter_together_and_an_exclusive_one_waits_for_all_of_them() {
    let (mut table, a) = (Table::new(), name("a"));
    let wants = |access| Claim {
        access,
        ..claim(None)
    };
    let has = |number, access| Held {
        number,
        claim: wants(access),
        hold: number,
    };
    let places = [
        Access::Shared,
        Access::Shared,
        Access::Exclusive,
        Access::Shared,
    ]
    .map(|access| table.enter(&a, wants(access)).unwrap());
    for (place, number) in [(places[0], 1), (places[1], 2)] {
        assert_eq!(look(&mut table, &a, place), Position::Free);
        table
            .grant(&a, place, has(number, Access::Shared))
            .unwrap()
            .run();
    }
    assert_eq!(
        look(&mut table, &a, places[2]),
        Position::Free,
        "it waits for them at the server"
    );
    assert_eq!(look(&mut table, &a, places[3]), Position::Queued);
    let exclusive = wants(Access::Exclusive);
    table.leave(&a, places[3]).run();
    table.leave(&a, places[2]).run();
    let at_once = |table: &mut Table| table.enter_if_free(&a, exclusive, |_| true).unwrap();
    assert_eq!(at_once(&mut table), None);
    table.end(&a, 1).run();
    assert_eq!(at_once(&mut table), None);
    table.end(&a, 2).run();

    let places =
        [Access::Exclusive, Access::Shared].map(|access| table.enter(&a, wants(access)).unwrap());
    table
        .grant(&a, places[0], has(3, Access::Exclusive))
        .unwrap()
        .run();
    let (counter, waker) = Counter::new();
    assert_eq!(table.position(&a, places[1], &waker), Position::Behind(3));
    table.convert(&a, 3, has(3, Access::Shared)).unwrap().run();
    assert_eq!(counter.wakes(), 1, "it is shared from now on");
    assert_eq!(look(&mut table, &a, places[1]), Position::Free);
}

#[test]
fn counted_holders_do_not_exclude_each_other_here() {
    let (mut table, a) = (Table::new(), name("a"));
    let permit = Claim {
        access: Access::Counted,
        ..claim(None)
    };
    for number in 1..=3 {
        let place = table.enter_if_free(&a, permit, |_| true).unwrap();
        let held = Held {
            number,
            claim: permit,
            hold: number,
        };
        let place = place.expect("the server has the count");
        table.grant(&a, place, held).unwrap().run();
    }
    assert_eq!(table.close().holds, [1, 2, 3]);
    for number in [2, 1, 3] {
        table.end(&a, number).run();
    }
    assert!(table.entries.is_empty());
}

/// Random steps of random waiters: whatever a waiter would see now it either saw when it looked last, or it was woken.
#[test]
fn no_wake_up_is_ever_lost() {
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move |n: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed % n as u64) as usize
    };
    for _ in 0..200 {
        let (mut table, a) = (Table::new(), name("a"));
        // Place, counter, its value and the position at the last look.
        let mut line: Vec<(u64, Arc<Counter>, usize, Seen)> = Vec::new();
        let mut holding: Option<u64> = None;
        let mut number = 0;
        for _ in 0..100 {
            match random(4) {
                0 => {
                    let place = table.enter(&a, claim(None)).unwrap();
                    let (counter, waker) = Counter::new();
                    let seen = table.position(&a, place, &waker);
                    line.push((place, counter, 0, seen));
                }
                1 if !line.is_empty() => {
                    let (place, ..) = line.remove(random(line.len()));
                    table.leave(&a, place).run();
                }
                2 if !line.is_empty() && holding.is_none() => {
                    let (place, ..) = line.remove(0);
                    number += 1;
                    table.grant(&a, place, held(number, None)).unwrap().run();
                    holding = Some(number);
                }
                _ => {
                    if let Some(number) = holding.take() {
                        table.end(&a, number).run();
                    }
                }
            }
            for (at, (place, counter, wakes_before, seen)) in line.iter_mut().enumerate() {
                let now = table.position(&a, *place, &Waker::from(Arc::clone(counter)));
                let right = match (at, holding) {
                    (1.., _) => Position::Queued,
                    (0, Some(number)) => Position::Behind(number),
                    (0, None) => Position::Free,
                };
                assert_eq!(now, right);
                assert!(
                    now == *seen || counter.wakes() > *wakes_before,
                    "from {seen:?} to {now:?} without a wake-up"
                );
                (*wakes_before, *seen) = (counter.wakes(), now);
            }
        }
    }
}
