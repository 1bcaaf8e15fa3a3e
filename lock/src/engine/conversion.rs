//! Holds that read and go on to write, or the other way round, on one script call.
//!
//! The hold keeps its id. Its scripts turn only what is there, and a release takes back either, so an answer that is lost or comes
//! late is cleaned up by the release of the guard.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold_cluster::{Demand, Effect, Evaluated, Replicated, Unanswered, Unconfirmed};

use super::attempt::restart_grace;
use super::context::Context;
use super::hold::{Granted, Hold};
use super::readers;
use super::release;
use super::request::settled;
use crate::error::{Error, ErrorKind, LostReason};
use crate::observer::{GaveUpReason, Way};
use crate::options::Interop;
use crate::protocol::call::Call;
use crate::protocol::{Answer, Attempt, Protocol};
use crate::state::hold::Leave;
use crate::state::waiters::Access;

/// A way to convert a hold.
#[derive(Debug)]
pub(crate) struct Conversion {
    /// The protocol of the hold afterwards.
    pub(crate) to: &'static Protocol,
    pub(crate) call: for<'a> fn(&Attempt<'a>) -> Call<'a>,
}

/// The outcome of a conversion.
#[derive(Debug)]
pub(crate) enum Converted {
    /// The hold is over, and goes on as this one.
    To(Arc<Hold>),
    /// There was nothing to convert: the guard has what it asks for, from a hold that other guards of its owner share.
    Nested,
    /// Others are in the way. The hold is what it was.
    Refused,
}

/// The server's answer to a conversion.
struct Answered {
    evaluated: Evaluated,
    acknowledged: usize,
}

/// Converts `hold`, for one guard of it. On an error the guard is to be dropped, which releases whatever the hold has become.
///
/// # Cancel safety
///
/// Dropping the future leaves a hold whose guard is to be dropped.
pub(crate) async fn convert(
    context: &Arc<Context>,
    hold: &Arc<Hold>,
    conversion: &Conversion,
) -> Result<Converted, Error> {
    let about = |error| context.about(&hold.name, error);
    context.check().map_err(about)?;
    if let Some(reason) = release::check(&context.registry, hold) {
        return Err(about(lost(reason)));
    }
    let writes = conversion.to.access == Access::Exclusive;
    if std::ptr::eq(hold.protocol, conversion.to) {
        return Ok(Converted::Nested);
    }
    let number = hold.id.number();
    // First, so that nobody joins whoever does not count below.
    let table = &context.registry.table;
    let open = table.take_from_gate(&hold.name, number);
    let put_back = || {
        table.with_gate(&hold.name, |gate| open.and_then(|open| gate.put_back(open)));
    };
    if !hold.state().seal() {
        put_back();
        return Ok(if writes {
            Converted::Refused
        } else {
            Converted::Nested
        });
    }
    let caller = context.caller(&hold.name, conversion.to.primitive);
    match converted(context, hold, conversion).await.map_err(about) {
        Ok(Some(converted)) => {
            let telemetry = &context.registry.telemetry;
            telemetry.ended(hold.subject(), LostReason::Released, false);
            converted.granted_to(caller);
            Ok(Converted::To(converted))
        }
        Ok(None) => {
            caller.gave_up(GaveUpReason::NotFree);
            hold.state().unseal();
            put_back();
            Ok(Converted::Refused)
        }
        Err(error) => {
            caller.failed(&error);
            Err(error)
        }
    }
}

/// Asks the server, and puts what it says in the place of `hold`; `None` if others are in the way.
async fn converted(
    context: &Arc<Context>,
    hold: &Arc<Hold>,
    conversion: &Conversion,
) -> Result<Option<Arc<Hold>>, Error> {
    let registry = &context.registry;
    if hold.terms.needs_renewal() {
        registry.start_worker()?;
    }
    let deadline = Instant::now() + context.config.command_timeout;
    let writes = conversion.to.access == Access::Exclusive;
    if writes
        && restart_grace(context, &hold.terms, &hold.name, deadline)
            .await?
            .is_some()
    {
        // The server may have forgotten other readers.
        return Ok(None);
    }
    let terms = settled(hold.terms, conversion.to.access, context.config.interop);
    let Some(lease) = hold.state().rest(context.clock().read()) else {
        return Err(lost(LostReason::MaxHold));
    };
    let lease = lease.min(terms.lease);
    let heard = readers::hears_of(context, conversion.to, &hold.name);
    let Some(answered) = ask(context, hold, conversion, lease, deadline).await? else {
        return Ok(None);
    };
    let value = &answered.evaluated.value;
    let (token, left, contended) = match (conversion.to.read_confirm)(value) {
        Some(Answer::Granted {
            token,
            left,
            contended,
        }) => (token, left.map_or(lease, |left| left.min(lease)), contended),
        Some(Answer::Held(Duration::ZERO)) => {
            release::lose(registry, hold, LostReason::Stolen);
            return Err(lost(LostReason::Stolen));
        }
        Some(Answer::Held(_)) => return Ok(None),
        _ => return Err(Error::unexpected(value)),
    };
    if let Some(reason) = release::check(registry, hold) {
        // An answer that comes too late revives nothing.
        return Err(lost(reason));
    }
    let converted = Hold::new(Granted {
        protocol: conversion.to,
        token,
        terms,
        ..answered.granted(hold, left)
    });
    replace(context, hold, &converted)?;
    if !contended {
        let source = answered.evaluated.source;
        readers::begin(context, &converted, Some((source, heard)));
    }
    Ok(Some(converted))
}

