//! The shared connection against a real server.

use std::time::{Duration, Instant};

use leasehold_resp::{Command, Connection, Endpoint, ErrorKind, Value};
use leasehold_testkit::server::Server;

async fn connect(server: &Server) -> Connection {
    Connection::connect(Endpoint::parse(&server.url()).unwrap())
        .await
        .unwrap()
}

#[tokio::test]
async fn a_command_gets_its_reply_and_an_error_reply_is_an_error() {
    let server = Server::start().await;
    let connection = connect(&server).await;
    assert_eq!(
        connection
            .send(&Command::new("SET").arg("k").arg("v"))
            .await
            .unwrap(),
        Value::Simple("OK".into())
    );
    assert_eq!(
        connection
            .send(&Command::new("GET").arg("k"))
            .await
            .unwrap(),
        Value::Bulk("v".into())
    );
    let error = connection
        .send(&Command::new("INCR").arg("k"))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Server);
    assert!(
        error.to_string().contains(&server.port().to_string()),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_share_it_and_each_gets_its_own_reply() {
    let server = Server::start().await;
    let connection = connect(&server).await;
    let tasks: Vec<_> = (0..64)
        .map(|task| {
            let connection = connection.clone();
            tokio::spawn(async move {
                for n in 0..500 {
                    let tag = format!("{task}:{n}");
                    let reply = connection
                        .send(&Command::new("ECHO").arg(&tag))
                        .await
                        .unwrap();
                    assert_eq!(reply.as_str(), Some(tag.as_str()));
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}

#[tokio::test]
async fn it_comes_back_after_the_server_killed_it() {
    let server = Server::start().await;
    let connection = connect(&server).await;
    for _ in 0..20 {
        let _ = server
            .raw()
            .await
            .cmd(&["CLIENT", "KILL", "TYPE", "normal"])
            .await;
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            match connection.send(&Command::new("PING")).await {
                Ok(pong) => break assert_eq!(pong.as_str(), Some("PONG")),
                Err(error) => assert!(error.is_transient() && Instant::now() < deadline, "{error}"),
            }
        }
    }
}
