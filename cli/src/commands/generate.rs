//! `leasehold man` and `leasehold completions`: for packages, and hidden from the list of commands.

use std::io;
use std::path::PathBuf;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::exit::{Failure, OK};

/// Prints the manual page, or writes those of all commands.
#[derive(clap::Args, Debug)]
pub(crate) struct ManArgs {
    /// A directory for `leasehold.1`, `leasehold-run.1` and so on.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Prints what completes arguments in a shell.
#[derive(clap::Args, Debug)]
pub(crate) struct CompletionsArgs {
    /// The shell.
    shell: Shell,
}

pub(crate) fn man(args: ManArgs) -> Result<u8, Failure> {
    let command = crate::args::Args::command();
    let written = match args.out {
        Some(directory) => clap_mangen::generate_to(command, directory),
        None => clap_mangen::Man::new(command).render(&mut io::stdout()),
    };
    written.map_err(|error| Failure::system(format!("the manual cannot be written: {error}")))?;
    Ok(OK)
}

pub(crate) fn completions(args: CompletionsArgs) -> Result<u8, Failure> {
    let mut text = Vec::new();
    clap_complete::generate(
        args.shell,
        &mut crate::args::Args::command(),
        "leasehold",
        &mut text,
    );
    let written = io::Write::write_all(&mut io::stdout(), &text);
    written
        .map_err(|error| Failure::system(format!("the completions cannot be written: {error}")))?;
    Ok(OK)
}
