use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;

use super::*;

type Table = Waiters<u64, &'static str>;

/// Counts how often it is woken.
#[derive(Default)]
struct Bell(AtomicUsize);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Bell {
    fn new() -> (Arc<Self>, Waker) {
        let bell = Arc::<Self>::default();
        (Arc::clone(&bell), Waker::from(bell))
    }

    fn rang(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

fn name(text: &str) -> Arc<Name> {
    Arc::new(Name::new(None, text))
}

fn held(number: u64, owner: Option<u64>) -> Held<u64> {
    Held {
        number,
        owner,
        hold: number,
    }
}

fn look(table: &mut Table, name: &Arc<Name>, ticket: u64) -> Look<u64> {
    table.look(name, ticket, Waker::noop())
}

#[test]
fn an_uncontended_lock_leaves_nothing_behind() {
    let (mut table, a) = (Table::new(), name("a"));
    let ticket = table.enter(&a, None).unwrap();
    assert_eq!(look(&mut table, &a, ticket), Look::Free);
    table.grant(&a, ticket, held(1, None), None).unwrap().run();
    assert_eq!(table.entries.len(), 1);
    table.end(&a, 1).run();
    assert!(table.entries.is_empty());
}

#[test]
fn only_the_head_contends_and_the_next_one_is_woken_when_it_leaves() {
    let (mut table, a) = (Table::new(), name("a"));
    let first = table.enter(&a, None).unwrap();
    let second = table.enter(&a, None).unwrap();
    let third = table.enter(&a, None).unwrap();
    let (bell, waker) = Bell::new();
    assert_eq!(look(&mut table, &a, first), Look::Free);
    assert_eq!(table.look(&a, second, &waker), Look::Queued);
    assert_eq!(look(&mut table, &a, third), Look::Queued);

    table.leave(&a, first, None).run();
    assert_eq!(bell.rang(), 1);
    assert_eq!(look(&mut table, &a, second), Look::Free);
    assert_eq!(look(&mut table, &a, third), Look::Queued);
}

#[test]
fn the_next_one_is_woken_when_the_local_hold_ends() {
    let (mut table, a) = (Table::new(), name("a"));
    let first = table.enter(&a, None).unwrap();
    let second = table.enter(&a, None).unwrap();
    let (bell, waker) = Bell::new();
    table.look(&a, second, &waker);
    table.grant(&a, first, held(7, None), None).unwrap().run();
    assert_eq!(bell.rang(), 1, "it must watch over the hold now");
    assert_eq!(table.look(&a, second, &waker), Look::Behind(7));

    table.end(&a, 6).run();
    assert_eq!(bell.rang(), 1, "another hold ended");
    table.end(&a, 7).run();
    assert_eq!(bell.rang(), 2);
    assert_eq!(table.look(&a, second, &waker), Look::Free);
}

#[test]
fn a_late_end_of_an_old_hold_does_not_free_the_new_one() {
    let (mut table, a) = (Table::new(), name("a"));
    for number in [1, 2] {
        let ticket = table.enter(&a, None).unwrap();
        table
            .grant(&a, ticket, held(number, None), None)
            .unwrap()
            .run();
    }
    table.end(&a, 1).run();
    assert_eq!(table.entries.len(), 1);
    table.end(&a, 2).run();
    assert!(table.entries.is_empty());
}

#[test]
fn waiters_who_vanish_from_the_middle_lose_nobody_elses_turn() {
    let (mut table, a) = (Table::new(), name("a"));
    let tickets: Vec<u64> = (0..5).map(|_| table.enter(&a, None).unwrap()).collect();
    for gone in [2, 4, 0] {
        table.leave(&a, tickets[gone], None).run();
    }
    assert_eq!(look(&mut table, &a, tickets[1]), Look::Free);
    assert_eq!(look(&mut table, &a, tickets[3]), Look::Queued);
    for gone in [1, 3] {
        table.leave(&a, tickets[gone], None).run();
    }
    assert!(table.entries.is_empty());
}

#[test]
fn try_enters_only_where_nobody_is_ahead() {
    let (mut table, a) = (Table::new(), name("a"));
    let first = table
        .enter_if_free(&a, None, |_| true)
        .unwrap()
        .expect("free");
    assert_eq!(
        table.enter_if_free(&a, None, |_| true),
        Ok(None),
        "somebody asks the server"
    );
    table.grant(&a, first, held(1, None), None).unwrap().run();
    assert_eq!(table.enter_if_free(&a, None, |_| true), Ok(None), "held");
    assert!(
        table.enter_if_free(&a, None, |_| false).unwrap().is_some(),
        "held, but it ran out"
    );
    assert!(
        table
            .enter_if_free(&name("b"), None, |_| true)
            .unwrap()
            .is_some(),
        "another name"
    );
}

#[test]
fn the_same_owner_nests_from_anywhere_in_the_queue() {
    let (mut table, a) = (Table::new(), name("a"));
    let first = table.enter(&a, Some(1)).unwrap();
    let stranger = table.enter(&a, None).unwrap();
    let other = table.enter(&a, Some(2)).unwrap();
    let mine = table.enter(&a, Some(1)).unwrap();
    let (bell, waker) = Bell::new();
    assert_eq!(table.look(&a, mine, &waker), Look::Queued);
    table
        .grant(&a, first, held(9, Some(1)), None)
        .unwrap()
        .run();
    assert_eq!(bell.rang(), 1);
    assert_eq!(look(&mut table, &a, mine), Look::Nested(9));
    assert_eq!(look(&mut table, &a, stranger), Look::Behind(9));
    assert_eq!(look(&mut table, &a, other), Look::Queued);
}

#[test]
fn the_ears_stay_with_the_entry_and_go_with_it() {
    let (mut table, a) = (Table::new(), name("a"));
    let first = table.enter(&a, None).unwrap();
    let second = table.enter(&a, None).unwrap();
    table
        .grant(&a, first, held(1, None), Some("ears"))
        .unwrap()
        .run();
    assert!(table.listens(&a));
    table.end(&a, 1).run();
    assert_eq!(table.take_ears(&a), Some("ears"));
    assert!(!table.listens(&a));
    let after = table.leave(&a, second, Some("ears"));
    assert_eq!(
        after.ears,
        Some("ears"),
        "the last one out takes them along"
    );
    assert!(table.entries.is_empty());
}

#[test]
fn shutdown_wakes_everybody_and_lets_nobody_in() {
    let (mut table, a) = (Table::new(), name("a"));
    let first = table.enter(&a, None).unwrap();
    table.grant(&a, first, held(1, None), None).unwrap().run();
    let second = table.enter(&a, None).unwrap();
    let third = table.enter(&a, None).unwrap();
    let (bell, waker) = Bell::new();
    table.look(&a, second, &waker);
    table.look(&a, third, &waker);

    let (wakers, holds) = table.close();
    wakers.into_iter().for_each(Waker::wake);
    assert_eq!(bell.rang(), 2);
    assert_eq!(holds, [1]);
    assert_eq!(look(&mut table, &a, second), Look::Closed);
    assert_eq!(table.enter(&a, None), Err(Closed));
    assert_eq!(table.enter_if_free(&a, None, |_| true), Err(Closed));
    assert!(table.grant(&a, second, held(2, None), None).is_err());

    table.leave(&a, second, None).run();
    table.leave(&a, third, None).run();
    table.end(&a, 1).run();
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
        // Ticket, bell, how often it had rung and what was seen at the last look.
        let mut line: Vec<(u64, Arc<Bell>, usize, Look<u64>)> = Vec::new();
        let mut holding: Option<u64> = None;
        let mut number = 0;
        for _ in 0..100 {
            match random(4) {
                0 => {
                    let ticket = table.enter(&a, None).unwrap();
                    let (bell, waker) = Bell::new();
                    let seen = table.look(&a, ticket, &waker);
                    line.push((ticket, bell, 0, seen));
                }
                1 if !line.is_empty() => {
                    let (ticket, ..) = line.remove(random(line.len()));
                    table.leave(&a, ticket, None).run();
                }
                2 if !line.is_empty() && holding.is_none() => {
                    let (ticket, ..) = line.remove(0);
                    number += 1;
                    table
                        .grant(&a, ticket, held(number, None), None)
                        .unwrap()
                        .run();
                    holding = Some(number);
                }
                _ => {
                    if let Some(number) = holding.take() {
                        table.end(&a, number).run();
                    }
                }
            }
            for (at, (ticket, bell, rang, seen)) in line.iter_mut().enumerate() {
                let now = table.look(&a, *ticket, &Waker::from(Arc::clone(bell)));
                let right = match (at, holding) {
                    (1.., _) => Look::Queued,
                    (0, Some(number)) => Look::Behind(number),
                    (0, None) => Look::Free,
                };
                assert_eq!(now, right);
                assert!(
                    now == *seen || bell.rang() > *rang,
                    "from {seen:?} to {now:?} without a wake-up"
                );
                (*rang, *seen) = (bell.rang(), now);
            }
        }
    }
}
