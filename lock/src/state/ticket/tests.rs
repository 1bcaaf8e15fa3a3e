use super::*;
use crate::state::id::ClientId;

const G: Duration = GRANT_LEASE;
const T: u64 = 1_763_000_000_000_000;

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn here() -> Source {
    Source::for_tests(1)
}

fn ticket(now: Now) -> Ticket {
    let id = HoldId::new(&ClientId::random(), 7);
    Ticket::new(id, G, false, Mark::default(), now.monotonic)
}

const fn placed(place: u64, server_time: u64) -> Placed {
    Placed {
        held: ms(30_000),
        place,
        score: T,
        server_time,
        missing: false,
        run: None,
    }
}

/// In line behind nobody, as an answer says that was asked for at `now`.
fn standing(now: Now) -> Ticket {
    let mut ticket = ticket(now);
    ticket.asks(Some(here()));
    ticket.placed(placed(0, T), now, Some(here()), now.monotonic, 0);
    ticket
}

/// Granted at this time by the server, as it arrives at `receipt`.
const fn grant(at: u64, receipt: Now, source: Source) -> Grant {
    Grant {
        token: 42,
        at,
        lease: G,
        receipt,
        source,
    }
}

fn started(verdict: &Verdict) -> Option<Now> {
    match verdict {
        Verdict::Start { since, .. } => Some(*since),
        _ => None,
    }
}

#[test]
fn a_grant_counts_from_its_receipt_at_the_latest() {
    let sent = Now::read();
    let mut waiting = standing(sent);
    let receipt = sent.later_by(ms(500));
    // By the server's clock it was granted 600 ms after the answer: that is later than it arrived, by less than clocks may
    // differ in rate.
    waiting.granted(grant(T + 504_000, receipt, here()));
    let since = started(&waiting.judge(receipt, false)).expect("fresh");
    assert_eq!(
        since.monotonic,
        sent.later_by(Duration::from_micros(498_960)).monotonic
    );
}

#[test]
fn a_message_that_was_late_leaves_less() {
    let sent = Now::read();
    let mut waiting = standing(sent);
    // Granted 1 s after the answer, heard 700 ms later: the answer may have taken no time at all.
    let receipt = sent.later_by(ms(1_700));
    waiting.granted(grant(T + 1_000_000, receipt, here()));
    let since = started(&waiting.judge(receipt, false)).expect("300 ms are left");
    assert_eq!(since.monotonic, sent.later_by(ms(990)).monotonic);

    // 900 ms later there is too little left to begin without asking, and after the lease nothing.
    let receipt = sent.later_by(ms(1_900));
    waiting.granted(grant(T + 1_000_000, receipt, here()));
    assert!(matches!(waiting.judge(receipt, false), Verdict::Confirm));
    let receipt = sent.later_by(ms(2_100));
    waiting.granted(grant(T + 1_000_000, receipt, here()));
    assert!(matches!(waiting.judge(receipt, false), Verdict::Look));
}

#[test]
fn a_waiter_that_wakes_late_knows_it() {
    let sent = Now::read();
    let mut waiting = standing(sent);
    waiting.granted(grant(T + 1_000_000, sent.later_by(ms(1_001)), here()));
    let woken = sent.later_by(ms(9_000));
    assert!(matches!(waiting.judge(woken, false), Verdict::Look));
}

#[test]
fn a_grant_that_is_older_than_a_refusal_is_dropped() {
    let sent = Now::read();
    let mut waiting = standing(sent);
    waiting.granted(grant(T - 1, sent.later_by(ms(1)), here()));
    assert!(matches!(
        waiting.judge(sent.later_by(ms(1)), false),
        Verdict::Ignore
    ));
    assert!(!waiting.has_grant());
}

