//! Hearing of grants: the subscriptions, and the messages that a ticket of this process became the holder.

use std::sync::{Arc, Weak};

use leasehold_cluster::{Channels, Source, Subscription, SubscriptionEvent, Unanswered};

use super::context::Context;
use super::line::{Line, Standing};
use super::release::{self, Withdrawn};
use crate::options::Interop;
use crate::protocol::Protocol;
use crate::protocol::fair;
use crate::protocol::grant::{self, GrantMessage, NextMessage};
use crate::protocol::permits::Permits;
use crate::protocol::read_write::READ;
use crate::state::names::Name;
use crate::state::ticket::Grant;

/// Whether a ticket for `name` would hear of everything that concerns it.
pub(super) fn is_listening(
    context: &Context,
    protocol: &'static Protocol,
    name: &Arc<Name>,
) -> bool {
    let hears_releases = || {
        let table = &context.registry.table;
        table.with_line(name, |line| line.releases.is_some()) == Some(true)
    };
    let awaits_releases = context.config.interop == Interop::Redisson && !protocol.is_fair;
    asked_over(context, name).is_some() && (!awaits_releases || hears_releases())
}

/// The connection over which the grants of `name` were subscribed to: what is asked over it now is answered behind that. In
/// a cluster without sharded channels it may be one to another node.
pub(super) fn asked_over(context: &Context, name: &Arc<Name>) -> Option<Source> {
    match context.client.channels() {
        Channels::Sharded => context
            .registry
            .table
            .with_line(name.whole(), |line| line.grants.as_ref()?.asked_over())?,
        Channels::Server | Channels::Cluster => context.grants().as_ref()?.asked_over(),
    }
}

/// Goes on with a subscription to the grants of `name` that was kept since it was wanted last.
pub(super) fn resume(context: &Context, name: &Arc<Name>) {
    if context.client.channels() == Channels::Sharded {
        context.registry.table.resume(name.whole());
    }
}

/// Subscribes to the grants of `name`, and with Redisson to its releases, unless that was done.
pub(super) fn listen(context: &Arc<Context>, protocol: &'static Protocol, name: &Arc<Name>) {
    listen_to_grants(context, protocol, name);
    if context.config.interop == Interop::Redisson && !protocol.is_fair {
        let name = name.whole();
        let table = &context.registry.table;
        let known = table.with_line(name, |line| line.releases.is_some());
        if known == Some(false) {
            let releases = subscribe_to_releases(context, protocol, name);
            table.with_line(name, |line| line.releases = Some(releases));
        }
    }
}

/// Subscribes to the grants of `name`, unless that was done.
pub(super) fn listen_to_grants(
    context: &Arc<Context>,
    protocol: &'static Protocol,
    name: &Arc<Name>,
) {
    let table = &context.registry.table;
    // Its lanes share them.
    let name = name.whole();
    if context.client.channels() == Channels::Sharded {
        let known = table.with_line(name, |line| line.grants.is_some());
        if known == Some(false) {
            let channel = grant::sharded_channel(name.derived(protocol.line), context.id());
            let waited_for = Arc::clone(name);
            let grants = subscribe_to_grants(context, &channel, move |context, source| {
                let now = context.clock().now();
                let table = &context.registry.table;
                table.with_gate(&waited_for, |gate| gate.subscribed(source));
                table.with_tickets(&waited_for, |ticket| {
                    ticket.subscribed(source, now);
                });
            });
            table.with_line(name, |line| line.grants = Some(grants));
        }
    } else if context.grants().is_none() {
        let channel = grant::channel(context.id());
        let grants = subscribe_to_grants(context, &channel, |context, source| {
            context.registry.table.subscribed(source);
        });
        // Another waiter may have been quicker; then its subscription ends here, outside of the lock.
        let superfluous = context.grants().replace(grants);
        drop(superfluous);
    }
}

/// Subscribes to the channel on which Redisson tells that this run of fair tickets is next, unless that was done.
pub(super) fn listen_to_run(
    context: &Arc<Context>,
    protocol: &'static Protocol,
    name: &Arc<Name>,
    run: u8,
) {
    let table = &context.registry.table;
    let name = name.whole();
    let is_known = |line: &mut Line| line.runs.iter().any(|(known, _)| *known == run);
    if table.with_line(name, is_known) != Some(false) {
        return;
    }
    let (listening, told) = (Arc::downgrade(context), Arc::clone(name));
    let channel = fair::run_channel(name, run);
    let subscription = context.client.listen(channel.as_bytes(), move |event, _| {
        let Some(context) = listening.upgrade() else {
            return;
        };
        let (table, now) = (&context.registry.table, context.clock().now());
        // One look serves the first in line, whoever that is.
        match event {
            SubscriptionEvent::Message(message) if (protocol.is_release)(&message) => {
                table.with_first_ticket(&told, run, |ticket| ticket.released_by_redisson(now));
            }
            // It may have been told before.
            SubscriptionEvent::Subscribed => {
                table.with_first_ticket(&told, run, |ticket| ticket.look_now(now));
            }
            _ => {}
        }
    });
    let mut subscription = Some(subscription);
    table.with_line(name, |line| {
        if !is_known(line) {
            line.runs.extend(subscription.take().map(|new| (run, new)));
        }
    });
    // Another waiter may have been quicker; then it ends here, outside of the lock.
    drop(subscription);
}

