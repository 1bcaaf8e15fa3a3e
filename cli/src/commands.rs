//! The commands, one file each.

pub(crate) mod break_lock;
pub(crate) mod doctor;
pub(crate) mod extend;
pub(crate) mod generate;
pub(crate) mod inspect;
pub(crate) mod latch;
pub(crate) mod lock;
pub(crate) mod ls;
#[cfg(target_os = "linux")]
pub(crate) mod run;
pub(crate) mod sem;
pub(crate) mod top;
pub(crate) mod unlock;
pub(crate) mod verify;
pub(crate) mod wait;
pub(crate) mod who;

use crate::args::{Args, Command, Global};
use crate::exit::Failure;
use crate::output::Output;

/// Context of every command.
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
            Command::Wait(args) => wait::execute(args, &context).await,
            Command::Sem(args) => sem::execute(args, &context).await,
            Command::Latch(args) => latch::execute(args, &context).await,
            Command::Ls(args) => ls::execute(args, &context).await,
            Command::Inspect(args) => inspect::execute(args, &context).await,
            Command::Who(args) => who::execute(args, &context).await,
            Command::Break(args) => break_lock::execute(args, &context).await,
            Command::Top(args) => top::execute(args, &context).await,
            Command::Doctor(args) => doctor::execute(args, &context).await,
            Command::Man(args) => generate::man(args),
            Command::Completions(args) => generate::completions(args),
        }
    })
}
