//! Standing back: leaving a lock free for other processes when it is their turn.

use std::time::{Duration, Instant};

use super::queue::Place;
use super::request::{Request, Wait};
use crate::error::Error;
use crate::protocol::Look;
use crate::state::fairness::StandBack;

/// Pause before the first look for another holder: one that is nearby has the lock by then.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// The pause doubles with each look, up to this.
const LONGEST_PAUSE: Duration = Duration::from_millis(32);

/// Stands back if it is the turn of other processes: until one of them was seen to hold the lock, and no longer than
/// `until`. Returns whether to ask for the lock now.
///
/// A single attempt does not wait: its one round trip goes to the look for another holder.
pub(super) async fn stand_back(
    request: &Request,
    place: &Place,
    until: Option<Instant>,
) -> Result<bool, Error> {
    let Request { context, name, .. } = request;
    let mut pause = FIRST_PAUSE;
    loop {
        let now = Instant::now();
        let Some(standing) = context.fairness().stand_back(name.hash(), now) else {
            return Ok(true);
        };
        if matches!(request.wait, Wait::None) {
            look(request, standing, now + context.config.command_timeout).await;
            return Ok(false);
        }
        let end = until.map_or(standing.until, |until| until.min(standing.until));
        if end <= now {
            return Ok(false);
        }
        place.pause((now + pause).min(end)).await?;
        look(request, standing, end).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Asks the server whether another process has the lock, or has had it since the last grant here. Without an answer by
/// `end` that stays unknown.
async fn look(request: &Request, standing: StandBack, end: Instant) {
    let Request {
        context,
        protocol,
        name,
        ..
    } = request;
    let call = (protocol.look)(&Look {
        name,
        token: standing.token,
    });
    let slices = call.slices();
    let call = slices.call();
    let answer = context.client.eval(&call, end);
    if let Ok(Ok(evaluated)) = tokio::time::timeout_at(end.into(), answer).await
        && (protocol.read_look)(&evaluated.value)
    {
        context.fairness().seen(name.hash(), Instant::now());
    }
}