#[test]
fn a_grant_that_cannot_be_dated_is_confirmed() {
    let sent = Now::read();
    let receipt = sent.later_by(ms(10));
    let other = Source::for_tests(2);
    // Over another connection.
    let mut waiting = standing(sent);
    waiting.granted(grant(T + 9_000, receipt, other));
    assert!(matches!(waiting.judge(receipt, false), Verdict::Confirm));
    // Its answer was lost.
    let mut waiting = ticket(sent);
    waiting.asks(Some(here()));
    waiting.granted(grant(T + 9_000, receipt, here()));
    assert!(matches!(waiting.judge(receipt, false), Verdict::Confirm));
    // The server's clock stepped.
    let mut waiting = standing(sent);
    waiting.granted(grant(T + 5_000_000, receipt, here()));
    assert!(matches!(waiting.judge(receipt, false), Verdict::Confirm));
    // Replicas are to confirm it.
    let mut waiting = standing(sent);
    waiting.granted(grant(T + 9_000, receipt, here()));
    assert!(matches!(waiting.judge(receipt, true), Verdict::Confirm));
}

#[test]
fn the_newest_grant_counts_in_whatever_order_they_arrive() {
    let sent = Now::read();
    let receipt = sent.later_by(ms(10));
    let mut waiting = standing(sent);
    let newest = Grant {
        token: 43,
        ..grant(T + 9_000, receipt, here())
    };
    waiting.granted(newest);
    waiting.granted(grant(T + 1_000, receipt, here()));
    assert!(matches!(
        waiting.judge(receipt, false),
        Verdict::Start { token: 43, .. }
    ));
    assert!(matches!(waiting.judge(receipt, false), Verdict::Ignore));
}

#[test]
fn looks_are_rare_and_by_place() {
    let now = Now::read();
    let look_after = |place, held: u64| {
        let mut ticket = ticket(now);
        let placed = Placed {
            held: ms(held),
            ..placed(place, T)
        };
        ticket.placed(placed, now, Some(here()), now.monotonic, 0);
        ticket.look_at() - now.monotonic
    };
    assert_eq!(look_after(0, 30_000), ms(1_000));
    assert_eq!(look_after(4, 30_000), ms(3_000));
    assert_eq!(look_after(1_000_000, 30_000), ms(8_000));
    // At the end of the holder's lease, one behind the other.
    assert_eq!(look_after(0, 300), ms(320));
    assert_eq!(look_after(4, 300), ms(400));
    assert_eq!(look_after(1_000_000, 300), ms(640));
}

#[test]
fn a_fair_ticket_looks_at_least_every_two_seconds_and_when_the_grant_before_it_is_over() {
    let now = Now::read();
    let mut ticket = ticket(now).fair();
    let far = Placed {
        run: Some(3),
        ..placed(1_000_000, T)
    };
    ticket.placed(far, now, Some(here()), now.monotonic, 0);
    assert_eq!(ticket.look_at() - now.monotonic, ms(2_000));
    assert_eq!(ticket.run(), Some(3));
    ticket.is_next(ms(1_000), now.monotonic);
    assert_eq!(ticket.look_at() - now.monotonic, ms(1_020));
    ticket.is_next(ms(5_000), now.monotonic);
    assert_eq!(ticket.look_at() - now.monotonic, ms(1_020));
}

#[test]
fn a_ticket_that_goes_missing_twice_goes_to_the_end() {
    let now = Now::read();
    let mut ticket = standing(now);
    let missing = Placed {
        missing: true,
        ..placed(0, T)
    };
    assert_eq!(ticket.score(), Some(T));
    ticket.placed(missing, now, Some(here()), now.monotonic, 0);
    assert_eq!(ticket.score(), None, "next time at the end");
    ticket.placed(placed(3, T), now, Some(here()), now.monotonic, 0);
    assert_eq!(ticket.score(), Some(T), "it was there");

    // After a reconnect it is missing for a reason.
    ticket.placed(missing, now, Some(here()), now.monotonic, 0);
    assert!(ticket.subscribed(Source::for_tests(2), now.monotonic));
    assert_eq!(ticket.score(), Some(T));
}

