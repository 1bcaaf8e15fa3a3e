//! One change on the server that is no hold: a script that may be repeated, confirmed by replicas if that is asked for.

use std::time::{Duration, Instant};

use leasehold_cluster::{Demand, Effect, Quorum, Replicated, ScriptCall, Unanswered, Unconfirmed};
use leasehold_resp::Value;

use super::context::Context;
use crate::error::{Error, ErrorKind};
use crate::options::Replicas;
use crate::state::names::Name;

/// The pause before a master with young data is asked again: its successor may have what it lost.
const YOUNG_PAUSE: Duration = Duration::from_millis(100);

/// Makes `call`, and again on transient failures within the command timeout. Then `replicas` confirm it, if `effect` says of the
/// reply that there is anything to confirm.
///
/// A copy that arrives late does no harm: the script knows its request.
pub(crate) async fn apply(
    context: &Context,
    name: &Name,
    call: &ScriptCall<'_>,
    replicas: Replicas,
    effect: impl Fn(&Value) -> Effect,
) -> Result<Value, Error> {
    let deadline = Instant::now() + context.config.command_timeout;
    let applied = match replicas.quorum() {
        None => {
            let evaluated = context.client.eval(call, deadline).await;
            evaluated
                .map(|evaluated| evaluated.value)
                .map_err(Error::from_client)
        }
        Some(quorum) => confirmed(context, call, quorum, deadline, effect).await,
    };
    applied.map_err(|error| context.about(name, error.of_change()))
}

/// Asks what is there, within the command timeout.
pub(crate) async fn ask(
    context: &Context,
    name: &Name,
    call: &ScriptCall<'_>,
) -> Result<Value, Error> {
    let deadline = Instant::now() + context.config.command_timeout;
    let evaluated = context.client.eval(call, deadline).await;
    evaluated
        .map(|evaluated| evaluated.value)
        .map_err(|error| context.about(name, Error::from_read(error)))
}

/// The same of a master whose data are older than the longest lease, if `misses` says that the reply finds nothing: a master that
/// lost its data finds nothing either. `None` if they are younger.
pub(crate) async fn ask_proven(
    context: &Context,
    name: &Name,
    call: &ScriptCall<'_>,
    quorum: Quorum,
    misses: impl Fn(&Value) -> bool,
) -> Result<Option<Value>, Error> {
    let deadline = Instant::now() + context.config.command_timeout;
    let effect = |reply: &Value| {
        if misses(reply) {
            missed(context)
        } else {
            Effect::Nothing
        }
    };
    let ran = run(context, call, quorum, deadline, effect).await;
    let ran = ran.map_err(|error| context.about(name, Error::from_read(error)))?;
    Ok(match ran {
        Replicated::Untrusted { .. } => None,
        Replicated::Ran(ran) => Some(ran.evaluated.value),
    })
}

/// The effect of a call that found nothing.
pub(crate) fn missed(context: &Context) -> Effect {
    Effect::Missed(context.guard_time(context.config.lease))
}

/// Where nothing was found and that is not proven, a pause before the next question; the error of that if `deadline` comes first.
pub(crate) async fn pause_unproven(pause: Duration, deadline: Instant) -> Result<(), Error> {
    if Instant::now() + pause >= deadline {
        return Err(Error::new(
            ErrorKind::Unavailable,
            "nothing is there, but the data of the master are younger than the longest lease: it may have lost what its replicas had",
        ));
    }
    tokio::time::sleep(pause).await;
    Ok(())
}

async fn confirmed(
    context: &Context,
    call: &ScriptCall<'_>,
    quorum: Quorum,
    deadline: Instant,
    effect: impl Fn(&Value) -> Effect,
) -> Result<Value, Error> {
    // Where it was before the data were lost, it may have been done.
    let mut doubted = false;
    let failed = |error: Error, doubted| if doubted { error.doubted() } else { error };
    loop {
        let ran = run(context, call, quorum, deadline, &effect).await;
        match ran.map_err(|error| failed(Error::from_client(error), doubted))? {
            Replicated::Untrusted { left, repeated, .. } => {
                doubted |= repeated;
                let paused = pause_unproven(left.min(YOUNG_PAUSE), deadline).await;
                paused.map_err(|error| failed(error, doubted))?;
            }
            Replicated::Ran(ran) => {
                return match ran.confirmation {
                    Ok(_) => Ok(ran.evaluated.value),
                    Err(Unconfirmed::Refused(refusal)) => Err(Error::not_replicated(&refusal)),
                    // They cannot be asked, and the change stays.
                    Err(Unconfirmed::Failed(error)) => Err(Error::from_client(error)),
                };
            }
        }
    }
}

async fn run(
    context: &Context,
    call: &ScriptCall<'_>,
    quorum: Quorum,
    deadline: Instant,
    effect: impl Fn(&Value) -> Effect,
) -> Result<Replicated, leasehold_resp::Error> {
    let demand = Demand {
        quorum,
        lease: context.config.lease,
        // What is written is no lease that younger data could have lost.
        guard: Duration::ZERO,
    };
    let mut unanswered = Unanswered::default();
    let client = &context.client;
    client
        .eval_replicated(call, &demand, deadline, effect, &mut unanswered)
        .await
}
