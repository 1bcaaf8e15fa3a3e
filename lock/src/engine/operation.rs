//! One change on the server that is no hold: a script that may be repeated, confirmed by replicas if that is asked for.

use std::time::{Duration, Instant};

use leasehold_cluster::{Demand, Replicated, ScriptCall, Unanswered, Unconfirmed};
use leasehold_resp::Value;

use super::context::Context;
use crate::error::{Error, ErrorKind};
use crate::options::Replicas;
use crate::state::names::Name;

/// Makes `call`, and again on transient failures within the command timeout. Then `replicas` confirm it, if `has_written` says
/// of the reply that there is anything to confirm.
///
/// A copy that arrives late does no harm: the script knows its request.
pub(crate) async fn apply(
    context: &Context,
    name: &Name,
    call: &ScriptCall<'_>,
    replicas: Replicas,
    has_written: fn(&Value) -> bool,
) -> Result<Value, Error> {
    let deadline = Instant::now() + context.config.command_timeout;
    let applied = match replicas.quorum() {
        None => {
            let evaluated = context.client.eval(call, deadline).await;
            evaluated
                .map(|evaluated| evaluated.value)
                .map_err(Error::from_client)
        }
        Some(quorum) => {
            let demand = Demand {
                quorum,
                lease: context.config.lease,
                // It is no lease that younger data could have lost.
                guard: Duration::ZERO,
            };
            confirmed(context, call, &demand, deadline, has_written).await
        }
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

async fn confirmed(
    context: &Context,
    call: &ScriptCall<'_>,
    demand: &Demand,
    deadline: Instant,
    has_written: fn(&Value) -> bool,
) -> Result<Value, Error> {
    let mut unanswered = Unanswered::default();
    let replicated =
        context
            .client
            .eval_replicated(call, demand, deadline, has_written, &mut unanswered);
    match replicated.await.map_err(Error::from_client)? {
        Replicated::Untrusted { .. } => Err(Error::new(
            ErrorKind::Unavailable,
            "the master may have lost what its replicas had",
        )),
        Replicated::Ran(ran) => match ran.confirmation {
            Ok(_) => Ok(ran.evaluated.value),
            Err(Unconfirmed::Refused(refusal)) => Err(Error::not_replicated(&refusal)),
            // They cannot be asked, and the change stays.
            Err(Unconfirmed::Failed(error)) => Err(Error::from_client(error)),
        },
    }
}