#[test]
fn a_subscription_behind_which_it_was_sent_misses_nothing() {
    let now = Now::read();
    let mut ticket = standing(now);
    let look_at = ticket.look_at();
    assert!(!ticket.subscribed(here(), now.monotonic));
    assert_eq!(ticket.look_at(), look_at);
    assert!(ticket.subscribed(Source::for_tests(2), now.monotonic));
    assert_eq!(ticket.look_at(), now.monotonic);
}

#[test]
fn redisson_has_its_turn_before_the_first_look() {
    let now = Now::read();
    let mut ticket = standing(now);
    ticket.released_by_redisson(now.monotonic);
    assert_eq!(ticket.look_at() - now.monotonic, ms(5));
    ticket.asks(None);
    ticket.placed(placed(3, T), now, None, now.monotonic, 0);
    ticket.released_by_redisson(now.monotonic);
    assert_eq!(ticket.look_at() - now.monotonic, ms(20));
}

#[test]
fn what_is_heard_while_a_look_is_under_way_is_not_undone_by_its_answer() {
    let now = Now::read();
    let mut ticket = standing(now);
    ticket.asks(Some(here()));
    ticket.released_by_redisson(now.monotonic);
    // The answer was given before the release: the lock was held then.
    ticket.placed(placed(0, T), now, Some(here()), now.monotonic + ms(1), 0);
    assert_eq!(ticket.look_at(), now.monotonic + AFTER_REDISSON);

    // That look is sent now, and what it says is newer.
    ticket.asks(Some(here()));
    let answered = now.monotonic + ms(7);
    ticket.placed(placed(0, T), now, Some(here()), answered, 0);
    assert!(ticket.look_at() > answered + ms(500));

    // The same with a subscription that began meanwhile.
    ticket.asks(Some(here()));
    ticket.look_now(answered);
    ticket.placed(placed(0, T), now, Some(here()), answered + ms(1), 0);
    assert_eq!(ticket.look_at(), answered);
}

#[test]
fn a_hold_that_is_passed_on_begins_at_once_while_its_lease_lasts() {
    let now = Now::read();
    let id = HoldId::new(&ClientId::random(), 7);
    let passed = Passed {
        since: now,
        lease: ms(300),
        token: 43,
    };
    let mut ticket = Ticket::of_hold(id, passed, now.monotonic);
    assert!(ticket.has_grant());
    // Also where replicas confirm: they have confirmed this hold.
    assert!(matches!(
        ticket.judge(now.later_by(ms(10)), true),
        Verdict::Start { token: 43, .. }
    ));
    let mut ticket = Ticket::of_hold(id, passed, now.monotonic);
    assert!(matches!(
        ticket.judge(now.later_by(ms(300)), false),
        Verdict::Over
    ));
}

#[test]
fn the_text_names_a_grant_lease_that_is_not_the_usual_one() {
    let id = HoldId::new(&ClientId::random(), u64::MAX);
    let text = |lease| {
        let text = TicketText::new(&id, lease, false, Mark::default(), false);
        text.as_bytes().to_vec()
    };
    assert_eq!(text(G), id.as_bytes());
    let with_block = TicketText::new(&id, ms(20_000), true, Mark::default(), false);
    assert_eq!(with_block.as_bytes(), [id.as_bytes(), b"|20000+"].concat());
    for (lease, suffix) in [(ms(10), "|10"), (ms(20_000), "|20000")] {
        let expected = [id.as_bytes(), suffix.as_bytes()].concat();
        assert_eq!(text(lease), expected);
    }
    let mark = |letter, permits| TicketText::new(&id, G, false, Mark { letter, permits }, false);
    assert_eq!(mark("w", 0).as_bytes(), [id.as_bytes(), b"w"].concat());
    assert_eq!(mark("p", 12).as_bytes(), [id.as_bytes(), b"p12"].concat());
    let longest = Mark {
        letter: "p",
        permits: u32::MAX,
    };
    let longest = TicketText::new(&id, ms(20_000), true, longest, true);
    assert!(longest.as_bytes().ends_with(b"|020000+p4294967295"));
}

