//! The commands, one file each.

pub(crate) mod extend;
pub(crate) mod lock;
#[cfg(target_os = "linux")]
pub(crate) mod run;
pub(crate) mod unlock;
pub(crate) mod verify;

use crate::args::{Args, Command, Global};
use crate::exit::Failure;
use crate::output::Output;

/// What every command gets.
#[derive(Debug)]
pub(crate) struct Context<'a> {
    pub(crate) global: &'a Global,
    pub(crate) output: &'a Output,
}

/// Carries out the command. Returns the exit code.
pub(crate) fn execute(args: Args, output: &Output) -> Result<u8, Failure> {
    let Args { global, command } = args;
    let context = Context {
        global: &global,
        output,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::system(format!("no runtime: {error}")))?;
    runtime.block_on(async {
        match command {
            #[cfg(target_os = "linux")]
            Command::Run(args) => run::execute(args, &context).await,
            Command::Lock(args) => lock::execute(args, &context).await,
            Command::Unlock(args) => unlock::execute(args, &context).await,
            Command::Extend(args) => extend::execute(args, &context).await,
            Command::Verify(args) => verify::execute(args, &context).await,
        }
    })
}
