//! I19: locks that are held at the majority of several servers.

use leasehold_testkit::history::{Effect, Holder, Mode, Part, What};

use super::{History, history};

/// A request of client `a` at the time 10, for the hold `a:1`.
fn asked() -> History {
    let parts = vec![Part {
        call: 1,
        hold: "a:1".into(),
    }];
    let h = history().at(9, "a", What::Together { parts });
    h.asks(10, "a", Mode::Majority, None)
}

fn taken() -> History {
    asked().ok(20, "a", "a:1", 500)
}

/// What three servers show; `-` is one that does not answer.
fn nodes(h: History, ms: u64, shown: [&str; 3]) -> History {
    let node = |holder: &str| match holder {
        "-" => None,
        "" => Some(Vec::new()),
        id => Some(vec![Holder {
            id: id.into(),
            count: 1,
        }]),
    };
    h.at(
        ms,
        "observer",
        What::Nodes {
            key: "k".into(),
            asked: (ms - 1) * 1_000,
            nodes: shown.map(node).into(),
        },
    )
}

#[test]
fn i19_who_claims_has_the_majority() {
    for shown in [
        ["a:1", "a:1", "a:1"],
        ["a:1", "", "a:1"],
        ["a:1", "-", "b:1"],
    ] {
        nodes(taken(), 30, shown).keeps_everything();
    }
    for shown in [["a:1", "", ""], ["", "-", "b:1"], ["b:1", "b:1", "a:1"]] {
        nodes(taken(), 30, shown).breaks(&["I19"]);
    }
    nodes(taken(), 30, ["a:1", "", ""])
        .fault(22, 25, Effect::LosesLocks)
        .breaks_with_excuse("I19");
    // Neither before the grant nor after its end is anything claimed.
    nodes(taken(), 20, ["a:1", "", ""]).keeps_everything();
    nodes(taken(), 600, ["", "", ""]).keeps_everything();
}

#[test]
fn i19_a_server_that_forgets_excuses_no_second_holder() {
    let two = |effect| {
        taken()
            .fault(30, 31, effect)
            .asks(40, "b", Mode::Majority, None)
            .ok(50, "b", "b:1", 500)
    };
    two(Effect::LosesLocks).breaks(&["I1"]);
    two(Effect::Delays).breaks(&["I1"]);
}

#[test]
fn i19_nothing_stays_at_a_minority() {
    let given_back = || taken().gives_back(30, "a", "a:1");
    nodes(given_back(), 100, ["", "", "a:1"]).keeps_everything();
    nodes(given_back(), 200, ["", "", "a:1"]).breaks(&["I19"]);
    let refused = || {
        let why = "two of three said no".into();
        asked().at(20, "a", What::Fail { call: 1, why })
    };
    nodes(refused(), 100, ["a:1", "", ""]).keeps_everything();
    nodes(refused(), 200, ["a:1", "", ""]).breaks(&["I19"]);
    nodes(refused(), 200, ["b:1", "-", ""]).keeps_everything();
}