#[test]
fn a_ticket_that_is_polled_says_so_and_looks_by_its_backoff() {
    let id = HoldId::new(&ClientId::random(), 7);
    let (now, backoff) = (Now::read(), Backoff::new(ms(10), ms(40)));
    let new = || Ticket::new(id, G, false, Mark::default(), now.monotonic);
    assert!(!new().polled(None).is_polled());
    let mut ticket = new().polled(Some(backoff));
    assert!(ticket.is_polled());
    let expected = [id.as_bytes(), b"|01000"].concat();
    assert_eq!(ticket.text().as_bytes(), expected);
    // Whatever its place and the lease of the holder are.
    for (looks, pause) in [(0, 10), (1, 20), (2, 40), (3, 40)] {
        ticket.asks(None);
        ticket.placed(placed(looks, T), now, None, now.monotonic, 0);
        assert_eq!(ticket.look_at(), now.monotonic + ms(pause));
    }
    ticket.not_placed(ms(9_000), now.monotonic);
    assert_eq!(ticket.look_at(), now.monotonic + ms(40));
}

#[test]
fn a_grant_lease_is_some_round_trips_and_no_more_than_the_lease() {
    assert_eq!(grant_lease(ms(30_000), ms(1)), G);
    assert_eq!(grant_lease(ms(30_000), ms(300)), ms(1_200));
    assert_eq!(grant_lease(ms(300), ms(1)), ms(300));
    assert_eq!(grant_lease(ms(30_000), ms(3_600_000)), ms(20_000));
}

#[test]
fn an_answer_that_may_be_older_than_the_subscription_is_followed_by_a_look() {
    let now = Now::read();
    let answered = now.monotonic + ms(3);
    let look_after = |source| {
        let mut waiting = ticket(now);
        waiting.asks(None);
        assert!(waiting.subscribed(here(), now.monotonic + ms(2)));
        waiting.placed(placed(0, T), now, source, answered, 0);
        waiting.look_at()
    };
    assert_eq!(look_after(None), answered);
    assert_eq!(look_after(Some(Source::for_tests(2))), answered);
    assert_eq!(look_after(Some(here())), answered + G, "behind it");
}

#[test]
fn an_older_token_replaces_none_that_was_told() {
    let mut waiting = ticket(Now::read());
    assert_eq!([7, 5, 9].map(|token| waiting.told(token)), [7, 7, 9]);
}

#[test]
fn a_ticket_that_was_told_to_look_is_missing_for_that_reason() {
    let now = Now::read();
    let mut ticket = standing(now);
    for _ in 0..3 {
        ticket.told_to_look(T - 1, now.monotonic);
        assert_eq!(ticket.look_at(), now.monotonic);
        assert_eq!(ticket.score(), Some(T));
        ticket.asks(Some(here()));
        let missing = Placed {
            missing: true,
            ..placed(0, T)
        };
        ticket.placed(missing, now, Some(here()), now.monotonic, 0);
    }
    assert_eq!(ticket.score(), Some(T), "it keeps its place");
}

/// The message overtakes the answer to a request that was there before: the task has not seen that yet.
#[test]
fn what_was_told_after_an_answer_is_not_forgotten_with_it() {
    let now = Now::read();
    let told: [fn(&mut Ticket, Instant); 4] = [
        |ticket, now| ticket.told_to_look(T + 5, now),
        |ticket, now| ticket.permits_released(now),
        |ticket, now| ticket.released_by_redisson(now),
        |ticket, now| ticket.is_next(ms(20), now),
    ];
    for tell in told {
        let mut ticket = ticket(now);
        ticket.asks(Some(here()));
        tell(&mut ticket, now.monotonic);
        let missing = Placed {
            missing: true,
            ..placed(0, T)
        };
        ticket.placed(missing, now, Some(here()), now.monotonic, 0);
        assert!(ticket.look_at() < now.monotonic + ms(100));
        // That look finds what it was told of, and then there is nothing more.
        ticket.asks(Some(here()));
        let found = Placed {
            missing: true,
            ..placed(0, T + 10)
        };
        ticket.placed(found, now, Some(here()), now.monotonic, 0);
        assert!(ticket.look_at() >= now.monotonic + ms(100));
    }
    let mut ticket = standing(now);
    ticket.asks(Some(here()));
    ticket.told_to_look(T + 15, now.monotonic);
    ticket.placed(placed(0, T + 10), now, Some(here()), now.monotonic, 0);
    let missing = Placed {
        missing: true,
        ..placed(0, T + 20)
    };
    ticket.placed(missing, now, Some(here()), now.monotonic, 0);
    assert_eq!(ticket.score(), Some(T), "it keeps its place");
}

