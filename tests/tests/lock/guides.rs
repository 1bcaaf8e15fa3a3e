//! The guides name tests: they are there, and each fault of Redisson's has a scene with a live one.

use std::path::Path;

#[test]
fn tests_that_the_guides_name_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let guides = std::fs::read_dir(root.join("../lock/src/guides")).unwrap();
    let mut named = 0;
    for guide in guides {
        let text = std::fs::read_to_string(guide.unwrap().path()).unwrap();
        named += text
            .split('`')
            .skip(1)
            .step_by(2)
            .filter(|quoted| is_a_test(root, quoted))
            .count();
    }
    assert!(named > 40, "{named}");
}

/// Each row of the tables of Redisson's faults names a scene with a live one, but for what is said of our own requests.
#[test]
fn every_fault_of_redisson_is_shown_by_a_live_one() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let guide = root.join("../lock/src/guides/beside_others.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    let (_, faults) = guide.split_once("# Redisson's faults").unwrap();
    let rows = faults.lines().filter(|line| line.starts_with("| "));
    let rows: Vec<_> = rows
        .filter(|row| !row.starts_with("| fault |") && !row.starts_with("| | our own"))
        .collect();
    assert!(rows.len() > 35, "{}", rows.len());
    for row in rows {
        let live = row
            .split('`')
            .filter(|quoted| quoted.starts_with("interop/"));
        let is_whole_recording = |test: &str| test.starts_with("interop/traces::");
        assert!(live.clone().any(|test| !is_whole_recording(test)), "{row}");
    }
}

/// Whether `quoted` names a test. Panics if it is not there.
fn is_a_test(root: &Path, quoted: &str) -> bool {
    let Some((file, function)) = quoted.split_once("::") else {
        return false;
    };
    let is_name = |text: &str| {
        let mut letters = text.chars();
        letters.all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "_/".contains(c))
    };
    if !is_name(file) || !is_name(function) || file == "file" {
        return false;
    }
    let suite = if file.contains('/') {
        "tests"
    } else {
        "tests/lock"
    };
    let source = root.join(suite).join(file).with_extension("rs");
    let source = std::fs::read_to_string(source).unwrap_or_else(|_| panic!("{quoted}"));
    assert!(source.contains(&format!("fn {function}(")), "{quoted}");
    true
}
