//! `leasehold top`: a live screen of locks, who holds them and who waits.

mod draw;
mod feed;
mod input;
#[cfg(test)]
mod picture;
mod screen;
mod state;

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::{Context, break_lock};
use crate::duration;
use crate::exit::{Failure, OK};
use crate::look::seen::Seen;
use crate::look::{Budget, Looker};
use feed::Snapshot;
use input::Input;
use screen::Screen;
use state::{Act, State};

/// Shows the locks that are held or waited for, live.
///
/// Keys: up and down select, `s` sorts by the next column and `r` the other way round, `/` filters, space stops the clock, `b`
/// breaks a lock after a question, `q` ends. The keys are scanned within the budget, so of many locks a look takes longer than
/// the interval; hand-offs and renewals are those that two looks in a row show, and so lower bounds.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Keys to show, as `shop:*`.
    pattern: Option<String>,
    /// The time from look to look, if the budget allows it.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration::parse)]
    interval: Duration,
    #[command(flatten)]
    budget: Budget,
}

/// Between two drawings while nothing happens: the ages grow.
const TICK: Duration = Duration::from_millis(500);

pub(crate) async fn execute(args: Args, context: &Context<'_>) -> Result<u8, Failure> {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return Err(Failure::usage(
            "top needs a terminal; `leasehold ls --json` is for programs",
        ));
    }
    let looker = Looker::connect(context.global, args.budget.budget).await?;
    let pattern = looker.pattern(args.pattern.as_deref());
    let mut snapshots = feed::start(looker.clone(), pattern, args.interval);
    let mut inputs = input::start();
    let mut screen =
        Screen::open().map_err(|error| Failure::system(format!("the terminal: {error}")))?;
    let mut state = State::new(
        looker.place(),
        crate::commands::doctor::finding::wants_colours(),
    );
    let ended = watch(
        &mut screen,
        &mut state,
        &mut snapshots,
        &mut inputs,
        &looker,
        context,
    )
    .await;
    drop(screen);
    ended
}

async fn watch(
    screen: &mut Screen,
    state: &mut State,
    snapshots: &mut mpsc::Receiver<Snapshot>,
    inputs: &mut mpsc::Receiver<Input>,
    looker: &Looker,
    context: &Context<'_>,
) -> Result<u8, Failure> {
    loop {
        let drawn = screen.draw(|frame| draw::draw(frame, state, Instant::now()));
        drawn.map_err(|error| Failure::system(format!("the terminal: {error}")))?;
        let act = tokio::select! {
            snapshot = snapshots.recv() => match snapshot {
                Some(snapshot) => {
                    state.look(snapshot, Instant::now());
                    Act::None
                }
                None => return Err(Failure::system("the looks have ended")),
            },
            input = inputs.recv() => match input {
                Some(Input::Key(key)) => state.key(key),
                Some(Input::Resize) => Act::None,
                // The terminal is gone, or somebody ends us.
                Some(Input::End) | None => Act::Quit,
            },
            () = tokio::time::sleep(TICK) => Act::None,
        };
        match act {
            Act::None => {}
            Act::Quit => return Ok(OK),
            Act::Break(seen) => {
                let told = break_one(looker, &seen, context).await;
                state.say(told);
            }
        }
    }
}

async fn break_one(looker: &Looker, seen: &Seen, context: &Context<'_>) -> String {
    let key = crate::look::text::escaped(&seen.key);
    match break_lock::break_it(looker, seen, context).await {
        Ok(true) => format!("broken: {key}"),
        Ok(false) => format!("{key}: nobody held it any more"),
        Err(failure) => failure.message,
    }
}
