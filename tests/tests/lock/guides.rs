//! The guides name tests: they are there.

use std::path::Path;

#[test]
fn tests_that_the_guides_name_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let guide = root.join("../lock/src/guides/beside_others.md");
    let text = std::fs::read_to_string(guide).unwrap();
    let mut named = 0;
    for quoted in text.split('`').skip(1).step_by(2) {
        let Some((file, function)) = quoted.split_once("::") else {
            continue;
        };
        if !file.starts_with(|first: char| first.is_ascii_lowercase()) || file == "file" {
            continue;
        }
        let suite = if file.contains('/') {
            "tests"
        } else {
            "tests/lock"
        };
        let source = root.join(suite).join(file).with_extension("rs");
        let source = std::fs::read_to_string(source).unwrap_or_else(|_| panic!("{quoted}"));
        assert!(source.contains(&format!("fn {function}(")), "{quoted}");
        named += 1;
    }
    assert!(named > 40, "{named}");
}
