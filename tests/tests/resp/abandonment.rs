//! Abandoned connections: they end with a TCP reset, and their id at the server is known, so that
//! they can be killed there.

use std::io::ErrorKind::ConnectionReset;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use leasehold_resp::pool::Pool;
use leasehold_resp::{AskServer, Command, Connection, Endpoint, ErrorKind};
use leasehold_testkit::Server;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use crate::support::BOUND;

/// Forwards connections to `server`, and records how the client ended each.
async fn forwarder(
    server: SocketAddr,
) -> (SocketAddr, mpsc::UnboundedReceiver<std::io::Result<()>>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let addr = listener.local_addr().unwrap();
    let (ended, ends) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let ended = ended.clone();
            tokio::spawn(async move {
                // A client may try for as long as its test lasts, and the server may be gone before.
                let Ok(server) = TcpStream::connect(server).await else {
                    return;
                };
                let (mut from_server, mut to_server) = server.into_split();
                let (mut from_client, mut to_client) = client.into_split();
                tokio::spawn(
                    async move { tokio::io::copy(&mut from_server, &mut to_client).await },
                );
                let mut chunk = [0; 4096];
                let end = loop {
                    match from_client.read(&mut chunk).await {
                        Ok(0) => break Ok(()),
                        Ok(n) => drop(to_server.write_all(&chunk[..n]).await),
                        Err(error) => break Err(error),
                    }
                };
                let _ = ended.send(end);
            });
        }
    });
    (addr, ends)
}

/// Until a connection has ended with a TCP reset: those that others make by mistake, to a port that was somebody's before, do not.
async fn reset(ends: &mut mpsc::UnboundedReceiver<std::io::Result<()>>) {
    let mut others = Vec::new();
    let reset = async {
        loop {
            match ends.recv().await.expect("it forwards") {
                Err(error) if error.kind() == ConnectionReset => return,
                other => others.push(other),
            }
        }
    };
    let reset = tokio::time::timeout(BOUND, reset).await;
    assert!(reset.is_ok(), "none was reset, these ended: {others:?}");
}

async fn client_id(connection: &Connection) -> i64 {
    let id = connection.send(&Command::new("CLIENT").arg("ID")).await;
    id.unwrap().as_int().unwrap()
}

/// With a command in flight to a frozen server.
async fn is_reset_and_named(
    endpoint: Endpoint,
    server: &Server,
    ends: &mut mpsc::UnboundedReceiver<std::io::Result<()>>,
) {
    let connection = Connection::connect(endpoint).await.unwrap();
    let id = connection.id().expect("every server since 6.0 tells it");
    assert_eq!(id.client_id, client_id(&connection).await);
    server.pause();
    let reply = connection.submit(&Command::new("INCR").arg("late"));
    assert_eq!(reply.connection().as_ref(), Some(&id));
    // The connection's task may be the one that writes it.
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(connection.abandon(&id, "given up by a test"));
    let error = tokio::time::timeout(BOUND, reply)
        .await
        .expect("it fails at once")
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
    assert_eq!(error.connection(), Some(&id));
    reset(ends).await;
    server.resume();
    connection
        .ready(std::time::Instant::now() + BOUND)
        .await
        .unwrap();
    let new = connection.id().unwrap();
    assert_eq!(new.client_id, client_id(&connection).await);
    assert_ne!(new, id);
    assert!(!connection.abandon(&id, "it is another one now"));
    // With nothing in flight there is nothing to abandon.
    drop(connection);
    let end = tokio::time::timeout(BOUND, ends.recv()).await;
    assert!(matches!(end, Ok(Some(Ok(())))), "{end:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_abandoned_connection_is_reset_and_what_was_in_flight_names_it() {
    let server = Server::start().await;
    let (addr, mut ends) = forwarder(server.addr()).await;
    let endpoint = Endpoint::parse(&format!("redis://{addr}")).unwrap();
    is_reset_and_named(endpoint, &server, &mut ends).await;
}

#[cfg(feature = "tls")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn so_it_is_under_tls() {
    use leasehold_testkit::ServerBuilder;
    use leasehold_testkit::tls::{Identity, speaks_tls};
    if !speaks_tls().await {
        return;
    }
    let identity = Identity::new(&["localhost"]);
    let builder = identity
        .lines()
        .into_iter()
        .fold(Server::builder().tls(), ServerBuilder::config);
    let server = builder.config("tls-auth-clients no").start().await;
    let (addr, mut ends) = forwarder((Ipv4Addr::LOCALHOST, server.tls_port()).into()).await;
    let mut endpoint = Endpoint::parse(&format!("rediss://localhost:{}", addr.port())).unwrap();
    endpoint.tls_config = Some(identity.authority.trusted());
    is_reset_and_named(endpoint, &server, &mut ends).await;
}