#[test]
fn permits_that_redisson_released_are_for_the_first_in_line() {
    let now = Now::read();
    let mut first = standing(now);
    first.permits_released(now.monotonic);
    assert_eq!(first.look_at(), now.monotonic);
    let mut second = ticket(now);
    second.asks(Some(here()));
    second.placed(placed(1, T), now, Some(here()), now.monotonic, 0);
    let look_at = second.look_at();
    second.permits_released(now.monotonic);
    assert_eq!(second.look_at(), look_at);
}

#[test]
fn a_ticket_rests_while_one_ahead_of_it_looks_for_both() {
    let now = Now::read();
    let at = now.monotonic;
    let in_line = |place| {
        let mut ticket = ticket(now).fair();
        ticket.asks(Some(here()));
        let was_lost = ticket.placed(placed(place, T), now, Some(here()), at, 0);
        assert!(!was_lost);
        ticket
    };
    let (first, mut second) = (in_line(0), in_line(1));
    let ahead = first.lookout(at).unwrap();
    assert!(second.rest(ahead, at + ms(1_500)));
    assert_eq!(second.look_at(), at + ms(3_500));
    // The first one should have looked long ago, or did not come for what it was granted.
    assert_eq!(first.lookout(at + ms(2_000)), None);
    let mut granted = in_line(0);
    granted.granted(grant(T, now, here()));
    assert_eq!(granted.lookout(at), None);

    // It looks for itself at what concerns it alone.
    assert!(!ticket(now).rest(ahead, at), "it is not in line yet");
    let concerned: [fn(&mut Ticket, Instant); 4] = [
        |ticket, at| ticket.look_now(at),
        |ticket, at| ticket.is_next(G, at),
        |ticket, at| ticket.released_by_redisson(at),
        |ticket, at| assert!(ticket.subscribed(Source::for_tests(2), at)),
    ];
    for concern in concerned {
        let mut second = in_line(1);
        concern(&mut second, at);
        assert!(!second.rest(ahead, at));
        second.asks(Some(Source::for_tests(2)));
        second.placed(placed(1, T), now, Some(here()), at, 0);
        assert!(second.rest(ahead, at), "it has looked");
    }

    // One that was not put in line rests while the first one is not either.
    second.not_placed(ms(9_000), at);
    assert_eq!(
        second.rank(),
        Rank {
            run: None,
            score: T
        }
    );
    assert!(!second.rest(ahead, at));
    let mut out = in_line(0);
    out.not_placed(ms(9_000), at);
    assert!(second.rest(out.lookout(at).unwrap(), at));
}

#[test]
fn a_ticket_that_went_missing_says_so_unless_it_was_told_to_look() {
    let now = Now::read();
    let missing = Placed {
        missing: true,
        ..placed(0, T)
    };
    let mut first = ticket(now);
    assert_eq!(first.rank(), Rank::NONE);
    let is_lost = |ticket: &mut Ticket| ticket.placed(missing, now, None, now.monotonic, 0);
    assert!(!is_lost(&mut first), "it is new");
    assert!(is_lost(&mut first));
    first.told_to_look(T, now.monotonic);
    assert!(!is_lost(&mut first));
}
