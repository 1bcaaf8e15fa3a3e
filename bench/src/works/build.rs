//! Build cost of a client: crates, CPU of a clean build, size of a program that locks and unlocks.

use std::collections::BTreeSet;
use std::io::{Error, Result};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::cpu;
use crate::harness::{Effort, Harness, Samples};
use crate::report::{Aim, Bound, Row, Section};
use crate::sample::{Figures, figures};

/// The programs in `mini/`.
const CANDIDATES: &[&str] = &["tokio", "leasehold", "redis", "rustis", "rslock", "fred"];
const PEERS: &[&str] = &["redis", "rustis", "fred"];

/// Builds each once; with full effort only, as it takes minutes.
pub fn run(harness: &Harness) -> Result<Section> {
    let full = harness.effort == Effort::Full;
    let samples = if full {
        harness.interleave(1, CANDIDATES, build)?
    } else {
        Samples::default()
    };
    let row = |candidate: &&str| Row {
        candidate: (*candidate).into(),
        cells: ["crates", "cpu_s", "kib"]
            .map(|figure| samples.median(candidate, figure))
            .to_vec(),
    };
    let aim = |what: &str, figure, bound: Bound| Aim {
        what: what.into(),
        floor: samples.median("tokio", figure),
        peer: bound.best(PEERS.iter().map(|peer| samples.median(peer, figure))),
        ours: samples.median("leasehold", figure),
        bound,
    };
    Ok(Section {
        title: "Build cost of a minimal program",
        how: format!(
            "The programs in `mini/` lock and unlock once; `tokio` only connects. Crates as `cargo tree` counts them for \
             this platform, without the program; CPU of all processes of one clean release build; size stripped.{}",
            if full {
                ""
            } else {
                " **Measured with `--full` only.**"
            }
        ),
        columns: ["crates", "cold build CPU s", "stripped KiB"]
            .map(str::to_owned)
            .to_vec(),
        rows: if full {
            CANDIDATES.iter().map(row).collect()
        } else {
            Vec::new()
        },
        aims: vec![
            aim("crates", "crates", Bound::AtMost(22.0)),
            aim("cold build, CPU s", "cpu_s", Bound::AtMost(20.0)),
            aim("stripped program, KiB", "kib", Bound::AtMost(850.0)),
        ],
    })
}

fn build(candidate: &'static str) -> Result<Figures> {
    let package = format!("mini-{candidate}");
    let target =
        std::env::temp_dir().join(format!("leasehold-bench-{}-{package}", std::process::id()));
    // Downloads are not part of a build.
    cargo(&["fetch", "--locked"])?;
    let before = cpu::of_children();
    let built = cargo(&[
        "build",
        "--release",
        "--locked",
        "-p",
        &package,
        "--target-dir",
        target
            .to_str()
            .ok_or_else(|| Error::other("a temporary directory that is not UTF-8"))?,
        "--config",
        "profile.release.debug=0",
        "--config",
        "profile.release.strip=true",
    ]);
    let seconds = cpu::of_children() - before;
    let size = built.and_then(|_| std::fs::metadata(target.join("release").join(&package)));
    std::fs::remove_dir_all(&target)?;
    let tree = cargo(&[
        "tree",
        "--locked",
        "-p",
        &package,
        "-e",
        "normal,build",
        "--prefix",
        "none",
        "--no-dedupe",
    ])?;
    let crates: BTreeSet<&str> = tree
        .lines()
        .map(|line| line.trim_end_matches(" (proc-macro)"))
        .filter(|line| !line.is_empty())
        .collect();
    Ok(figures([
        ("crates", crates.len() as f64 - 1.0),
        ("cpu_s", seconds),
        ("kib", size?.len() as f64 / 1024.0),
    ]))
}

/// Runs cargo on this workspace; its standard output.
fn cargo(args: &[&str]) -> Result<String> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command
        .args(args)
        .arg("--manifest-path")
        .arg(workspace().join("Cargo.toml"))
        .env_remove("CARGO_TARGET_DIR");
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .output()?;
    if !output.status.success() {
        return Err(Error::other(format!(
            "{command:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        )));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The workspace from which this program was built.
pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}
