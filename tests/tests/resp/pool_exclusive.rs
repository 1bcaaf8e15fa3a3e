//! Exclusive connections: for commands that block or keep state, and never reused with state.

use std::time::Duration;

use leasehold_resp::pool::Pool;
use leasehold_resp::{Command, Connection, Endpoint, ErrorKind, ServerErrorKind};
use leasehold_testkit::{Raw, Server};

use crate::support::{BOUND, until};

/// A pool whose shared connection is open.
async fn pool(server: &Server) -> Pool {
    let endpoint = Endpoint::parse(&format!("{}?client_name=ours", server.url())).unwrap();
    let pool = Pool::lazy(&endpoint, None);
    pool.shared().open().await.unwrap();
    pool
}

fn command(line: &str) -> Command {
    let (name, args) = line.split_once(' ').unwrap_or((line, ""));
    args.split_whitespace()
        .fold(Command::new(name), Command::arg)
}

async fn sockets(raw: &mut Raw) -> usize {
    raw.cmd(&["CLIENT", "LIST"])
        .await
        .str()
        .lines()
        .filter(|line| line.contains(" name=ours "))
        .count()
}

#[tokio::test]
async fn one_that_was_given_back_in_order_is_used_again() {
    let server = Server::start().await;
    let pool = pool(&server).await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        let mut exclusive = pool.exclusive().await.unwrap();
        ids.push(exclusive.call(&command("CLIENT ID"), BOUND).await.unwrap());
        // An error reply is a reply like any other, and a blocking command leaves no state.
        assert_eq!(
            exclusive
                .call(&command("NONSENSE"), BOUND)
                .await
                .unwrap_err()
                .kind(),
            ErrorKind::Server
        );
        exclusive
            .call(&command("BLPOP nothing 0.01"), BOUND)
            .await
            .unwrap();
        exclusive.call(&command("WAIT 0 10"), BOUND).await.unwrap();
    }
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    // Two at once are two.
    let (mut one, mut two) = (
        pool.exclusive().await.unwrap(),
        pool.exclusive().await.unwrap(),
    );
    let ids = (
        one.call(&command("CLIENT ID"), BOUND).await.unwrap(),
        two.call(&command("CLIENT ID"), BOUND).await.unwrap(),
    );
    assert_ne!(ids.0, ids.1);
}

/// redis-rs 453 and 643, deadpool 130: an element popped for a caller that has gone is lost.
#[tokio::test]
async fn dropped_between_request_and_reply_it_is_closed_and_no_element_is_lost_to_a_ghost() {
    let server = Server::start().await;
    let pool = pool(&server).await;
    let mut raw = server.raw().await;
    for _ in 0..10 {
        let mut exclusive = pool.exclusive().await.unwrap();
        let (blpop, ping) = (command("BLPOP list 0"), command("PING"));
        let call = exclusive.call(&blpop, Duration::MAX);
        // The shared connection is not blocked by it.
        let popping = tokio::time::timeout(Duration::from_millis(20), call);
        let (popped, pong) = tokio::join!(popping, pool.shared().send(&ping));
        popped.unwrap_err();
        assert_eq!(pong.unwrap().as_str(), Some("PONG"));
        let error = exclusive.call(&command("PING"), BOUND).await.unwrap_err();
        assert!(error.is_closed() && !error.may_have_executed(), "{error}");
        drop(exclusive);
        until("it is closed", async || sockets(&mut raw).await == 1).await;
        raw.cmd(&["RPUSH", "list", "x"]).await;
        assert_eq!(
            raw.cmd(&["LLEN", "list"]).await.int(),
            1,
            "a ghost has popped it"
        );
        raw.cmd(&["DEL", "list"]).await;
    }
}

