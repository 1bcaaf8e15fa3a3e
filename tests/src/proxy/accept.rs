//! The accept loop, and the life of a connection.

use std::future::pending;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::time::sleep;

use super::Shared;
use super::fault::{Accept, Cut};
use super::pump::{End, Pump, drain};

pub(super) async fn run(addr: SocketAddr, shared: Arc<Shared>) {
    let mut modes = shared.accept.subscribe();
    // Ended with this future, that is with the proxy.
    let mut connections = tokio::task::JoinSet::new();
    let mut next_id = 0;
    let mut listener = None;
    loop {
        let mode = *modes.borrow_and_update();
        if mode == Accept::Refuse {
            // Only a closed listener makes the kernel refuse.
            listener = None;
        } else if listener.is_none() {
            listener = Some(bind(addr).await);
        }
        shared.accepting.send_replace(Some(mode));
        let accepted = async {
            match &listener {
                Some(listener) => listener.accept().await,
                None => pending().await,
            }
        };
        tokio::select! {
            biased;
            _ = modes.changed() => {}
            // Collects ended connections, so that the set does not grow for ever.
            Some(_) = connections.join_next() => {}
            Ok((client, from)) = accepted => {
                shared.accepts.fetch_add(1, Ordering::SeqCst);
                next_id += 1;
                let reset = Arc::new(Notify::new());
                shared.open().insert(next_id, Arc::clone(&reset));
                let shared = Arc::clone(&shared);
                connections.spawn(connection(next_id, client, from.ip(), mode, reset, shared));
            }
        }
    }
}

/// The port is reserved for this proxy, yet connections of the previous listener may linger on it
/// for a moment.
async fn bind(addr: SocketAddr) -> TcpListener {
    loop {
        match TcpListener::bind(addr).await {
            Ok(listener) => return listener,
            Err(_) => sleep(Duration::from_millis(5)).await,
        }
    }
}

async fn connection(
    id: u64,
    mut client: TcpStream,
    peer: IpAddr,
    mode: Accept,
    reset: Arc<Notify>,
    shared: Arc<Shared>,
) {
    tokio::select! {
        biased;
        () = reset.notified() => {
            let _ = client.set_zero_linger();
        }
        () = serve(id, &mut client, peer, mode, &shared) => {}
    }
    drop(client);
    shared.open().remove(&id);
}

async fn serve(id: u64, client: &mut TcpStream, peer: IpAddr, mode: Accept, shared: &Shared) {
    if mode == Accept::Silence {
        return pending().await;
    }
    let Ok(mut server) = TcpStream::connect(shared.target).await else {
        // The client was accepted before the server was known to be down.
        let _ = client.set_zero_linger();
        return;
    };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    match pump_both(id, client, peer, &mut server, shared).await {
        End::Eof | End::Cut(Cut::HalfClose) => {}
        End::Cut(Cut::Rst) => {
            let _ = client.set_zero_linger();
        }
        End::Cut(Cut::Fin) => {
            drop(server);
            // Closing a socket with unread bytes in it sends RST, so the client's remaining bytes
            // are read.
            let (mut from, mut to) = client.split();
            let _ = tokio::io::AsyncWriteExt::shutdown(&mut to).await;
            drain(&mut from).await;
        }
        // Nothing is read either: both sockets stay open until the test ends or resets them.
        End::Cut(Cut::Silence) => pending().await,
    }
}

/// Runs both directions until both have ended, or until one of them ends the connection.
async fn pump_both(
    id: u64,
    client: &mut TcpStream,
    peer: IpAddr,
    server: &mut TcpStream,
    shared: &Shared,
) -> End {
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    let mut requests = std::pin::pin!(
        Pump::new(
            id,
            from_client,
            to_server,
            peer,
            &shared.to_server,
            &shared.from_client
        )
        .run()
    );
    let mut replies = std::pin::pin!(
        Pump::new(
            id,
            from_server,
            to_client,
            peer,
            &shared.to_client,
            &shared.from_server
        )
        .run()
    );
    tokio::select! {
        end = &mut requests => match end {
            End::Eof => replies.await,
            cut => cut,
        },
        end = &mut replies => match end {
            End::Eof => requests.await,
            cut => cut,
        },
    }
}
