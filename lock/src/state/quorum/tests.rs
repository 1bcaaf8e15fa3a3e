use super::*;
use crate::options::Replicas;
use crate::state::jitter::Jitter;

const LEASE: Duration = ms(1_000);
/// The part of it that is trusted.
const TRUSTED: Duration = ms(988);

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn terms() -> Terms {
    Terms {
        lease: LEASE,
        renew: true,
        max_hold: None,
        at_least: None,
        replicas: Replicas::None,
    }
}

fn quorum(nodes: usize, since: Now) -> Quorum {
    Quorum::new(nodes, terms(), since)
}

/// One of five nodes that all granted at once.
fn held(start: Now) -> Quorum {
    let mut quorum = quorum(5, start);
    (0..5).for_each(|node| quorum.granted(node, start, LEASE, 10 + node as u64));
    quorum
}

#[test]
fn a_majority_decides_as_soon_as_it_is_there() {
    let start = Now::read();
    for (nodes, needed) in [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (6, 4), (7, 4)] {
        let mut quorum = quorum(nodes, start);
        assert_eq!(quorum.needed(), needed);
        for node in 0..needed {
            assert_eq!(quorum.outcome(start), Outcome::Open);
            quorum.granted(node, start, LEASE, 1);
        }
        assert_eq!(quorum.outcome(start), Outcome::Granted, "of {nodes}");
        let mut refused = self::quorum(nodes, start);
        for node in 0..=nodes - needed {
            assert_eq!(refused.outcome(start), Outcome::Open);
            refused.refused(node);
        }
        assert_eq!(refused.outcome(start), Outcome::Impossible, "of {nodes}");
    }
}

#[test]
fn it_lasts_until_the_deadline_of_the_last_node_that_a_majority_needs() {
    let start = Now::read();
    let mut quorum = quorum(5, start);
    for (node, late) in [(0, 0), (1, 40), (2, 10)] {
        quorum.granted(node, start.later_by(ms(late)), LEASE, 1);
    }
    assert_eq!(quorum.left(start), TRUSTED, "the earliest of three of five");
    quorum.granted(3, start.later_by(ms(20)), LEASE, 1);
    assert_eq!(quorum.left(start), TRUSTED + ms(10), "the third of four");
    let now = start.later_by(TRUSTED + ms(10));
    assert_eq!(quorum.check(now), Some(LostReason::Expired));
}

#[test]
fn grants_that_come_when_the_lease_is_over_are_no_hold() {
    let start = Now::read();
    let mut quorum = quorum(3, start);
    quorum.granted(0, start, LEASE, 1);
    let late = start.later_by(TRUSTED);
    assert_eq!(quorum.outcome(late), Outcome::Open);
    quorum.granted(1, start, LEASE, 1);
    assert_eq!(quorum.outcome(late), Outcome::Impossible);
}

#[test]
fn a_silent_minority_costs_nothing_and_a_silent_majority_the_lock() {
    let start = Now::read();
    let mut quorum = held(start);
    let mut now = start;
    for _ in 0..10 {
        now = now.later_by(ms(300));
        let renewed = (0..3).filter_map(|node| quorum.renewed(node, now, LEASE, now));
        assert_eq!(renewed.count(), 1, "a round is one renewal");
        assert_eq!(quorum.check(now), None);
    }
    assert_eq!(quorum.left(now), TRUSTED);
    // Two of them go silent.
    let end = now.later_by(TRUSTED);
    quorum.renewed(0, now.later_by(ms(300)), LEASE, now.later_by(ms(301)));
    assert_eq!(quorum.left(now), TRUSTED, "one renewal is no majority");
    assert_eq!(quorum.check(end), Some(LostReason::Expired));
}

#[test]
fn what_a_node_forgot_counts_again_once_it_was_renewed() {
    let start = Now::read();
    let mut quorum = held(start);
    for node in [0, 1] {
        quorum.forgot(node);
        assert_eq!(quorum.check(start), None);
    }
    // Taken again: that changes nothing. Renewed: it counts, and another one may go.
    quorum.renewed(0, start.later_by(ms(300)), LEASE, start.later_by(ms(301)));
    quorum.forgot(2);
    assert_eq!(quorum.check(start.later_by(ms(302))), None);
    quorum.forgot(3);
    assert_eq!(
        quorum.check(start.later_by(ms(303))),
        Some(LostReason::NoMajority)
    );
}

