//! Keys, changes of the screen's size, and signals.

use std::time::Duration;

use ratatui::crossterm::event::{self, Event, KeyEvent, KeyEventKind};
use tokio::sync::mpsc;

/// Input from outside.
#[derive(Debug)]
pub(super) enum Input {
    Key(KeyEvent),
    Resize,
    /// The terminal is gone, or a signal ends the program.
    End,
}

/// How long the reading thread waits for a key, before it looks whether anybody listens.
const POLL: Duration = Duration::from_millis(200);

/// Starts listening. The terminal is read by a thread of its own, since that blocks.
pub(super) fn start() -> mpsc::Receiver<Input> {
    let (sender, receiver) = mpsc::channel(64);
    let keys = sender.clone();
    std::thread::spawn(move || {
        while !keys.is_closed() {
            let input = match event::poll(POLL) {
                Ok(false) => continue,
                Ok(true) => event::read(),
                Err(error) => Err(error),
            };
            let input = match input {
                Ok(Event::Key(key)) if key.kind != KeyEventKind::Release => Input::Key(key),
                Ok(Event::Resize(..)) => Input::Resize,
                Ok(_) => continue,
                Err(_) => Input::End,
            };
            let is_end = matches!(input, Input::End);
            if keys.blocking_send(input).is_err() || is_end {
                return;
            }
        }
    });
    #[cfg(unix)]
    tokio::spawn(signals(sender));
    receiver
}

/// In raw mode Ctrl-C is a key: these come from other programs.
#[cfg(unix)]
async fn signals(sender: mpsc::Sender<Input>) {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut term), Ok(mut hangup), Ok(mut interrupt)) = (
        signal(SignalKind::terminate()),
        signal(SignalKind::hangup()),
        signal(SignalKind::interrupt()),
    ) else {
        return;
    };
    tokio::select! {
        _ = term.recv() => {}
        _ = hangup.recv() => {}
        _ = interrupt.recv() => {}
        () = sender.closed() => return,
    }
    let _ = sender.send(Input::End).await;
}
