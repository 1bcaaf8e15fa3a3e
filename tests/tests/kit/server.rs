//! The kit's servers do what tests rely on, and leave nothing behind.

use std::collections::HashSet;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use leasehold_testkit::own_process::this_test_again;
use leasehold_testkit::{Raw, RawValue, Server, until};
use tokio::time::timeout;

/// Whether a process with this id runs; a zombie does not.
fn runs(pid: u32) -> bool {
    let state = Command::new("ps")
        .args(["-o", "stat=", "-p", &pid.to_string()])
        .output()
        .expect("ps runs")
        .stdout;
    !state.is_empty() && !state.starts_with(b"Z")
}

#[tokio::test]
async fn a_started_server_answers_and_a_dropped_one_leaves_nothing() {
    let server = Server::start().await;
    assert_eq!(server.raw().await.cmd(&["PING"]).await.str(), "PONG");
    assert!(server.is_running());

    let (pid, addr, dir) = (server.pid(), server.addr(), server.dir().to_owned());
    drop(server);
    assert!(!runs(pid));
    assert!(!dir.exists());
    assert!(Raw::connect(addr).await.is_err());
}

#[tokio::test]
async fn a_server_dies_with_the_test_that_panics() {
    let (tell, told) = std::sync::mpsc::channel();
    let test = tokio::spawn(async move {
        let server = Server::start().await;
        tell.send(server.pid()).unwrap();
        panic!("as a failed assertion would");
    });
    assert!(test.await.unwrap_err().is_panic());
    assert!(!runs(told.recv().unwrap()));
}

/// Runs itself as a child process, which starts a server and is killed. A frozen server is the
/// harder case: the kernel sends SIGHUP to a process group that is orphaned with a stopped member,
/// and the watcher is in that group.
#[tokio::test]
async fn a_server_and_its_directory_die_with_a_killed_test_process() {
    const CHILD: &str = "KIT_SERVER_CHILD";
    if let Some(state) = std::env::var_os(CHILD) {
        let server = Server::builder().start_blocking();
        if state == "frozen" {
            server.pause();
        }
        println!("\nserver {} {}", server.pid(), server.dir().display());
        std::thread::sleep(Duration::from_secs(60));
        return;
    }
    for state in ["running", "frozen"] {
        let mut child =
            this_test_again("server::a_server_and_its_directory_die_with_a_killed_test_process")
                .env(CHILD, state)
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = lines
            .map_while(Result::ok)
            .find(|l| l.starts_with("server "))
            .expect("the child starts a server");
        let words: Vec<_> = line.split(' ').collect();
        let (pid, dir) = (words[1].parse().unwrap(), Path::new(words[2]));
        assert!(runs(pid) && dir.exists());

        child.kill().unwrap();
        child.wait().unwrap();
        until("the orphaned server dies", async || !runs(pid)).await;
        until("its directory goes", async || !dir.exists()).await;
    }
}

#[tokio::test]
async fn a_killed_server_restarts_empty_on_its_port() {
    let server = Server::start().await;
    let (port, pid) = (server.port(), server.pid());
    let mut raw = server.raw().await;
    assert!(raw.cmd(&["SET", "k", "v"]).await.is_ok());

    server.kill();
    assert!(!server.is_running());
    assert!(!runs(pid));
    assert!(raw.try_cmd(&["PING"]).await.is_err());
    assert!(Raw::connect(server.addr()).await.is_err());

    server.restart().await;
    assert_eq!(server.port(), port);
    assert_ne!(server.pid(), pid);
    assert!(server.raw().await.cmd(&["GET", "k"]).await.is_null());

    // Also without a kill before.
    let pid = server.pid();
    server.restart().await;
    assert!(!runs(pid));
    assert_eq!(server.raw().await.cmd(&["PING"]).await.str(), "PONG");
}

#[tokio::test]
async fn a_paused_server_is_silent_and_its_clock_runs_on() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    assert!(raw.cmd(&["SET", "k", "v", "PX", "100"]).await.is_ok());
    server.pause();
    assert!(server.is_running());
    raw.send(&["GET", "k"]).await.unwrap();
    assert!(
        timeout(Duration::from_millis(300), raw.read())
            .await
            .is_err(),
        "a frozen server answered"
    );

    server.resume();
    assert!(server.raw().await.cmd(&["GET", "k"]).await.is_null());
}

#[tokio::test]
async fn a_paused_server_can_be_dropped() {
    let server = Server::start().await;
    let pid = server.pid();
    server.pause();
    drop(server);
    assert!(!runs(pid));
}

