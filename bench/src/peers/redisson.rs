//! Redisson, in a process of its own: the class `Bench` of `interop`.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::works::build::workspace;

/// A JVM with Redisson.
pub struct Redisson {
    class_path: String,
}

impl Redisson {
    /// Builds it; if that is not possible here, says so on one line.
    pub fn build() -> Option<Self> {
        let interop = interop();
        let mut build = Command::new(interop.join("build"));
        let built = build.stdin(Stdio::null()).stdout(Stdio::null()).output();
        let reason = match &built {
            Ok(output) if output.status.success() => {
                let target = interop.join("target");
                let (classes, jars) = (target.join("classes"), target.join("lib/*"));
                return Some(Self {
                    class_path: format!("{}:{}", classes.display(), jars.display()),
                });
            }
            Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
            Err(error) => error.to_string(),
        };
        let reason = reason.trim().lines().last().unwrap_or("it cannot be built");
        println!("Redisson is left out: {reason}\n");
        None
    }

    /// The command that measures `workload` at the server on `port`, with the times that follow.
    pub fn command(&self, workload: &str, port: u16, numbers: &[u64]) -> Command {
        let mut command = Command::new("java");
        command
            .args(["-cp", &self.class_path, "leasehold.interop.Bench", workload])
            .arg(port.to_string())
            .args(numbers.iter().map(u64::to_string))
            // Where it says that nobody wants its log.
            .stderr(Stdio::null());
        command
    }
}

fn interop() -> PathBuf {
    workspace().join("../interop")
}
