//! leasehold beside hand-made floors and other clients, in one run: medians, and ratios within the
//! run.

mod alloc;
mod client;
mod cluster;
mod cpu;
mod floor;
mod harness;
mod machine;
mod ours;
mod peers;
mod report;
mod sample;
mod scripts;
mod server;
mod statistics;
mod works;

use std::io::{Error, Result};
use std::process::ExitCode;
use std::time::Instant;

use lexopt::prelude::*;

use crate::harness::{Effort, Harness};
use crate::report::{aims, with_figures};
use crate::sample::Request;
use crate::works::{ALL, Work};

#[global_allocator]
static ALLOCATOR: alloc::Counting = alloc::Counting;

const USAGE: &str = "\
Measures leasehold beside floors and other clients.

  --quick        two short rounds: under three minutes, for a first look
  --full         clean builds as well: minutes more
  --only NAME    this work only; may be repeated
  --write        writes the figures to bench/RESULTS.md too; not with --only
  --list         the names of the works";

/// The options of the command line.
struct Options {
    effort: Effort,
    only: Vec<String>,
    write: bool,
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match args.split_first() {
        Some((first, rest)) if first == "sample" => sample(rest),
        _ => options().and_then(|options| options.map_or(Ok(()), |options| run(&options))),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// `None` when the answer has been printed.
fn options() -> Result<Option<Options>> {
    let mut options = Options {
        effort: Effort::Normal,
        only: Vec::new(),
        write: false,
    };
    let mut parser = lexopt::Parser::from_env();
    while let Some(arg) = parser.next().map_err(Error::other)? {
        match arg {
            Long("quick") => options.effort = Effort::Quick,
            Long("full") => options.effort = Effort::Full,
            Long("write") => options.write = true,
            Long("only") => options.only.push(
                parser
                    .value()
                    .map_err(Error::other)?
                    .string()
                    .map_err(Error::other)?,
            ),
            Long("list") => {
                ALL.iter().for_each(|work| println!("{}", work.name));
                return Ok(None);
            }
            Long("help") | Short('h') => {
                println!("{USAGE}");
                return Ok(None);
            }
            other => return Err(Error::other(other.unexpected())),
        }
    }
    if options.write && !options.only.is_empty() {
        return Err(Error::other(
            "--write replaces all figures; leave out --only",
        ));
    }
    match options
        .only
        .iter()
        .find(|only| !ALL.iter().any(|work| work.name == only.as_str()))
    {
        Some(unknown) => Err(Error::other(format!(
            "no work is called {unknown}; see --list"
        ))),
        None => Ok(Some(options)),
    }
}

fn run(options: &Options) -> Result<()> {
    let start = Instant::now();
    let harness = Harness::start(options.effort)?;
    let machine = machine::describe(&harness);
    println!("{machine}");
    let asked =
        |work: &&Work| options.only.is_empty() || options.only.iter().any(|only| only == work.name);
    let mut sections = Vec::new();
    for work in ALL.iter().filter(asked) {
        eprintln!("{} ...", work.name);
        let section = (work.run)(&harness)?;
        println!("{}", section.to_markdown());
        sections.push(section);
    }
    let (samples, disturbed) = harness.counts();
    let summary = format!(
        "## Aims\n\n{}\n{samples} samples in {:.0} s; {disturbed} of them were disturbed by other work on the machine to \
         the end.",
        aims(&sections),
        start.elapsed().as_secs_f64(),
    );
    println!("{summary}");
    if options.write {
        let details: String = sections
            .iter()
            .map(|section| section.to_markdown() + "\n")
            .collect();
        write(&format!("{machine}\n{summary}\n\n{details}"))?;
    }
    Ok(())
}

/// Puts the figures into RESULTS.md and leaves its prose as it is.
fn write(figures: &str) -> Result<()> {
    let path = works::build::workspace().join("RESULTS.md");
    let text = with_figures(&std::fs::read_to_string(&path)?, figures).ok_or_else(|| {
        Error::other(format!(
            "{} has no marks around the figures",
            path.display()
        ))
    })?;
    std::fs::write(&path, text)?;
    eprintln!("written to {}", path.display());
    Ok(())
}

/// A sample process: one candidate, one work, figures on standard output.
fn sample(args: &[String]) -> Result<()> {
    let request =
        Request::from_args(args).ok_or_else(|| Error::other("not the arguments of a sample"))?;
    let work = ALL.iter().find(|work| work.name == request.work);
    let work = work.ok_or_else(|| Error::other(format!("no work is called {}", request.work)))?;
    for (name, value) in (work.sample)(&request) {
        println!("{name} {value}");
    }
    Ok(())
}
