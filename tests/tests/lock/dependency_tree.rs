//! The dependency tree of leasehold: few crates, and no other client of the server among them.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// Other clients and parsers of the protocol. The benchmark, a workspace of its own, may depend on
/// them.
const CLIENTS: [&str; 14] = [
    "bb8-redis",
    "deadpool-redis",
    "fred",
    "mini-redis",
    "r2d2_redis",
    "redis",
    "redis-async",
    "redis-protocol",
    "redis-rs",
    "redlock",
    "rslock",
    "rustis",
    "simple_redis",
    "valkey-glide",
];

/// Convenient, but each brings several more crates.
const DISPENSABLE: [&str; 4] = ["async-trait", "futures", "serde", "url"];

#[test]
fn without_features_leasehold_brings_at_most_22_crates() {
    let tree = Tree::of_leasehold(&[]);
    assert!(
        tree.names.contains("leasehold-resp"),
        "not a tree of leasehold: {tree:#?}"
    );
    assert!(tree.crates <= 22, "{tree:#?}");
    tree.assert_lean();
}

#[test]
fn with_tls_leasehold_brings_at_most_32_crates() {
    let tree = Tree::of_leasehold(&["--features", "tls"]);
    assert!(
        tree.names.contains("tokio-rustls"),
        "not a tree with tls: {tree:#?}"
    );
    assert!(tree.crates <= 32, "{tree:#?}");
    tree.assert_lean();
}

#[test]
fn there_are_few_features() {
    for (package, expected) in [
        ("leasehold", "metrics,testing,tls,tracing"),
        ("leasehold-cluster", "in-process,tls"),
        ("leasehold-resp", "in-process,tls"),
    ] {
        // `--all-features` also turns on `default` and the features that an optional dependency
        // makes by itself.
        let features = cargo_tree(&[
            "--package",
            package,
            "--all-features",
            "--depth",
            "0",
            "--format",
            "{f}",
        ]);
        assert_eq!(features.trim(), expected, "features of {package}");
    }
}

#[test]
fn no_other_client_is_anywhere_in_the_workspace() {
    let lock =
        std::fs::read_to_string(root().join("Cargo.lock")).expect("Cargo.lock is in the tree");
    let locked: BTreeSet<&str> = lock
        .lines()
        .filter_map(|line| line.strip_prefix("name = "))
        .collect();
    assert!(
        locked.contains("\"tokio\""),
        "Cargo.lock has another shape than this test reads"
    );
    for client in CLIENTS {
        assert!(
            !locked.contains(format!("\"{client}\"").as_str()),
            "{client} is in Cargo.lock"
        );
    }
}

/// The crates of a program that depends on `leasehold`, which is included.
#[derive(Debug)]
struct Tree {
    names: BTreeSet<String>,
    /// Two versions of one crate count twice: both are built.
    crates: usize,
}

impl Tree {
    fn of_leasehold(features: &[&str]) -> Self {
        let output =
            cargo_tree(&[&["--package", "leasehold", "--format", "{p}"], features].concat());
        let versions: BTreeSet<(&str, &str)> = output
            .lines()
            .filter_map(|line| {
                let mut words = line.split(' ');
                Some((words.next()?, words.next()?))
            })
            .collect();
        Self {
            names: versions
                .iter()
                .map(|(name, _)| (*name).to_owned())
                .collect(),
            crates: versions.len(),
        }
    }

    #[track_caller]
    fn assert_lean(&self) {
        for name in CLIENTS.iter().chain(&DISPENSABLE) {
            assert!(
                !self.names.contains(*name),
                "{name} is in the tree: {self:#?}"
            );
        }
    }
}

/// `cargo tree` over normal dependencies, a line a crate. Offline if it can be: after `cargo test`
/// everything that was compiled is on disk, but the crates of a feature that was not may have to be
/// fetched.
fn cargo_tree(arguments: &[&str]) -> String {
    let run = |extra: &[&str]| {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        Command::new(cargo)
            .current_dir(root())
            .args(["tree", "--locked", "--edges", "normal", "--prefix", "none"])
            .args(arguments)
            .args(extra)
            .output()
            .expect("cargo runs")
    };
    let mut output = run(&["--offline"]);
    if !output.status.success() {
        output = run(&[]);
    }
    assert!(
        output.status.success(),
        "cargo tree failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("cargo prints UTF-8")
}

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}