#[tokio::test]
async fn a_server_that_exits_by_itself_is_noticed() {
    let server = Server::start().await;
    let _ = server.raw().await.try_cmd(&["SHUTDOWN", "NOSAVE"]).await;
    until("the exit is seen", async || !server.is_running()).await;
    server.restart().await;
    assert_eq!(server.raw().await.cmd(&["PING"]).await.str(), "PONG");
}

#[tokio::test]
async fn many_servers_at_once_have_ports_of_their_own() {
    let starts: Vec<_> = (0..8).map(|_| tokio::spawn(Server::start())).collect();
    let mut servers = Vec::new();
    for start in starts {
        servers.push(start.await.unwrap());
    }
    let ports: HashSet<_> = servers.iter().map(Server::port).collect();
    assert_eq!(ports.len(), 8);
    assert!(ports.iter().all(|p| (21_000..22_768).contains(p)));
}

#[tokio::test]
async fn options_reach_the_server() {
    let server = Server::builder()
        .requirepass("s3cret")
        .config("user app on >pw ~app:* +@all")
        .config("maxmemory-policy noeviction")
        .start()
        .await;
    assert!(server.url().contains(":s3cret@"));
    let mut stranger = Raw::connect(server.addr()).await.unwrap();
    assert!(
        stranger
            .cmd(&["PING"])
            .await
            .error()
            .unwrap()
            .starts_with("NOAUTH")
    );
    assert!(stranger.cmd(&["AUTH", "app", "pw"]).await.is_ok());
    assert!(
        stranger
            .cmd(&["SET", "other", "1"])
            .await
            .error()
            .unwrap()
            .starts_with("NOPERM")
    );
    assert_eq!(server.raw().await.cmd(&["PING"]).await.str(), "PONG");
    assert!(std::os::unix::net::UnixStream::connect(server.socket()).is_ok());
}

#[tokio::test]
async fn debug_is_allowed_and_features_are_asked_for() {
    let server = Server::start().await;
    assert!(
        server
            .raw()
            .await
            .cmd(&["DEBUG", "SLEEP", "0"])
            .await
            .is_ok()
    );
    assert!(server.knows("get").await);
    assert!(!server.knows("no-such-command").await);
}

#[tokio::test]
async fn a_server_that_cannot_start_says_why() {
    let start = tokio::spawn(Server::builder().config("no-such-directive 1").start());
    let panic = start.await.unwrap_err().into_panic();
    // The panic of the blocking start is wrapped by the one that waited for it.
    let text = panic.downcast_ref::<String>().unwrap();
    assert!(text.contains("no-such-directive"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_server_starts_under_paused_time() {
    let server = Server::start().await;
    assert!(server.is_running());
}

#[tokio::test]
async fn the_raw_client_reads_both_protocols() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    assert_eq!(raw.cmd(&["HSET", "h", "f", "1"]).await.int(), 1);
    assert_eq!(raw.cmd(&["HGETALL", "h"]).await.array().len(), 2);
    assert!(
        raw.cmd(&["GET", "h"])
            .await
            .error()
            .unwrap()
            .starts_with("WRONGTYPE")
    );
    assert_eq!(
        raw.cmd(&["EVAL", "return {1,{2,'x'}}", "0"]).await.array()[1].array()[1].str(),
        "x"
    );

    raw.hello3().await;
    assert_eq!(raw.cmd(&["HGETALL", "h"]).await.get("f").unwrap().int(), 1);
    assert!(raw.cmd(&["GET", "none"]).await.is_null());
    raw.send(&["SUBSCRIBE", "c"]).await.unwrap();
    assert_eq!(raw.push().await[0].str(), "subscribe");
    server.raw().await.cmd(&["PUBLISH", "c", "hi"]).await;
    assert_eq!(raw.push().await[2], RawValue::Bulk(b"hi".to_vec()));
    assert_eq!(raw.cmd(&["PING"]).await.str(), "PONG");
}

#[tokio::test]
async fn a_sentinel_watches_a_server_and_restarts_with_what_it_knows() {
    let server = Server::start().await;
    let monitor = format!("sentinel monitor shop 127.0.0.1 {} 1", server.port());
    let sentinel = Server::builder().sentinel().config(monitor).start().await;
    let ask = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "shop"];
    for _ in 0..2 {
        let address = sentinel.raw().await.cmd(&ask).await;
        assert_eq!(address.array()[1].int(), i64::from(server.port()));
        sentinel.restart().await;
    }
}
