//! The command `leasehold`: runs commands under locks, and locks for scripts.

mod args;
mod commands;
mod connect;
mod duration;
mod exit;
mod hold_text;
mod look;
mod output;
#[cfg(target_os = "linux")]
mod running;
#[cfg(feature = "tls")]
mod tls;
mod wait;

use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

use crate::args::Args;
use crate::output::Output;

fn main() -> ExitCode {
    #[cfg(target_os = "linux")]
    if let Some(code) = running::hidden() {
        return code;
    }
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(told) => {
            // Nothing can be done about a standard stream that is closed.
            let _ = told.print();
            return match told.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
                _ => ExitCode::from(exit::USAGE),
            };
        }
    };
    let output = Output::new(&args.global);
    match commands::execute(args, &output) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            output.failure(&failure);
            ExitCode::from(failure.code)
        }
    }
}
