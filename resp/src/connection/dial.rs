//! TCP connections to hosts with several addresses (RFC 8305, "happy eyeballs").

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpStream, lookup_host};
use tokio::task::JoinSet;

/// How long an attempt has before the next address is tried beside it. The RFC recommends 250 ms and allows 100.
const ATTEMPT_DELAY: Duration = Duration::from_millis(200);

/// Connects to the first address of `host` that answers. Without a deadline of its own.
pub(crate) async fn dial(host: &str, port: u16) -> io::Result<TcpStream> {
    let resolved = lookup_host((host, port)).await.map_err(|error| {
        let reason = format!("the host's name cannot be resolved, check it ({error})");
        io::Error::new(error.kind(), reason)
    })?;
    let addresses = alternating(resolved);
    match addresses.as_slices() {
        ([only], []) => TcpStream::connect(only).await,
        _ => race(addresses).await,
    }
}

/// Tries one address after the other: the next as soon as one has failed, or after a while beside those under way.
async fn race(mut addresses: VecDeque<SocketAddr>) -> io::Result<TcpStream> {
    let mut attempts = JoinSet::new();
    let mut failure = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    loop {
        if let Some(address) = addresses.pop_front() {
            attempts.spawn(TcpStream::connect(address));
        }
        let ended = if addresses.is_empty() {
            attempts.join_next().await
        } else {
            let ended = tokio::time::timeout(ATTEMPT_DELAY, attempts.join_next()).await;
            let Ok(ended) = ended else { continue };
            ended
        };
        match ended {
            // Dropping the others ends them.
            Some(Ok(Ok(stream))) => return Ok(stream),
            Some(Ok(Err(error))) => failure = error,
            Some(Err(error)) => failure = error.into(),
            None => return Err(failure),
        }
    }
}

/// The addresses in the order of the resolver, but with the two families in turn: if one of them leads nowhere, the
/// second attempt is of the other.
fn alternating(addresses: impl Iterator<Item = SocketAddr>) -> VecDeque<SocketAddr> {
    let mut addresses: Vec<SocketAddr> = addresses.collect();
    let mut seen = Vec::with_capacity(addresses.len());
    addresses.retain(|address| {
        let is_new = !seen.contains(address);
        seen.push(*address);
        is_new
    });
    let first_is_v6 = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let (first, second): (Vec<_>, Vec<_>) = addresses
        .into_iter()
        .partition(|address| address.is_ipv6() == first_is_v6);
    let (mut first, mut second) = (first.into_iter(), second.into_iter());
    let mut order = VecDeque::new();
    loop {
        let before = order.len();
        order.extend(first.next());
        order.extend(second.next());
        if order.len() == before {
            return order;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::net::{TcpListener, TcpSocket};

    use super::*;

    #[test]
    fn families_take_turns_and_nothing_is_tried_twice() {
        let parse = |text: &str| text.parse::<SocketAddr>().unwrap();
        let given = [
            "[::1]:1",
            "[::2]:1",
            "[::1]:1",
            "1.1.1.1:1",
            "2.2.2.2:1",
            "3.3.3.3:1",
        ];
        let order = alternating(given.into_iter().map(parse));
        let expected = ["[::1]:1", "1.1.1.1:1", "[::2]:1", "2.2.2.2:1", "3.3.3.3:1"];
        assert!(order.into_iter().eq(expected.into_iter().map(parse)));
    }

    /// A listener whose queue is full: the kernel drops further SYNs, as a host that is gone would.
    async fn black_hole() -> (SocketAddr, Vec<TcpStream>, TcpListener) {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let listener = socket.listen(1).unwrap();
        let address = listener.local_addr().unwrap();
        let mut waiting = Vec::new();
        while let Ok(connected) =
            tokio::time::timeout(Duration::from_millis(100), TcpStream::connect(address)).await
        {
            waiting.push(connected.unwrap());
        }
        (address, waiting, listener)
    }

    #[test]
    fn the_second_address_is_tried_while_the_first_does_not_answer() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let (dead, ..) = &black_hole().await;
            let alive = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
            let address = alive.local_addr().unwrap();
            let racing = race([*dead, *dead, address].into());
            let stream = tokio::time::timeout(Duration::from_secs(20), racing).await;
            let stream = stream.expect("long before TCP gives up").unwrap();
            assert_eq!(stream.peer_addr().unwrap(), address);
            // One that refuses is not waited for at all, and if all do the last one says why.
            drop(alive);
            let error = race([address, address].into()).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
            let error = race(VecDeque::new()).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::NotFound);
        });
    }
}
