//! The clocks of the servers: apart from each other and from the one here, and steps while they are watched.

use std::time::{Duration, Instant, SystemTime};

use leasehold_cluster::Target;
use leasehold_resp::{Command, Connection};

use super::finding::{Finding, Level, Report};
use super::servers::replicas_of;
use super::{Args, unknown};
use crate::look::Looker;
use crate::look::replies::time;

/// How often each clock is read, and how far apart.
const READINGS: usize = 5;
const PAUSE: Duration = Duration::from_millis(200);
/// A clock that moved by this much more or less than the one here was set.
const STEP: Duration = Duration::from_millis(50);
/// Servers that are this far apart do not use NTP.
const APART: Duration = Duration::from_millis(500);
/// A clock here that is off by this much is worth a note.
const OFF: Duration = Duration::from_secs(1);
/// Servers whose clocks are asked for.
const MOST_SERVERS: usize = 32;

/// One reading of a clock.
#[derive(Clone, Copy, Debug)]
struct Reading {
    /// The middle of the request, since the first one of all.
    at: Duration,
    /// Half of how long the request took: how wrong the middle may be.
    error: Duration,
    /// The server's clock less the one here, in microseconds.
    offset: i64,
}

/// Conclusions from the readings of one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Clock {
    /// Of the shortest request.
    offset: i64,
    /// By how much it was set while it was watched, in microseconds.
    step: Option<i64>,
}

pub(super) async fn check(looker: &Looker, args: &Args, report: &mut Report) {
    let mut servers = looker.client.masters();
    for master in servers.clone() {
        let answer = master.send(&Command::new("INFO").arg("replication")).await;
        for endpoint in answer
            .map(|info| replicas_of(&master, &info))
            .unwrap_or_default()
        {
            // A replica that cannot be reached from here is not asked.
            let connected = tokio::time::timeout(OFF, Connection::connect(endpoint)).await;
            servers.extend(connected.ok().and_then(Result::ok));
        }
    }
    servers.truncate(MOST_SERVERS);
    let mut clocks: Vec<(String, Clock)> = Vec::new();
    for (server, readings) in servers.iter().zip(readings(&servers).await) {
        match readings {
            Ok(readings) => {
                clocks.extend(judge(&readings).map(|clock| (server.node().to_string(), clock)))
            }
            Err(error) => report.add(unknown("clock", server.node(), &error)),
        }
    }
    for (node, clock) in &clocks {
        report.add(of_one(node, *clock));
    }
    if let Some(finding) = apart(&clocks, looker, args) {
        report.add(finding);
    }
}

async fn readings(servers: &[Connection]) -> Vec<Result<Vec<Reading>, leasehold_resp::Error>> {
    let (start, start_wall) = (Instant::now(), SystemTime::now());
    let mut all: Vec<Result<Vec<Reading>, _>> = servers.iter().map(|_| Ok(Vec::new())).collect();
    for round in 0..READINGS {
        if round > 0 {
            tokio::time::sleep(PAUSE).await;
        }
        for (server, readings) in servers.iter().zip(&mut all) {
            let Ok(known) = readings else { continue };
            let sent = start.elapsed();
            match server.send(&Command::new("TIME")).await {
                Ok(reply) => {
                    let error = (start.elapsed() - sent) / 2;
                    let at = sent + error;
                    // By the monotonic clock, so that a step of the wall clock here is none of theirs.
                    let here = (start_wall + at).duration_since(SystemTime::UNIX_EPOCH);
                    let here = here.map_or(0, |here| here.as_micros() as i64);
                    let there = time(&reply).unwrap_or_default() as i64;
                    known.push(Reading {
                        at,
                        error,
                        offset: there - here,
                    });
                }
                Err(error) => *readings = Err(error),
            }
        }
    }
    all
}

fn judge(readings: &[Reading]) -> Option<Clock> {
    let best = readings.iter().min_by_key(|reading| reading.error)?;
    let steps = readings.windows(2).filter_map(|pair| {
        let [before, after] = pair else { return None };
        let moved = after.offset - before.offset;
        let doubt = (before.error + after.error + STEP).as_micros() as i64;
        (after.at > before.at && moved.abs() > doubt).then_some(moved)
    });
    Some(Clock {
        offset: best.offset,
        step: steps.max_by_key(|step| step.abs()),
    })
}

fn of_one(node: &str, clock: Clock) -> Finding {
    let shown = |micros: i64| format!("{:+} ms", (micros as f64 / 1000.0).round() as i64);
    let off = Duration::from_micros(clock.offset.unsigned_abs());
    if let Some(step) = clock.step {
        let what = format!(
            "the clock was set by {} while it was watched: leases end earlier or later than promised",
            shown(step)
        );
        let fix = "let NTP slew the clock (chrony: no makestep after the start); see the host of a virtual machine";
        return Finding::new(Level::Fault, "clock", what).at(node).fix(fix);
    }
    let what = format!(
        "{} to the clock here, no step within a second",
        shown(clock.offset)
    );
    match off > OFF {
        true => {
            let what = format!("{what}; it decides nothing, but times in logs do not fit");
            Finding::new(Level::Note, "clock", what).at(node)
        }
        false => Finding::new(Level::Ok, "clock", what).at(node),
    }
}

/// Servers that take over from each other should have the same time.
fn apart(clocks: &[(String, Clock)], looker: &Looker, args: &Args) -> Option<Finding> {
    let fails_over = args.replicated || !matches!(looker.target, Target::Single(_));
    let (first, last) = (
        clocks.iter().min_by_key(|(_, clock)| clock.offset)?,
        clocks.iter().max_by_key(|(_, clock)| clock.offset)?,
    );
    let most = if args.replicated {
        (args.lease / 100).min(APART)
    } else {
        APART
    };
    let between = Duration::from_micros(last.1.offset.abs_diff(first.1.offset));
    if !fails_over || between <= most {
        return None;
    }
    let what = format!(
        "{} is {between:?} ahead of {}: after a failover fencing tokens may not grow, and leases end too early",
        last.0, first.0
    );
    Some(Finding::new(Level::Fault, "clocks", what).fix("run NTP on all servers"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(at: u64, error: u64, offset: i64) -> Reading {
        Reading {
            at: Duration::from_millis(at),
            error: Duration::from_millis(error),
            offset: offset * 1000,
        }
    }

    #[test]
    fn a_step_is_told_from_a_slow_answer() {
        let steady = [reading(0, 1, 20), reading(200, 40, 55), reading(400, 1, 21)];
        assert_eq!(
            judge(&steady),
            Some(Clock {
                offset: 20_000,
                step: None
            })
        );
        let set = [
            reading(0, 1, 20),
            reading(200, 1, -280),
            reading(400, 1, -280),
        ];
        assert_eq!(judge(&set).unwrap().step, Some(-300_000));
        assert_eq!(judge(&[]), None);
        assert_eq!(of_one("n", judge(&set).unwrap()).level, Level::Fault);
        assert_eq!(of_one("n", judge(&steady).unwrap()).level, Level::Ok);
        assert_eq!(
            of_one("n", judge(&[reading(0, 1, 5_000)]).unwrap()).level,
            Level::Note
        );
    }
}