#[tokio::test]
async fn a_call_that_timed_out_gives_the_connection_up() {
    let server = Server::start().await;
    let pool = pool(&server).await;
    let mut exclusive = pool.exclusive().await.unwrap();
    let error = exclusive
        .call(&command("BLPOP list 0"), Duration::from_millis(50))
        .await
        .unwrap_err();
    assert!(error.is_timeout() && error.may_have_executed(), "{error}");
    assert!(
        exclusive
            .call(&command("PING"), BOUND)
            .await
            .unwrap_err()
            .is_closed()
    );
    drop(exclusive);
    let mut raw = server.raw().await;
    until("it is closed", async || sockets(&mut raw).await == 1).await;
}

#[tokio::test]
async fn a_transaction_runs_there_and_an_open_one_is_not_handed_on() {
    let server = Server::start().await;
    let pool = pool(&server).await;
    let mut exclusive = pool.exclusive().await.unwrap();
    let first = exclusive.call(&command("CLIENT ID"), BOUND).await.unwrap();
    exclusive.call(&command("WATCH k"), BOUND).await.unwrap();
    exclusive.call(&command("MULTI"), BOUND).await.unwrap();
    assert_eq!(
        exclusive
            .call(&command("INCR k"), BOUND)
            .await
            .unwrap()
            .as_str(),
        Some("QUEUED")
    );
    let replies = exclusive.call(&command("EXEC"), BOUND).await.unwrap();
    assert_eq!(replies.as_array().unwrap()[0].as_int(), Some(1));
    drop(exclusive);
    let mut exclusive = pool.exclusive().await.unwrap();
    assert_eq!(
        exclusive.call(&command("CLIENT ID"), BOUND).await.unwrap(),
        first,
        "it was complete"
    );

    for unfinished in [
        &["MULTI"][..],
        &["watch k"],
        &["WATCH k", "MULTI", "INCR k"],
        &["SELECT 1"],
        &["HELLO 2"],
    ] {
        for step in unfinished {
            exclusive.call(&command(step), BOUND).await.unwrap();
        }
        drop(exclusive);
        exclusive = pool.exclusive().await.unwrap();
        let pong = exclusive.call(&command("PING"), BOUND).await.unwrap();
        assert_eq!(
            pong.as_str(),
            Some("PONG"),
            "the next user finds {unfinished:?}"
        );
        let info = exclusive.call(&command("CLIENT INFO"), BOUND).await;
        if let Ok(info) = info {
            assert!(
                info.as_str().unwrap().contains(" db=0 "),
                "the next user finds {unfinished:?}"
            );
        }
    }
}

#[tokio::test]
async fn one_that_breaks_is_never_reopened_under_its_user() {
    let server = Server::start().await;
    let pool = pool(&server).await;
    let mut raw = server.raw().await;
    let mut exclusive = pool.exclusive().await.unwrap();
    exclusive.call(&command("MULTI"), BOUND).await.unwrap();
    let id = {
        let list = raw.cmd(&["CLIENT", "LIST"]).await;
        let line = list
            .str()
            .lines()
            .find(|line| line.contains(" multi=0 "))
            .expect("the transaction")
            .to_owned();
        line.split(' ')
            .next()
            .unwrap()
            .trim_start_matches("id=")
            .to_owned()
    };
    raw.cmd(&["CLIENT", "KILL", "ID", &id]).await;
    // Given the time to come back, it must not: this would run outside of the transaction.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let error = exclusive.call(&command("INCR k"), BOUND).await.unwrap_err();
    assert!(
        error.kind() == ErrorKind::NotSent && error.is_transient(),
        "{error}"
    );
    assert!(raw.cmd(&["GET", "k"]).await.is_null());
    drop(exclusive);
    // A connection that breaks while idle is not reused.
    drop(pool.exclusive().await.unwrap());
    raw.cmd(&["CLIENT", "KILL", "TYPE", "normal"]).await;
    until("the shared one is back", async || {
        pool.shared().send(&command("PING")).await.is_ok()
    })
    .await;
    let mut exclusive = pool.exclusive().await.unwrap();
    assert_eq!(
        exclusive
            .call(&command("PING"), BOUND)
            .await
            .unwrap()
            .as_str(),
        Some("PONG")
    );
}

