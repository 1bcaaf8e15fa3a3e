//! The record of lines, and the checker's rules for tickets: histories written by hand, real
//! clients with a known flaw, and the library itself, whose record must be the server's state.

use std::time::Duration;

use leasehold::Locks;
use leasehold_testkit::broken_line::{self, LineFlaw, workload};
use leasehold_testkit::checker::{Limits, Report, check};
use leasehold_testkit::history::{self, Change, Effect, Event, Mode, Recorder, Ticket, What};
use leasehold_testkit::line_watch::LineWatch;
use leasehold_testkit::{Scratch, Server, ms, until};
use tokio::task::JoinSet;

const LIMITS: Limits = Limits {
    lease: Duration::from_secs(1),
    loss_notice: Duration::from_secs(1),
    handoff: Duration::from_secs(10),
    overrun: Duration::from_secs(1),
    cleanup: Duration::from_secs(1),
};

/// A history of the line for `k` at one server, in milliseconds.
#[derive(Default)]
struct History {
    events: Vec<Event>,
}

impl History {
    fn known() -> Self {
        Self::default().line(
            0,
            Change::Known {
                holder: None,
                tickets: Vec::new(),
            },
        )
    }

    fn at(mut self, ms: u64, process: u32, what: What) -> Self {
        self.events.push(Event {
            at: ms * 1_000,
            process,
            client: "c".into(),
            what,
        });
        self
    }

    fn line(self, ms: u64, change: Change) -> Self {
        let what = What::Line {
            server: "s".into(),
            key: "k".into(),
            when: ms * 1_000,
            change,
        };
        self.at(ms, 0, what)
    }

    /// A ticket joins; its score is the time.
    fn joins(self, ms: u64, hold: &str) -> Self {
        let hold = hold.into();
        self.line(ms, Change::Joined(Ticket { hold, score: ms }))
    }

    fn granted(self, ms: u64, hold: &str, token: u64, score: u64) -> Self {
        let change = Change::Granted {
            hold: hold.into(),
            token,
            score: Some(score),
        };
        self.line(ms, change)
    }

    fn taken(self, ms: u64, hold: &str, is_alone: bool) -> Self {
        let change = Change::Taken {
            hold: hold.into(),
            score: None,
            is_alone,
        };
        self.line(ms, change)
    }

    fn ended(self, ms: u64, hold: &str) -> Self {
        let change = Change::Ended {
            hold: hold.into(),
            is_alone: false,
        };
        self.line(ms, change)
    }

    fn expired(self, ms: u64, hold: &str) -> Self {
        self.line(ms, Change::Expired { hold: hold.into() })
    }

    fn skipped(self, ms: u64, hold: &str) -> Self {
        let change = Change::Left {
            hold: hold.into(),
            is_skipped: true,
        };
        self.line(ms, change)
    }

    /// A process is told of the grant with this token.
    fn claims(self, ms: u64, process: u32, token: u64) -> Self {
        let invoke = What::Invoke {
            call: token,
            key: "k".into(),
            mode: Mode::Exclusive,
            waits: true,
            bound: None,
        };
        let ok = What::Ok {
            call: token,
            hold: format!("{process}:{token}"),
            token,
            valid_until: ms * 1_000 + 1_000,
        };
        let release = What::Drop {
            hold: format!("{process}:{token}"),
        };
        self.at(ms, process, invoke)
            .at(ms, process, ok)
            .at(ms + 1, process, release)
    }

    fn fault(self, from: u64, to: u64, effect: Effect) -> Self {
        let start = What::FaultStart {
            id: 0,
            kind: "fault".into(),
            effect,
        };
        self.at(from, 9, start).at(to, 9, What::FaultEnd { id: 0 })
    }

    fn report(mut self) -> Report {
        self.events.sort_by_key(|event| event.at);
        check(&self.events, &LIMITS)
    }
}

#[track_caller]
fn assert_breaks(history: History, invariant: &str) {
    let report = history.report();
    assert!(report.broken().contains(invariant), "{report}");
}