#[tokio::test]
async fn an_exclusive_connection_given_up_or_dropped_half_way_is_reset_as_well() {
    let server = Server::start().await;
    let (addr, mut ends) = forwarder(server.addr()).await;
    let endpoint = Endpoint::parse(&format!("redis://{addr}")).unwrap();
    let pool = Pool::lazy(&endpoint, None);
    for abandons in [true, false] {
        let mut exclusive = pool.exclusive().await.unwrap();
        let id = exclusive.id().unwrap();
        let reply = exclusive
            .call(&Command::new("CLIENT").arg("ID"), BOUND)
            .await;
        assert_eq!(reply.unwrap().as_int(), Some(id.client_id));
        let blocked = Command::new("BLPOP").arg("nothing").arg("0");
        let call = tokio::time::timeout(Duration::from_millis(50), exclusive.call(&blocked, BOUND));
        assert!(call.await.is_err(), "it blocks");
        if abandons {
            assert_eq!(exclusive.abandon(), Some(id));
        } else {
            drop(exclusive);
        }
        reset(&mut ends).await;
    }
}

#[tokio::test]
async fn a_command_that_timed_out_names_the_connection_to_kill() {
    let server = Server::start().await;
    let mut endpoint = Endpoint::parse(&server.url()).unwrap();
    let other = Connection::connect(endpoint.clone()).await.unwrap();
    // It ends by itself after twice that, which is time enough for the rest.
    endpoint.command_timeout = Duration::from_secs(2);
    let connection = Connection::connect(endpoint).await.unwrap();
    let client = |verb| Command::new("CLIENT").arg(verb);
    let pause = client("PAUSE").arg("600000").arg("WRITE");
    other.send(&pause).await.unwrap();
    let error = connection
        .send(&Command::new("INCR").arg("late"))
        .await
        .unwrap_err();
    assert!(error.is_timeout(), "{error}");
    let id = error.connection().expect("it was sent").client_id;

    let kill = client("KILL").arg("ID").arg_int(id);
    assert_eq!(other.send(&kill).await.unwrap().as_int(), Some(1));
    // What has waited for it runs before the server answers anything else.
    other.send(&client("UNPAUSE")).await.unwrap();
    let late = other.send(&Command::new("EXISTS").arg("late")).await;
    assert_eq!(late.unwrap().as_int(), Some(0), "it never ran");
}

#[tokio::test]
async fn the_run_id_is_part_of_the_id_if_it_was_asked_and_may_be_told() {
    let server = Server::builder()
        .config("user modest on nopass ~* +@all -info")
        .start()
        .await;
    let mut raw = server.raw().await;
    let info = raw.cmd(&["INFO", "server"]).await;
    let info = info.str().to_owned();
    let run_id = |url: String, ask| async move {
        let mut endpoint = Endpoint::parse(&url).unwrap();
        endpoint.ask_server = ask;
        let connection = Connection::connect(endpoint).await?;
        Ok::<_, leasehold_resp::Error>(connection.id().unwrap().run_id)
    };
    let told = run_id(server.url(), AskServer::IfPermitted).await.unwrap();
    assert!(
        info.contains(&format!("run_id:{}", told.unwrap())),
        "{info}"
    );
    assert_eq!(run_id(server.url(), AskServer::Never).await.unwrap(), None);
    let modest = format!("redis://modest:@{}", server.addr());
    let refused = run_id(modest.clone(), AskServer::IfPermitted).await;
    assert_eq!(refused.unwrap(), None);
    let error = run_id(modest, AskServer::Required).await.unwrap_err();
    assert_eq!(error.as_server().unwrap().code(), "NOPERM", "{error}");
}
