//! A process that is forked has copies of its parent's sockets: it sends nothing over them and does
//! not end them.

use leasehold_resp::pool::Pool;
use leasehold_resp::{Command, Connection, Endpoint, ErrorKind};
use leasehold_testkit::Server;
use leasehold_testkit::own_process::{in_a_fork, in_own_process};

use crate::support::BOUND;

fn incr() -> Command {
    Command::new("INCR").arg("n")
}

#[test]
fn a_child_sends_nothing_over_its_parents_connections_and_does_not_end_them() {
    in_own_process(async {
        let server = Server::start().await;
        let unix = format!("unix://{}", server.socket().display());
        for url in [server.url(), unix] {
            let endpoint = Endpoint::parse(&url).unwrap();
            let connection = Connection::connect(endpoint.clone()).await.unwrap();
            let pool = Pool::lazy(&endpoint, None);
            let mut exclusive = pool.exclusive().await.unwrap();
            let mut several = pool.exclusive().await.unwrap();
            let before = connection.send(&incr()).await.unwrap().as_int().unwrap();

            // Copies of everything, one command in flight among it.
            let in_flight = connection.submit(&incr());
            let mut copies = Some((connection.clone(), exclusive, several, in_flight));
            let taken = &mut copies;
            let status = in_a_fork(|| async move {
                let (connection, mut exclusive, mut several, in_flight) =
                    taken.take().expect("a copy");
                drop(in_flight);
                for _ in 0..3 {
                    let reply = tokio::time::timeout(BOUND, connection.submit(&incr())).await;
                    let error = reply.expect("at once").unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
                    assert!(!error.may_have_executed());
                    assert!(error.to_string().contains("forked"), "{error}");
                }
                let error = connection.send(&incr()).await.unwrap_err();
                assert!(error.to_string().contains("forked"), "{error}");
                let error = exclusive.call(&incr(), BOUND).await.unwrap_err();
                assert!(error.to_string().contains("forked"), "{error}");
                let all = several.call_all(&[&incr(), &incr()], BOUND).await;
                let error = all.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::NotSent, "{error}");
                assert!(error.to_string().contains("forked"), "{error}");
                drop((connection, exclusive, several));
                // One of its own works.
                let own = Connection::connect(endpoint).await.unwrap();
                let pong = own.send(&Command::new("PING")).await.unwrap();
                assert_eq!(pong.as_str(), Some("PONG"));
            });
            assert_eq!(status, 0, "the child failed");

            let (connection, kept, kept_too, in_flight) =
                copies.expect("the child took its copy only");
            (exclusive, several) = (kept, kept_too);
            assert_eq!(in_flight.await.unwrap().as_int(), Some(before + 1));
            let next = connection.send(&incr()).await.unwrap();
            assert_eq!(next.as_int(), Some(before + 2));
            let last = exclusive.call(&incr(), BOUND).await.unwrap();
            assert_eq!(last.as_int(), Some(before + 3));
            let both = several.call_all(&[&incr(), &incr()], BOUND).await.unwrap();
            let both: Vec<_> = both.into_iter().map(|n| n.unwrap().as_int()).collect();
            assert_eq!(both, [Some(before + 4), Some(before + 5)]);
        }
    });
}
