//! The programs in `lock/examples`, as their users run them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use leasehold_testkit::Server;

/// Each with something that it prints at the end if everything went well. `transfer` and
/// `first_come` take more than a URL: see their own tests.
const PROGRAMS: [(&str, &str); 6] = [
    ("cache", "rebuilt 3 times, never read half-written"),
    ("connection_pool", "5 of 5 are free"),
    ("fan_out", "all 4 pages are there"),
    ("fenced", "the report is of the second holder"),
    ("leader", "done"),
    ("nightly", "ran 1 time(s)"),
];

/// Where the examples are. They are built with all features, as the tests are: then they have been built already.
static BUILT: LazyLock<PathBuf> = LazyLock::new(|| {
    let built = Command::new(env!("CARGO"))
        .args([
            "build",
            "--quiet",
            "--locked",
            "--workspace",
            "--all-features",
            "--examples",
        ])
        .status()
        .expect("cargo runs");
    assert!(built.success());
    Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("debug/examples")
});

/// The example of this name, built.
pub(crate) async fn program(name: &'static str) -> PathBuf {
    let path = tokio::task::spawn_blocking(move || BUILT.join(name));
    path.await.expect("the examples can be built")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_example_does_what_it_says() {
    let server = Server::start().await;
    let sources = concat!(env!("CARGO_MANIFEST_DIR"), "/../lock/examples");
    let sources = std::fs::read_dir(sources).expect("the examples are there");
    assert_eq!(
        sources.count(),
        PROGRAMS.len() + 2,
        "an example without a test"
    );
    for (name, said) in PROGRAMS {
        let ran = tokio::process::Command::new(program(name).await)
            .arg(server.url())
            .output()
            .await
            .expect("it was built");
        let (out, error) = (
            String::from_utf8_lossy(&ran.stdout),
            String::from_utf8_lossy(&ran.stderr),
        );
        assert!(ran.status.success(), "{name}: {out}{error}");
        assert!(out.contains(said), "{name}: {out}");
        server.raw().await.cmd(&["FLUSHALL"]).await;
    }
}