#[test]
fn grants_in_the_order_of_the_line_are_clean() {
    let history = History::known()
        .taken(1, "a:1", false)
        .joins(2, "b:1")
        .joins(3, "c:1")
        .ended(4, "a:1")
        .granted(4, "b:1", 1, 2)
        .claims(5, 2, 1)
        .joins(6, "a:2")
        .ended(7, "b:1")
        .granted(7, "c:1", 2, 3)
        .claims(8, 3, 2)
        .ended(9, "c:1");
    let report = history.report();
    report.assert_clean();
    assert_eq!((report.lines.joined, report.lines.granted), (3, 2));
    assert_eq!(report.lines.longest, 2);
}

#[test]
fn i21_a_ticket_that_is_passed_over() {
    let line = || History::known().joins(2, "b:1").joins(3, "c:1");
    assert_breaks(line().granted(4, "c:1", 1, 3).claims(5, 3, 1), "I21");
    assert_breaks(line().taken(4, "new:1", false), "I21");
    // Nothing is concluded across a gap of the record.
    line()
        .line(4, Change::Unknown)
        .taken(5, "new:1", false)
        .report()
        .assert_clean();
}

#[test]
fn i21_each_expiry_lets_one_newcomer_by() {
    let line = || {
        History::known()
            .taken(1, "a:1", false)
            .joins(2, "b:1")
            .expired(5, "a:1")
            .taken(6, "new:1", false)
    };
    line().report().assert_clean();
    assert_breaks(line().ended(7, "new:1").taken(8, "new:2", false), "I21");
}

#[test]
fn i21_a_server_that_has_lost_the_holder_lets_one_by() {
    let line = |holder: Option<&str>| {
        let ticket = Ticket {
            hold: "b:1".into(),
            score: 1,
        };
        let known = Change::Known {
            holder: holder.map(String::from),
            tickets: vec![ticket],
        };
        History::default().line(1, known)
    };
    let lost = || line(None).taken(2, "new:1", false);
    lost().report().assert_clean();
    assert_breaks(lost().ended(3, "new:1").taken(4, "new:2", false), "I21");
    let kept = line(Some("a:1")).ended(2, "a:1");
    assert_breaks(kept.taken(3, "new:1", false), "I21");
}

#[test]
fn i21_neither_requests_that_know_no_line_nor_dead_tickets_count() {
    let line = || History::known().joins(1, "dead:1").joins(2, "b:1");
    line().taken(4, "new:1", true).report().assert_clean();
    line()
        .skipped(4, "dead:1")
        .granted(4, "b:1", 1, 2)
        .claims(5, 2, 1)
        .report()
        .assert_clean();
    // It was well enough to come back, but then it is behind nobody.
    line()
        .skipped(4, "dead:1")
        .granted(4, "b:1", 1, 2)
        .joins(5, "dead:1")
        .claims(5, 2, 1)
        .ended(6, "b:1")
        .report()
        .assert_clean();
}

#[test]
fn i20_a_grant_that_runs_out_unused() {
    let line = || {
        History::known()
            .claims(1, 2, 1)
            .granted(1, "b:1", 1, 1)
            .ended(3, "b:1")
            .joins(4, "b:2")
            .granted(5, "b:2", 7, 4)
    };
    assert_breaks(line().expired(1_005, "b:2"), "I20");
    // Handed on, taken, or its end unknown.
    line().ended(6, "b:2").report().assert_clean();
    line()
        .claims(6, 2, 7)
        .expired(1_005, "b:2")
        .report()
        .assert_clean();
    line().line(9, Change::Unknown).report().assert_clean();
}

#[test]
fn i20_not_if_its_process_could_not_notice() {
    let line = || {
        History::known()
            .claims(1, 2, 1)
            .granted(1, "b:1", 1, 1)
            .ended(3, "b:1")
            .joins(4, "b:2")
            .granted(50, "b:2", 7, 4)
            .expired(1_050, "b:2")
    };
    for effect in [Effect::Delays, Effect::Freezes(2)] {
        line().fault(40, 60, effect).report().assert_clean();
    }
    line()
        .at(45, 9, What::Died { pid: 2 })
        .report()
        .assert_clean();
    line()
        .at(2_000, 9, What::Stalled { since: 900_000 })
        .report()
        .assert_clean();
    // One that died before it had taken anything is not known by its client.
    let stranger = || {
        History::known()
            .joins(4, "z:1")
            .granted(50, "z:1", 7, 4)
            .expired(1_050, "z:1")
    };
    stranger()
        .at(20, 9, What::Died { pid: 3 })
        .report()
        .assert_clean();
    assert_breaks(stranger(), "I20");
    // Another process, or another time.
    assert_breaks(line().fault(40, 60, Effect::Freezes(3)), "I20");
    assert_breaks(line().fault(10, 49, Effect::Delays), "I20");
}

