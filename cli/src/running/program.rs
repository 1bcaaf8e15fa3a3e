//! Finding the program of a command, without a shell.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

use crate::exit::{self, Failure};

/// Finds the program that `name` means: a path if it has a slash, else the first of its name along `PATH` that can be executed.
///
/// Found out before the lock is taken: a command that cannot run has no need of it.
pub(crate) fn find(name: &OsStr) -> Result<PathBuf, Failure> {
    let path = if name.as_encoded_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        check(&path, name)?;
        path
    } else {
        along_path(name)?
    };
    refuse_bare_script(&path, name)?;
    Ok(path)
}

fn along_path(name: &OsStr) -> Result<PathBuf, Failure> {
    let search = std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/usr/bin:/bin"));
    let mut refused = None;
    if !name.is_empty() {
        for folder in std::env::split_paths(&search) {
            let path = folder.join(name);
            match check(&path, name) {
                Ok(()) => return Ok(path),
                Err(failure) if failure.code == exit::NOT_EXECUTABLE => refused = Some(failure),
                Err(_) => {}
            }
        }
    }
    Err(refused.unwrap_or_else(|| not_found(name)))
}

fn check(path: &Path, name: &OsStr) -> Result<(), Failure> {
    let Ok(found) = fs::metadata(path) else {
        return Err(not_found(name));
    };
    if found.is_dir() {
        return Err(not_executable(name, "it is a directory"));
    }
    access(path, Access::EXEC_OK).map_err(|_| not_executable(name, "permission denied"))
}

/// Refuses a text without `#!`, which the system would give to a shell.
fn refuse_bare_script(path: &Path, name: &OsStr) -> Result<(), Failure> {
    let mut start = Vec::new();
    // One that may not be read may be executed all the same.
    if let Ok(file) = File::open(path) {
        let _ = file.take(128).read_to_end(&mut start);
        if !start.starts_with(b"#!") && !start.contains(&0) {
            return Err(not_executable(
                name,
                "it is no program, and a script without `#!`",
            ));
        }
    }
    Ok(())
}

fn not_found(name: &OsStr) -> Failure {
    Failure::cannot_run(exit::NOT_FOUND, format!("cannot run {name:?}: not found"))
}

fn not_executable(name: &OsStr, why: &str) -> Failure {
    Failure::cannot_run(exit::NOT_EXECUTABLE, format!("cannot run {name:?}: {why}"))
}