#[tokio::test]
async fn what_blocks_or_changes_a_connection_is_refused_on_a_shared_one_and_nothing_is_sent() {
    let server = Server::start().await;
    let connection = Connection::connect(Endpoint::parse(&server.url()).unwrap())
        .await
        .unwrap();
    let refused = "AUTH x|BLMOVE a b LEFT LEFT 0|BLMPOP 0 1 a LEFT|BLPOP a 0|BRPOP a 0|BRPOPLPUSH a b 0|BZMPOP 0 1 a MIN|\
        BZPOPMAX a 0|BZPOPMIN a 0|CLIENT REPLY OFF|client reply skip|DISCARD|EXEC|HELLO 2|MONITOR|MULTI|multi|PSUBSCRIBE a|\
        PSYNC ? -1|PUNSUBSCRIBE a|QUIT|RESET|SELECT 1|SSUBSCRIBE a|SUBSCRIBE a|SUNSUBSCRIBE a|SYNC|UNSUBSCRIBE a|WAIT 0 0|\
        WAITAOF 0 0 0|WATCH a|ASKING|asking|READONLY|ReadWrite|REPLCONF ACK 1|SCRIPT DEBUG YES|script debug sync|\
        CLIENT TRACKING ON|client tracking on bcast|CLIENT CACHING YES|CLIENT NO-TOUCH ON|CLIENT NO-EVICT ON|\
        CLIENT CAPA redirect|CLIENT IMPORT-SOURCE ON|XREAD BLOCK 0 STREAMS a $|XREADGROUP GROUP g c block 0 STREAMS a >";
    for line in refused.split('|') {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        for error in [
            connection.send(&command(line)).await.unwrap_err(),
            connection.send(words.as_slice()).await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Config, "{line}: {error}");
            assert!(
                !error.may_have_executed() && !error.is_transient(),
                "{line}: {error}"
            );
            assert!(
                error.to_string().contains("use an exclusive one"),
                "{line}: {error}"
            );
        }
        // Nor where a redirect of the cluster leads.
        let error = connection.submit_asking(&command(line)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{line}: {error}");
    }
    // Others that begin alike are not.
    for line in [
        "CLIENT ID",
        "CLIENT SETNAME TRACKING",
        "CLIENT LIST",
        "SCRIPT EXISTS DEBUG",
        "SCRIPT FLUSH",
        "EVAL return{KEYS[1]} 1 DEBUG",
        "EXISTS a",
        "SET a b",
        "XREAD STREAMS s 0",
        "PING",
        "ECHO BLOCK",
        "BITCOUNT a",
    ] {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        connection.send(&command(line)).await.unwrap();
        connection.send(words.as_slice()).await.unwrap();
    }
    let nothing: &[&[u8]] = &[];
    let error = connection.send(nothing).await.unwrap_err();
    assert_eq!(
        *error.as_server().expect("an answer").kind(),
        ServerErrorKind::UnknownCommand,
        "{error}"
    );
    assert_eq!(
        connection
            .send(&command("ECHO own"))
            .await
            .unwrap()
            .as_str(),
        Some("own")
    );
}

#[tokio::test]
async fn idle_connections_are_few_and_go_with_the_pool() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let pool = pool(&server).await;
    let mut many = Vec::new();
    for _ in 0..20 {
        many.push(pool.exclusive().await.unwrap());
    }
    assert_eq!(sockets(&mut raw).await, 21);
    drop(many);
    until("all but a few are closed", async || {
        sockets(&mut raw).await <= 9
    })
    .await;
    drop(pool);
    until("all are closed", async || sockets(&mut raw).await == 0).await;
}

#[tokio::test]
async fn a_closed_pool_refuses_commands_and_keeps_no_connection() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let pool = pool(&server).await;
    drop(pool.exclusive().await.unwrap());
    assert_eq!(sockets(&mut raw).await, 2);
    pool.close();
    let error = pool.shared().send(&command("PING")).await.unwrap_err();
    assert!(error.is_closed(), "{error}");
    until("all are closed", async || sockets(&mut raw).await == 0).await;
}
