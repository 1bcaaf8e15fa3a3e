//! Connections cut at every byte: the outcome of a request is the one at the server.

use std::time::{Duration, Instant};

use leasehold_cluster::{Client, Script};
use leasehold_resp::{Connection, Encode, Endpoint};
use leasehold_testkit::{Cut, Fault, Proxy, Server};

use super::{counter, endpoint};
use crate::support::{BOUND, until};

const HOWS: [Cut; 3] = [Cut::Rst, Cut::Fin, Cut::Silence];

fn count() -> Script {
    Script::new("return redis.call('INCR', KEYS[1])")
}

/// A connection that is not reopened, so that nothing else runs into the fault.
async fn once(proxy: &Proxy, endpoint: &Endpoint) -> Connection {
    let stream = tokio::net::TcpStream::connect(proxy.addr()).await.unwrap();
    Connection::over(stream, endpoint.clone()).await.unwrap()
}

/// A request and its reply, cut after each byte, must be reported as the server has treated it.
async fn cut_everywhere<E: Encode>(server: &Server, key: &str, request: &E, how: Cut) {
    let proxy = Proxy::start(server.addr());
    let mut raw = server.raw().await;
    let mut bytes = Vec::new();
    request.encode(&mut bytes);
    let endpoint = endpoint(&proxy.url(), Duration::from_millis(60));

    for after in 0..=bytes.len() as u64 {
        let connection = once(&proxy, &endpoint).await;
        let before = counter(&mut raw, key).await;
        proxy.to_server(Fault::Cut { after, how });
        let outcome = connection.submit(request).await;
        // Bytes that passed are executed before the cut takes effect, or soon after.
        let whole = after == bytes.len() as u64;
        if whole {
            until("the server has run it", async || {
                counter(&mut raw, key).await == before + 1
            })
            .await;
        }
        match outcome {
            // The server was quicker than the cut.
            Ok(value) => assert!(
                whole && value.as_int() == Some(before + 1),
                "{how:?} after {after}: {value:?}"
            ),
            Err(error) => assert!(
                error.may_have_executed(),
                "{how:?} after {after} bytes of the request: {error}"
            ),
        }
        drop(connection);
        assert_eq!(
            counter(&mut raw, key).await,
            before + i64::from(whole),
            "{how:?} after {after}"
        );
        proxy.heal();
    }
    for after in 0.. {
        let connection = once(&proxy, &endpoint).await;
        let before = counter(&mut raw, key).await;
        proxy.to_client(Fault::Cut { after, how });
        let outcome = connection.submit(request).await;
        until("the server has run it", async || {
            counter(&mut raw, key).await == before + 1
        })
        .await;
        proxy.heal();
        match outcome {
            Ok(value) => {
                assert_eq!(value.as_int(), Some(before + 1));
                break;
            }
            Err(error) => assert!(
                error.may_have_executed(),
                "{how:?} after {after} bytes of the reply: {error}"
            ),
        }
        assert!(after < 100);
    }
}

/// Each case on a thread of its own: nearly all of their time is waiting.
fn at_once<T: Copy + Send>(cases: impl IntoIterator<Item = T>, run: impl AsyncFn(T) + Sync) {
    let run = &run;
    std::thread::scope(|scope| {
        for case in cases {
            scope.spawn(move || {
                tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .unwrap()
                    .block_on(run(case));
            });
        }
    });
}

#[test]
fn cut_at_any_byte_a_script_is_unknown_exactly_when_it_may_have_run() {
    let server = Server::builder().start_blocking();
    at_once(
        HOWS.into_iter().flat_map(|how| [(how, false), (how, true)]),
        async |(how, with_source)| {
            let script = count();
            assert_eq!(
                server
                    .raw()
                    .await
                    .cmd(&["SCRIPT", "LOAD", script.source()])
                    .await
                    .str(),
                script.sha()
            );
            let key = format!("{how:?}:{with_source}");
            let keys = [key.as_bytes()];
            let call = script.call(&keys, &[]);
            if with_source {
                cut_everywhere(&server, &key, &call.with_source(), how).await;
            } else {
                cut_everywhere(&server, &key, &call, how).await;
            }
        },
    );
}

#[test]
fn cut_at_any_byte_of_the_fallback_an_idempotent_script_still_gets_its_answer() {
    at_once([Cut::Rst, Cut::Fin], async |how| {
        // Not in one server: each case flushes the script cache.
        let server = Server::start().await;
        for to_server in [true, false] {
            fall_back_everywhere(&server, how, to_server).await;
        }
    });
}

async fn fall_back_everywhere(server: &Server, how: Cut, to_server: bool) {
    let script = Script::new(
        "redis.call('INCR', KEYS[2]) redis.call('SET', KEYS[1], ARGV[1]) return ARGV[1]",
    );
    let proxy = Proxy::start(server.addr());
    let mut raw = server.raw().await;
    let client = Client::connect(endpoint(&proxy.url(), Duration::from_secs(5)))
        .await
        .unwrap();
    for after in 0.. {
        let hold = after.to_string();
        let runs = format!("runs:{how:?}:{to_server}:{after}");
        let keys = [&b"k"[..], runs.as_bytes()];
        let args = [hold.as_bytes()];
        let call = script.call(&keys, &args);
        // Known, and then forgotten: EVALSHA, NOSCRIPT, EVAL.
        client
            .eval(
                &script.call(&[b"k", b"warm"], &[b"x"]),
                Instant::now() + BOUND,
            )
            .await
            .unwrap();
        raw.cmd(&["SCRIPT", "FLUSH"]).await;
        let fault = Fault::Cut { after, how };
        if to_server {
            proxy.to_server(fault)
        } else {
            proxy.to_client(fault)
        }
        let accepts = proxy.accepts();
        let done = client.eval(&call, Instant::now() + BOUND).await.unwrap();
        assert_eq!(done.value.as_str(), Some(hold.as_str()));
        assert_eq!(raw.cmd(&["GET", "k"]).await.str(), hold);
        let runs = counter(&mut raw, &runs).await;
        assert!(
            runs == 1 || done.repeated,
            "ran {runs} times, {how:?} after {after}, and nobody is told"
        );
        assert!(runs <= 2, "{runs}");
        if proxy.accepts() == accepts {
            // All of it was shorter: nothing was cut.
            assert!(after > 10);
            break;
        }
    }
}
