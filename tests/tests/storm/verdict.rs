//! The verdict on a storm, and the evidence that is kept of one that failed.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold_testkit::checker::{self, Limits, Report};
use leasehold_testkit::history::{self, Event, What};
use leasehold_testkit::storm::{LEASE, LOCKS};
use leasehold_testkit::{Ledger, Raw};

use crate::fleet::Fleet;

/// Bounds against hangs, for a busy machine. A refused or cancelled attempt may leave a hold for
/// one lease if the connection to the server is cut just then.
const LIMITS: Limits = Limits {
    lease: LEASE,
    loss_notice: Duration::from_secs(5),
    handoff: Duration::from_secs(15),
    overrun: Duration::from_secs(10),
    cleanup: Duration::from_secs(4),
};

/// The result of a storm.
pub(crate) struct Verdict {
    pub(crate) report: Report,
    /// Number of grants of each lock.
    pub(crate) grants: BTreeMap<String, usize>,
    /// Number of times two held one lock because a server had lost the first hold.
    pub(crate) overlaps: usize,
    /// Number of tokens that the ledgers refused.
    pub(crate) refused: u64,
    /// Number of times a holder that still claimed to hold found a newer token in a ledger.
    contradictions: usize,
    /// The longest time from a request to its grant.
    longest: Duration,
}

/// Keeps the files of a storm that fails.
pub(crate) struct Evidence {
    storm: PathBuf,
    servers: Vec<PathBuf>,
    kept: PathBuf,
}

impl Fleet {
    /// The place of the evidence, for the message of a panic.
    pub(crate) fn evidence(&self) -> String {
        format!(
            "LEASEHOLD_SEED={}, history in {}",
            self.seed,
            self.kept().display()
        )
    }

    /// Keeps the history and the logs of the servers in these directories, if the test panics
    /// before it is dropped.
    pub(crate) fn keep_evidence<'a>(
        &self,
        servers: impl IntoIterator<Item = &'a Path>,
    ) -> Evidence {
        Evidence::of(self.dir.path(), servers, self.kept())
    }

    fn kept(&self) -> PathBuf {
        kept(&self.name, self.seed)
    }

    /// Checks the history, prints the result, and panics on a violation.
    ///
    /// `forgets` says whether servers may have lost locks: then two may hold one lock for a while,
    /// and only the ledger keeps the first from writing. The checker excuses an overlap if, and
    /// only if, such a fault was active after the first grant and before the second.
    pub(crate) fn judge(&self, forgets: bool) -> Verdict {
        let events = history::read(self.dir.path());
        let report = checker::check(&events, &LIMITS);
        let (ledgers, logs) = (self.ledgers(), self.logs());
        let (grants, longest) = grants(&events);
        let verdict = Verdict {
            grants,
            overlaps: report
                .violations
                .iter()
                .filter(|v| v.excused && v.invariant == "I1")
                .count(),
            refused: ledgers.iter().map(Ledger::refused).sum(),
            contradictions: logs
                .lines()
                .filter(|line| line.starts_with("CONTRADICTION"))
                .count(),
            longest,
            report,
        };
        println!("{}: {verdict}", self.name);

        let evidence = self.evidence();
        let report = &verdict.report;
        assert!(report.is_clean(), "{evidence}\n{report}");
        assert!(
            forgets || report.violations.is_empty(),
            "{evidence}: there is nothing to excuse\n{report}"
        );
        // The workers print nothing else, and this only where the checker may excuse a violation.
        assert_eq!(
            logs.lines().count(),
            verdict.contradictions,
            "{evidence}: the workers say\n{logs}"
        );
        let excused = verdict.contradictions == 0 || !report.violations.is_empty();
        assert!(
            excused,
            "{evidence}: the checker sees nothing of what the workers say\n{logs}"
        );
        for (ledger, name) in ledgers.iter().zip(LOCKS) {
            assert_eq!(ledger.lost_updates(), 0, "{evidence}: {name}");
        }
        verdict
    }

    /// Panics unless every process that runs was granted something after `since`.
    pub(crate) async fn everybody_got_something(&self, since: u64) {
        let events = history::read(self.dir.path());
        for pid in self.pids().await {
            let granted = events
                .iter()
                .any(|e| e.process == pid && e.at > since && matches!(e.what, What::Ok { .. }));
            assert!(
                granted,
                "{}: worker {pid} got nothing after the last fault",
                self.evidence()
            );
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            report,
            grants,
            overlaps,
            refused,
            contradictions,
            longest,
        } = self;
        writeln!(f, "{report}grants: {grants:?}, longest wait: {longest:?}")?;
        write!(
            f,
            "{overlaps} overlaps after a server forgot, {contradictions} holders met a newer token; "
        )?;
        write!(
            f,
            "{} losses told, {refused} stale writes refused",
            report.losses
        )
    }
}

