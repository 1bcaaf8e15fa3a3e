//! What a subscriber of `tracing` sees of locks.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use leasehold::Locks;
use leasehold::observer::Traces;
use leasehold_testkit::{Server, in_own_process};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

use crate::support::{ms, take, until};

/// What was seen, by span: its name and number, or `event` and the number of the span that it is in.
#[derive(Clone, Default)]
struct Capture(Arc<Mutex<Seen>>);

#[derive(Default)]
struct Seen {
    spans: BTreeMap<u64, Span>,
    events: Vec<(Option<u64>, Fields)>,
}

#[derive(Clone, Debug, Default)]
struct Span {
    name: &'static str,
    parent: Option<u64>,
    follows: Option<u64>,
    fields: Fields,
    is_closed: bool,
}

#[derive(Clone, Debug, Default)]
struct Fields(BTreeMap<&'static str, String>);

impl Capture {
    fn span(&self, name: &str, key: &str) -> Option<(u64, Span)> {
        let seen = self.0.lock().unwrap();
        let is_it = |span: &Span| span.name == name && span.fields.get("leasehold.key") == key;
        let mut spans = seen.spans.iter();
        spans
            .find(|(_, span)| is_it(span))
            .map(|(id, span)| (*id, span.clone()))
    }

    /// The events with this message, and the spans that they are in.
    fn events(&self, message: &str) -> Vec<(Option<u64>, Fields)> {
        let seen = self.0.lock().unwrap();
        let events = seen.events.iter();
        let of_message = events.filter(|(_, fields)| fields.get("message") == message);
        of_message.cloned().collect()
    }
}

impl Fields {
    fn get(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    #[track_caller]
    fn are(&self, expected: &[(&str, &str)]) {
        for (name, value) in expected {
            assert_eq!(self.get(name), *value, "{name} of {self:?}");
        }
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.into());
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Capture {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        let span = Span {
            name: attributes.metadata().name(),
            parent: context
                .span(id)
                .and_then(|span| span.parent())
                .map(|parent| parent.id().into_u64()),
            fields,
            ..Span::default()
        };
        let mut seen = self.0.lock().unwrap();
        // Numbers are used again: nothing here closes so many.
        seen.spans.insert(id.into_u64(), span);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, _: Context<'_, S>) {
        let mut seen = self.0.lock().unwrap();
        if let Some(span) = seen.spans.get_mut(&id.into_u64()) {
            values.record(&mut span.fields);
        }
    }

    fn on_follows_from(&self, id: &Id, follows: &Id, _: Context<'_, S>) {
        let mut seen = self.0.lock().unwrap();
        if let Some(span) = seen.spans.get_mut(&id.into_u64()) {
            span.follows = Some(follows.into_u64());
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let span = context.event_span(event).map(|span| span.id().into_u64());
        self.0.lock().unwrap().events.push((span, fields));
    }

    fn on_close(&self, id: Id, _: Context<'_, S>) {
        let mut seen = self.0.lock().unwrap();
        if let Some(span) = seen.spans.get_mut(&id.into_u64()) {
            span.is_closed = true;
        }
    }
}

/// Subscribes for the whole process, since losses are told on another thread.
fn capture() -> Capture {
    let capture = Capture::default();
    let subscriber = tracing_subscriber::registry().with(capture.clone());
    tracing::subscriber::set_global_default(subscriber).expect("the only one");
    capture
}

#[test]
fn acquires_and_holds_are_spans_with_the_fields_of_databases() {
    in_own_process(async {
        let seen = capture();
        let server = Server::start().await;
        let mut raw = server.raw().await;
        let url = format!("{}/3", server.url());
        let builder = Locks::builder(url).lease(ms(900)).observer(Traces::new());
        let locks = builder.connect().await.unwrap();
        let port = server.port().to_string();
        let request = tracing::info_span!("request");
        let guard = {
            let _entered = request.enter();
            take(&locks, "a").await
        };
        let token = guard.token().to_string();
        assert!(locks.mutex("a").try_lock().await.unwrap().is_none());
        until("a renewal", async || !seen.events("renewed").is_empty()).await;
        let database = [
            ("db.system.name", "redis"),
            ("db.namespace", "3"),
            ("server.address", "127.0.0.1"),
            ("server.port", &port),
            ("leasehold.primitive", "mutex"),
            ("leasehold.way", "at_once"),
            ("leasehold.token", &token),
        ];
        let (acquire, span) = seen
            .span("leasehold.acquire", "a")
            .expect("it was waited for");
        span.fields.are(&database);
        span.fields
            .are(&[("leasehold.outcome", "granted"), ("otel.kind", "client")]);
        assert_eq!(span.parent, request.id().map(|id| id.into_u64()));
        assert!(span.is_closed);
        let (hold, span) = seen.span("leasehold.hold", "a").expect("it is held");
        span.fields.are(&database);
        assert_eq!(span.follows, Some(acquire));
        assert!(!span.is_closed);
        assert!(
            seen.events("renewed")
                .iter()
                .all(|(span, _)| *span == Some(hold))
        );

        raw.cmd(&["SELECT", "3"]).await;
        raw.cmd(&["DEL", "a"]).await;
        until("the loss", async || !seen.events("lease lost").is_empty()).await;
        let (span, event) = seen.events("lease lost").remove(0);
        assert_eq!(span, Some(hold));
        event.are(&[("leasehold.key", "a"), ("error.type", "stolen")]);
        let (_, span) = seen.span("leasehold.hold", "a").expect("it was held");
        span.fields
            .are(&[("leasehold.outcome", "lost"), ("error.type", "stolen")]);
        assert!(span.is_closed);
        drop(guard);

        raw.cmd(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"])
            .await;
        until("a connection", async || {
            seen.events("reconnected").len() == 2
        })
        .await;
        let (_, event) = seen.events("reconnected").remove(0);
        event.are(&[("server.address", "127.0.0.1"), ("server.port", &port)]);
        take(&locks, "b").await.release().await.unwrap();
        let (_, span) = seen.span("leasehold.hold", "b").expect("it was held");
        span.fields.are(&[("leasehold.outcome", "released")]);
        assert!(span.is_closed);
        raw.cmd(&["SET", "wrong", "no lock"]).await;
        assert!(locks.mutex("wrong").lock().await.is_err());
        let (_, span) = seen
            .span("leasehold.acquire", "wrong")
            .expect("it was asked for");
        span.fields.are(&[
            ("leasehold.outcome", "failed"),
            ("error.type", "wrong_type"),
        ]);
    });
}

#[test]
fn keys_and_passwords_are_left_out() {
    in_own_process(async {
        let seen = capture();
        let server = Server::builder().requirepass("secret-word").start().await;
        let builder = Locks::builder(server.url()).lease(ms(900));
        let locks = builder.observer(Traces::new().without_keys());
        let locks = locks.connect().await.unwrap();
        let guard = take(&locks, "user:jane").await;
        until("a renewal", async || !seen.events("renewed").is_empty()).await;
        assert!(locks.mutex("user:jane").force_unlock().await.unwrap());
        until("the loss", async || !seen.events("lease lost").is_empty()).await;
        drop(guard);
        let seen = seen.0.lock().unwrap();
        let spans = format!("{:?}{:?}", seen.spans, seen.events);
        assert!(spans.contains("leasehold.acquire") && spans.contains("stolen"));
        for private in ["jane", "secret-word"] {
            assert!(!spans.contains(private), "{private} in {spans}");
        }
    });
}