#[test]
fn i2_a_token_that_is_granted_twice() {
    let line = History::known()
        .granted(1, "b:1", 7, 1)
        .ended(2, "b:1")
        .granted(3, "c:1", 7, 2)
        .ended(4, "c:1");
    assert_breaks(line, "I2");
}

#[test]
fn i2_two_masters_may_grant_a_token_each() {
    let elsewhere = |ms| {
        let mut twin = History::known()
            .granted(ms, "c:1", 7, 1)
            .ended(ms + 1, "c:1");
        for event in &mut twin.events {
            if let What::Line { server, .. } = &mut event.what {
                *server = "another".into();
            }
        }
        let mut both = History::known().granted(1, "b:1", 7, 1).ended(2, "b:1");
        both.events.extend(twin.events);
        both
    };
    let during = elsewhere(1).fault(0, 5, Effect::LosesLocks).report();
    assert!(!during.broken().contains("I2"), "{during}");
    assert!(
        during.violations.iter().any(|v| v.invariant == "I2"),
        "{during}"
    );
    assert_breaks(elsewhere(1).fault(0, 5, Effect::Delays), "I2");
    assert_breaks(
        elsewhere(9)
            .fault(3, 5, Effect::LosesLocks)
            .ended(11, "c:1"),
        "I2",
    );
}

async fn verdict(flaw: LineFlaw) -> Report {
    let server = Server::start().await;
    let dir = Scratch::new();
    workload(flaw, &server, dir.path()).await;
    let report = check(&history::read(dir.path()), &broken_line::LIMITS);
    println!("{flaw:?}: {report}");
    assert!(
        report.lines.granted > 20 && report.lines.longest >= 2,
        "the workload has done too little: {report}"
    );
    report
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_keep_the_order_are_clean() {
    verdict(LineFlaw::None).await.assert_clean();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flaws_of_clients_in_line_are_caught() {
    for (flaw, invariant) in [
        (LineFlaw::LastFirst, "I21"),
        (LineFlaw::PushesIn, "I21"),
        (LineFlaw::DeafNowAndThen, "I20"),
        (LineFlaw::OldToken, "I2"),
    ] {
        let report = verdict(flaw).await;
        assert!(
            report.broken().contains(invariant),
            "{flaw:?}: {invariant} was not seen broken: {report}"
        );
    }
}

/// The model that follows the server's commands is never corrected by the server's state.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_record_of_a_line_is_the_state_of_the_server() {
    let server = Server::start().await;
    let dir = Scratch::new();
    let recorder = Recorder::open(dir.path(), "line");
    let _watch = LineWatch::start(server.addr(), vec!["a".into(), "b".into()], recorder);
    let known = async || check(&history::read(dir.path()), &LIMITS).lines.known;
    until("the record begins", async || known().await == 2).await;
    let mut processes = JoinSet::new();
    for n in 0..8_u64 {
        let locks = Locks::connect(server.url()).await.unwrap();
        processes.spawn(async move {
            let mutex = locks.mutex(if n % 4 == 0 { "b" } else { "a" });
            for turn in 0..150_u64 {
                // Some give up, and some let their lease run out.
                let bounded = mutex.try_lock_for(ms((turn * 7 + n) % 20));
                if turn % 5 == 0 {
                    drop(bounded.await.unwrap());
                } else if turn == 51 && n < 2 {
                    std::mem::forget(mutex.lock().lease(ms(300)).await.unwrap());
                } else {
                    drop(mutex.lock().await.unwrap());
                }
            }
        });
    }
    while let Some(done) = processes.join_next().await {
        done.unwrap();
    }
    tokio::time::sleep(ms(1_000)).await;
    let report = check(&history::read(dir.path()), &LIMITS);
    println!("{report}");
    assert_eq!(report.lines.known, 2, "{report}");
    assert!(report.lines.granted > 100 && report.lines.expired >= 2);
    // Nobody recorded what came of a grant, so that the two which ran out count as lost.
    assert!(report.broken().iter().eq(["I20"].iter()), "{report}");
    assert_eq!(report.violations.len(), 2, "{report}");
}