impl Answered {
    /// The same hold again, with this lease from now on.
    fn granted(&self, hold: &Hold, lease: Duration) -> Granted {
        Granted {
            protocol: hold.protocol,
            name: Arc::clone(&hold.name),
            id: hold.id,
            permits: hold.permits(),
            token: hold.token,
            terms: hold.terms,
            owner: hold.owner.clone(),
            acknowledged: self.acknowledged,
            way: Way::Converted,
            since: hold.state().since(),
            lease,
            lease_since: hold
                .clock()
                .at(self.evaluated.sent, self.evaluated.sent_wall),
            chain: None,
            ticket: hold.ticket,
            unanswered: hold.unanswered.clone(),
            clock: hold.clock().clone(),
        }
    }
}

/// `converted` takes the place of `hold`, which ends without a release.
fn replace(context: &Arc<Context>, hold: &Arc<Hold>, converted: &Arc<Hold>) -> Result<(), Error> {
    if !converted.is_live() {
        return Err(lost(LostReason::Expired));
    }
    if let Some(token) = converted.token {
        context.saw(token);
    }
    converted.keep(Arc::<Context>::clone(context));
    context.registry.table.convert(hold, converted)?;
    let left = hold.state().leave(0);
    if let Leave::Last(ending) = left {
        context.registry.work.forget(ending.scheduled);
    }
    hold.announce_end();
    if let Some(owner) = &converted.owner {
        owner.remember(converted);
    }
    if converted.needs_renewal() {
        context.registry.work.renew(converted);
    }
    Ok(())
}

/// Makes the call, and has it confirmed by replicas if that was asked for; `None` if the server's data may have lost holds.
async fn ask(
    context: &Context,
    hold: &Hold,
    conversion: &Conversion,
    lease: Duration,
    deadline: Instant,
) -> Result<Option<Answered>, Error> {
    let call = (conversion.call)(&attempt(context, hold, lease));
    let slices = call.slices();
    let call = slices.call();
    let Some(quorum) = hold.terms.quorum() else {
        let evaluated = context.client.eval(&call, deadline).await;
        return Ok(Some(Answered {
            evaluated: evaluated.map_err(Error::from_client)?,
            acknowledged: 0,
        }));
    };
    let writes = conversion.to.access == Access::Exclusive;
    let demand = Demand {
        quorum,
        lease,
        // What is still there was not forgotten; but those who would be in the way may have been.
        guard: if writes {
            context.guard_time(lease)
        } else {
            Duration::ZERO
        },
    };
    let effect = |value: &leasehold_resp::Value| {
        let answer = (conversion.to.read_confirm)(value);
        Effect::of_write(matches!(answer, Some(Answer::Granted { .. })))
    };
    let mut unanswered = Unanswered::default();
    let replicated =
        context
            .client
            .eval_replicated(&call, &demand, deadline, effect, &mut unanswered);
    match replicated.await.map_err(Error::from_client)? {
        Replicated::Untrusted { ran: false, .. } => Ok(None),
        Replicated::Untrusted { ran: true, .. } => Err(Error::new(
            ErrorKind::Unavailable,
            "the data of the server may have lost holds",
        )),
        Replicated::Ran(ran) => Ok(Some(Answered {
            evaluated: ran.evaluated,
            acknowledged: ran.confirmation.map_err(|why| match why {
                Unconfirmed::Refused(refusal) => Error::not_replicated(&refusal),
                Unconfirmed::Failed(error) => Error::unconfirmed(error),
            })?,
        })),
    }
}

fn attempt<'a>(context: &Context, hold: &'a Hold, lease: Duration) -> Attempt<'a> {
    let interop = context.config.interop;
    Attempt {
        name: &hold.name,
        id: &hold.id,
        permits: hold.permits(),
        lease,
        counter_ttl: interop.counter_ttl(lease),
        channels: context.client.channels(),
        highest_token: context.highest_token(),
        block: None,
        beside_redisson: false,
        redisson: interop == Interop::Redisson,
        with_line: true,
        ticket: None,
    }
}

fn lost(reason: LostReason) -> Error {
    Error::new(ErrorKind::Lost, reason.to_string())
}
