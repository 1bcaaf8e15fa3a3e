//! Tests that need a process of their own, because they count what belongs to a process: threads,
//! memory, processor time. Such a test runs itself again as the only test of a child process.

use std::ffi::OsStr;
use std::process::Command;

use fork::Fork;

/// Set in the child process, to the name of its test.
const CHILD: &str = "LEASEHOLD_OWN_PROCESS";

/// Runs `test` on a runtime of one thread, in a child process that runs nothing else. To be called
/// by the test function itself, with an `async` block: the block's type names the test.
///
/// # Panics
///
/// When the child does not run the test, or the test fails there.
pub fn in_own_process<F: Future<Output = ()>>(test: F) {
    in_own_process_with(&[], test);
}

/// [`in_own_process`], with these environment variables set in the child.
///
/// # Panics
///
/// As [`in_own_process`].
pub fn in_own_process_with<F: Future<Output = ()>>(variables: &[(&str, &OsStr)], test: F) {
    let name = test_of::<F>();
    if std::env::var(CHILD).is_ok_and(|child| child == name) {
        return tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime")
            .block_on(test);
    }
    let output = this_test_again(name)
        .env(CHILD, name)
        .envs(variables.iter().copied())
        .output()
        .expect("a process can be started");
    let stdout = String::from_utf8_lossy(&output.stdout);
    print!("{stdout}");
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
    // A name that matches no test would count as a success.
    assert!(
        output.status.success() && stdout.contains("test result: ok. 1 passed"),
        "{name} in a process of its own: {}",
        output.status
    );
}

/// Forks, and runs `child` in the child on a thread and a runtime of its own. Returns its exit
/// code: 0 unless it panicked.
///
/// # Panics
///
/// When no process can be forked.
pub fn in_a_fork<F: Future<Output = ()>>(child: impl FnOnce() -> F + Send) -> i32 {
    match fork::fork().expect("a process can be forked") {
        Fork::Child => {
            let done = std::thread::scope(|scope| {
                let run = || {
                    let runtime = tokio::runtime::Builder::new_current_thread()
                        .enable_all()
                        .build()
                        .expect("a runtime");
                    runtime.block_on(child());
                };
                scope.spawn(run).join()
            });
            // Nothing of the parent's is dropped, such as the handle that kills its server.
            std::process::exit(i32::from(done.is_err()));
        }
        Fork::Parent(child) => fork::waitpid(child).expect("it ends"),
    }
}

/// A command that runs the test at this path in the test program, such as `module::name`, in a
/// process of its own.
///
/// # Panics
///
/// When the path of this program is unknown.
#[must_use]
pub fn this_test_again(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("the path of this program"));
    command.args(["--exact", test, "--nocapture"]);
    command
}

/// The path of the test in which the `async` block `F` was written:
/// `program::module::test::{{closure}}` without both ends.
fn test_of<F>() -> &'static str {
    let block = std::any::type_name::<F>();
    block
        .split_once("::")
        .and_then(|(_, path)| path.rsplit_once("::"))
        .map_or(block, |(test, _)| test)
}
