//! Panics in callers' code on a shared connection: other callers are not affected.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use leasehold_resp::connection::Event;
use leasehold_resp::{Command, Connection, Encode, Endpoint, Value, encode};
use leasehold_testkit::Server;
use tokio::sync::mpsc;

use crate::support::BOUND;

/// Writes a part of a request and panics.
struct Half;

impl Encode for Half {
    fn encode(&self, out: &mut Vec<u8>) {
        encode::array(out, 2);
        encode::bulk(out, b"ECHO");
        panic!("as the test wants it");
    }
}

fn echo(text: &str) -> Command {
    Command::new("ECHO").arg(text)
}

async fn is_well(connection: &Connection) {
    for text in ["one", "two"] {
        let reply = tokio::time::timeout(BOUND, connection.submit(&echo(text))).await;
        let reply = reply.expect("in time").unwrap();
        assert_eq!(reply.as_str(), Some(text), "somebody else's reply");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_whose_encoding_panics_leaves_nothing_behind() {
    let server = Server::start().await;
    let connection = Connection::connect(Endpoint::parse(&server.url()).unwrap())
        .await
        .unwrap();
    let first = connection.submit(&echo("first"));
    let submitting = catch_unwind(AssertUnwindSafe(|| drop(connection.submit(&Half))));
    assert!(submitting.is_err());
    let second = connection.submit(&echo("second"));
    assert_eq!(first.await.unwrap().as_str(), Some("first"));
    assert_eq!(second.await.unwrap().as_str(), Some("second"));
    is_well(&connection).await;
    assert_eq!(
        connection.send(&Command::new("PING")).await.unwrap(),
        Value::Simple("PONG".into())
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_callback_that_panics_loses_neither_the_others_nor_the_connection() {
    let server = Server::start().await;
    let connection = Connection::connect(Endpoint::parse(&server.url()).unwrap())
        .await
        .unwrap();
    let id = connection.id();
    let (called, mut calls) = mpsc::unbounded_channel();
    // Blocked together, they are answered together.
    let mut raw = server.raw().await;
    assert!(raw.cmd(&["CLIENT", "PAUSE", "100", "WRITE"]).await.is_ok());
    for n in 0..10 {
        let called = called.clone();
        let incr = Command::new("INCR").arg("n");
        connection.submit(&incr).detach(move |outcome| {
            called.send(outcome.unwrap()).unwrap();
            assert!(n % 2 == 0, "as the test wants it");
        });
    }
    for n in 1..=10 {
        let outcome = tokio::time::timeout(BOUND, calls.recv()).await;
        assert_eq!(outcome.expect("each is called"), Some(Value::Integer(n)));
    }
    is_well(&connection).await;
    assert_eq!(connection.id(), id, "it is the same connection");
}

#[tokio::test]
async fn an_observer_that_panics_does_not_end_the_connection() {
    let server = Server::start().await;
    let endpoint = Endpoint::parse(&server.url()).unwrap();
    let (told, mut events) = mpsc::unbounded_channel();
    let observer = Arc::new(move |_: &Connection, event: Event| {
        told.send(format!("{event:?}")).unwrap();
        panic!("as the test wants it");
    });
    let connection = Connection::connect_observed(endpoint, observer)
        .await
        .unwrap();
    is_well(&connection).await;
    connection.reset("to see it come back");
    for expected in ["Up", "Down", "Up"] {
        let event = tokio::time::timeout(BOUND, events.recv()).await;
        assert_eq!(event.expect("in time").as_deref(), Some(expected));
    }
    is_well(&connection).await;
}