/// Subscribes to the channel of grants called `channel`; `subscribed` hears when that is confirmed, since what was granted
/// before was not heard.
fn subscribe_to_grants(
    context: &Arc<Context>,
    channel: &str,
    subscribed: impl Fn(&Context, Source) + Send + Sync + 'static,
) -> Subscription {
    let listening = Arc::downgrade(context);
    context
        .client
        .listen(channel.as_bytes(), move |event, source| {
            let Some(context) = listening.upgrade() else {
                return;
            };
            match event {
                SubscriptionEvent::Message(message) => granted(&context, &message, source),
                SubscriptionEvent::Subscribed => subscribed(&context, source),
                _ => {}
            }
        })
}

fn subscribe_to_releases(
    context: &Arc<Context>,
    protocol: &'static Protocol,
    name: &Arc<Name>,
) -> Subscription {
    let (listening, released): (Weak<Context>, _) = (Arc::downgrade(context), Arc::clone(name));
    let channel = name.channel().as_bytes();
    context.client.listen(channel, move |event, _| {
        if let SubscriptionEvent::Message(message) = event
            && (protocol.is_release)(&message)
            && let Some(context) = listening.upgrade()
        {
            let now = context.clock().now();
            let table = &context.registry.table;
            table.with_ticket(&released, |ticket| {
                if protocol.access.is_counted() {
                    ticket.permits_released(now);
                } else {
                    ticket.released_by_redisson(now);
                }
            });
        }
    })
}

/// A message came that a ticket of this process became the holder, or that somebody waits to write where it reads.
fn granted(context: &Arc<Context>, message: &[u8], source: Source) {
    if let Some((number, at)) = grant::told_to_look(message) {
        context.registry.table.told_to_look(number, at);
        return;
    }
    if let Some(next) = NextMessage::read(message) {
        context.registry.table.is_next(next.number, next.lease);
        return;
    }
    let Some(message) = GrantMessage::read(message) else {
        if let Some((number, key)) = grant::read_notice(message) {
            let name = Arc::new(Name::new(READ.layout, None, key));
            context.registry.table.writer_waits(&name, number);
        }
        return;
    };
    let grant = Grant {
        token: message.token,
        at: message.at,
        lease: message.lease,
        receipt: context.clock().read(),
        source,
    };
    let table = &context.registry.table;
    if table.granted(message.number, grant) {
        return;
    }
    let protocol = message.protocol;
    let name = Arc::new(Name::new(protocol.layout, None, message.key));
    if table.is_of(&name, message.number) {
        // Found by a look before the message came.
        return;
    }
    // Taken back, or of a request that ran late: it is handed on.
    release::withdraw(
        context,
        Withdrawn {
            protocol,
            name,
            id: context.hold(message.number),
            permits: Permits::NONE,
            ticket: None,
            lease: message.lease,
        },
        Unanswered::default(),
        context.registry.work.unfinished(),
    );
}

/// Takes back what the waiters of a name have at the server, since none of them is left.
pub(crate) fn abandon(context: &Arc<Context>, name: &Arc<Name>, mut line: Line) {
    let table = &context.registry.table;
    if let Some(standing) = line.standing.take() {
        table.unstand(standing.ticket.id().number());
        take_back(context, name, *standing);
    }
    table.park(name, line);
}

/// Takes a ticket back, or the hold that it became.
pub(super) fn take_back(context: &Arc<Context>, name: &Arc<Name>, standing: Standing) {
    let Standing {
        protocol,
        ticket,
        permits,
        lease,
        unanswered,
        unfinished,
        ..
    } = standing;
    if !ticket.has_joined() {
        return;
    }
    let withdrawn = Withdrawn {
        protocol,
        name: Arc::clone(name),
        id: *ticket.id(),
        permits,
        ticket: Some(ticket.text()),
        lease,
    };
    release::withdraw(context, withdrawn, unanswered, unfinished);
}