#[test]
fn an_answer_after_the_end_revives_nothing() {
    let start = Now::read();
    let mut quorum = held(start);
    let late = start.later_by(TRUSTED + ms(1));
    let sent = start.later_by(ms(900));
    assert!((0..5).all(|node| quorum.renewed(node, sent, LEASE, late).is_none()));
    assert_eq!(quorum.check(late), Some(LostReason::Expired));
    let mut ended = held(start);
    assert!(ended.end(LostReason::Released));
    assert!(!ended.end(LostReason::Expired));
    ended.granted(0, start, LEASE, 1);
    ended.renewed(1, start, LEASE, start);
    assert!(ended.left(start).is_zero());
    assert_eq!(ended.check(start), Some(LostReason::Released));
}

#[test]
fn the_token_is_above_every_counter_and_counts_at_a_majority() {
    let start = Now::read();
    let mut quorum = held(start);
    assert_eq!(quorum.token(), 15);
    quorum.fenced(4);
    quorum.fenced(4);
    quorum.fenced(0);
    assert!(!quorum.is_fenced());
    quorum.fenced(2);
    assert!(quorum.is_fenced());
}

#[test]
fn the_longest_hold_has_a_reason_of_its_own() {
    let start = Now::read();
    let max_hold = Some(ms(1_500));
    let mut quorum = Quorum::new(
        3,
        Terms {
            max_hold,
            at_least: None,
            ..terms()
        },
        start,
    );
    (0..3).for_each(|node| quorum.granted(node, start, LEASE, 1));
    let sent = start.later_by(ms(800));
    let lease = quorum.next_lease(sent).expect("some is left");
    assert_eq!(lease, ms(700));
    for node in 0..3 {
        quorum.renewed(node, sent, lease, sent);
    }
    assert_eq!(quorum.next_lease(start.later_by(ms(1_500))), None);
    let end = start.later_by(ms(1_500));
    assert_eq!(quorum.check(end), Some(LostReason::MaxHold));
}

/// Random events, against the definition: a majority of nodes, each of which was last heard of less than a trusted lease ago.
#[test]
fn random_events_agree_with_the_definition() {
    for seed in 0..2_000 {
        let chance = Jitter::new(seed * 2_654_435_761 + 12_345);
        let start = Now::read();
        let nodes = 1 + chance.below(7) as usize;
        let mut quorum = quorum(nodes, start);
        let mut known: Vec<Option<Duration>> = vec![None; nodes];
        for (node, known) in known.iter_mut().enumerate() {
            let sent = ms(chance.below(20));
            quorum.granted(node, start.later_by(sent), LEASE, 1);
            *known = Some(sent);
        }
        let (mut at, mut is_over) = (ms(20), false);
        for _ in 0..60 {
            at += ms(chance.below(200));
            let node = chance.below(nodes as u64) as usize;
            let now = start.later_by(at);
            let is_trusted =
                |sent: &&Option<Duration>| sent.is_some_and(|sent| sent + TRUSTED > at);
            is_over |= known.iter().filter(is_trusted).count() < nodes / 2 + 1;
            assert_eq!(quorum.check(now).is_some(), is_over, "seed {seed}");
            match chance.below(10) {
                0 => {
                    quorum.forgot(node);
                    known[node] = None;
                }
                1..=3 => {}
                _ => {
                    let sent = at.saturating_sub(ms(chance.below(30)));
                    quorum.renewed(node, start.later_by(sent), LEASE, now);
                    if !is_over {
                        known[node] = known[node].max(Some(sent));
                    }
                }
            }
            is_over |= known.iter().filter(is_trusted).count() < nodes / 2 + 1;
            assert_eq!(quorum.left(now).is_zero(), is_over, "seed {seed}");
        }
    }
}