impl Evidence {
    /// Copies the files of `storm` and the logs in the directories of the servers to `kept`, if the test panics before it is
    /// dropped.
    pub(crate) fn of<'a>(
        storm: &Path,
        servers: impl IntoIterator<Item = &'a Path>,
        kept: PathBuf,
    ) -> Self {
        Self {
            storm: storm.to_owned(),
            servers: servers.into_iter().map(Path::to_owned).collect(),
            kept,
        }
    }
}

impl Drop for Evidence {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let keep = || -> std::io::Result<()> {
            std::fs::create_dir_all(&self.kept)?;
            for entry in std::fs::read_dir(&self.storm)? {
                let entry = entry?;
                std::fs::copy(entry.path(), self.kept.join(entry.file_name()))?;
            }
            for (server, n) in self.servers.iter().zip(0..) {
                std::fs::copy(
                    server.join("log"),
                    self.kept.join(format!("server-{n}.log")),
                )?;
            }
            Ok(())
        };
        // A panic inside a panic would end the process without a message.
        match keep() {
            Ok(()) => println!("history kept in {}", self.kept.display()),
            Err(error) => println!("history not kept in {}: {error}", self.kept.display()),
        }
    }
}

/// The directory for the evidence of a storm.
pub(crate) fn kept(name: &str, seed: u64) -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .parent()
        .expect("a folder in the target folder");
    target.join("storm-failed").join(format!("{name}-{seed}"))
}

/// Records the keys that are left on the masters: every lock should be free, every key should
/// expire.
pub(crate) async fn nothing_is_left(fleet: &Fleet, masters: impl IntoIterator<Item = Raw>) {
    let mut left = Vec::new();
    for mut raw in masters {
        let keys = raw.cmd(&["KEYS", "*"]).await;
        for key in keys.array().iter().map(|key| key.str()) {
            let ttl = raw.cmd(&["PTTL", key]).await.int();
            if LOCKS.contains(&key) || ttl == -1 {
                left.push(key.to_owned());
            }
        }
    }
    fleet.recorder.record(What::Quiesced { keys: left });
}

/// A storm in which nobody waits in line proves nothing of lines.
pub(crate) fn it_was_a_line(verdict: &Verdict, evidence: &str) {
    let lines = verdict.report.lines;
    assert!(
        lines.longest >= 10 && lines.granted >= 100 && lines.expired > 0,
        "{evidence}: {lines:?}"
    );
}

/// Number of grants of each lock, and the longest time from a request to its grant.
fn grants(events: &[Event]) -> (BTreeMap<String, usize>, Duration) {
    let mut asked = HashMap::new();
    let mut grants: BTreeMap<String, usize> = LOCKS.map(|key| (key.to_owned(), 0)).into();
    let mut longest = 0;
    for event in events {
        match &event.what {
            What::Invoke { call, key, .. } => {
                _ = asked.insert((event.process, *call), (key, event.at))
            }
            What::Ok { call, .. } => {
                let (key, since) = asked[&(event.process, *call)];
                *grants.entry(key.clone()).or_default() += 1;
                longest = longest.max(event.at - since);
            }
            _ => {}
        }
    }
    (grants, Duration::from_micros(longest))
}
