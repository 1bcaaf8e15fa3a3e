//! `rediss://` against a server that speaks TLS itself, with certificates made for the test.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use leasehold_resp::tls::TlsConfig;
use leasehold_resp::{Command, Connection, Endpoint, Error, ErrorKind};
use leasehold_testkit::own_process::in_own_process_with;
use leasehold_testkit::tls::{Authority, Identity, speaks_tls};
use leasehold_testkit::{Scratch, Scripted, Server, ServerBuilder};

use crate::support::BOUND;

/// A server with a second port, for TLS.
struct Tls {
    server: Server,
    identity: Identity,
}

/// `None` if this server was built without TLS.
async fn tls_server(names: &[&str], clients: &str) -> Option<Tls> {
    if !speaks_tls().await {
        return None;
    }
    let identity = Identity::new(names);
    let builder = identity
        .lines()
        .into_iter()
        .fold(Server::builder().tls(), ServerBuilder::config);
    Some(Tls {
        server: builder
            .config(format!("tls-auth-clients {clients}"))
            .start()
            .await,
        identity,
    })
}

impl Tls {
    fn endpoint(&self, host: &str, config: TlsConfig) -> Endpoint {
        let mut endpoint = Endpoint::parse(&format!(
            "rediss://{host}:{}?client_name=ours",
            self.server.tls_port()
        ))
        .unwrap();
        endpoint.tls_config = Some(config);
        endpoint.connect_timeout = Duration::from_secs(2);
        endpoint
    }

    fn trusting(&self) -> TlsConfig {
        self.identity.authority.trusted()
    }
}

async fn refusal(endpoint: Endpoint) -> Error {
    let outcome = tokio::time::timeout(BOUND, Connection::connect(endpoint))
        .await
        .expect("no hang");
    let error = outcome.map(drop).unwrap_err();
    assert!(
        !error.may_have_executed() || error.kind() == ErrorKind::Protocol,
        "{error}"
    );
    error
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_large_and_many_commands_go_through_and_it_comes_back_after_a_kill() {
    let Some(tls) = tls_server(&["localhost", "127.0.0.1"], "no").await else {
        return;
    };
    for host in ["localhost", "127.0.0.1"] {
        let connection = Connection::connect(tls.endpoint(host, tls.trusting()))
            .await
            .unwrap();
        for size in [0, 1, 16_383, 16_384, 16_385, 5 << 20] {
            let text = "x".repeat(size);
            let reply = connection
                .send(&Command::new("ECHO").arg(&text))
                .await
                .unwrap();
            assert!(reply.as_str() == Some(text.as_str()), "{size} bytes");
        }
        let tasks: Vec<_> = (0..50)
            .map(|task| {
                let connection = connection.clone();
                tokio::spawn(async move {
                    for n in 0..100 {
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
            tokio::time::timeout(BOUND, task)
                .await
                .expect("no request hangs")
                .unwrap();
        }
        tls.server
            .raw()
            .await
            .cmd(&["CLIENT", "KILL", "TYPE", "normal"])
            .await;
        let began = Instant::now();
        while let Err(error) = connection.send(&Command::new("PING")).await {
            assert!(error.is_transient() && began.elapsed() < BOUND, "{error}");
        }
    }
    // The socket is closed with the last handle.
    let began = Instant::now();
    while tls
        .server
        .raw()
        .await
        .cmd(&["CLIENT", "LIST"])
        .await
        .str()
        .contains(" name=ours ")
    {
        assert!(began.elapsed() < BOUND);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_certificate_by_a_stranger_or_for_another_host_is_refused_with_the_reason() {
    let Some(tls) = tls_server(&["elsewhere.example"], "no").await else {
        return;
    };
    let stranger = TlsConfig::trusting(Authority::new().pem.as_bytes()).unwrap();
    for (config, reason) in [
        (stranger, "UnknownIssuer"),
        (tls.trusting(), "NotValidForName"),
    ] {
        for host in ["localhost", "127.0.0.1"] {
            let error = refusal(tls.endpoint(host, config.clone())).await;
            assert_eq!(error.kind(), ErrorKind::Config, "{error}");
            let told =
                format!("{error} {error:?}").replace("not valid for name", "NotValidForName");
            assert!(
                told.contains(reason) || told.contains("certificate"),
                "{told}"
            );
        }
    }
}

#[tokio::test]
async fn a_server_that_asks_for_a_certificate_gets_ours() {
    let Some(tls) = tls_server(&["localhost"], "yes").await else {
        return;
    };
    let (certificate, key) = tls.identity.authority.sign(&["client"]);
    let roots = tls.identity.authority.pem.as_bytes();
    let config =
        TlsConfig::trusting_with_identity(roots, certificate.as_bytes(), key.as_bytes()).unwrap();
    let connection = Connection::connect(tls.endpoint("localhost", config))
        .await
        .unwrap();
    assert_eq!(
        connection
            .send(&Command::new("PING"))
            .await
            .unwrap()
            .as_str(),
        Some("PONG")
    );

    let none = refusal(tls.endpoint("localhost", tls.trusting())).await;
    assert_eq!(none.kind(), ErrorKind::Config, "{none}");
    assert!(none.to_string().contains("client certificate"), "{none}");
    let (certificate, key) = Authority::new().sign(&["client"]);
    let config =
        TlsConfig::trusting_with_identity(roots, certificate.as_bytes(), key.as_bytes()).unwrap();
    let strange = refusal(tls.endpoint("localhost", config)).await;
    assert_eq!(strange.kind(), ErrorKind::Config, "{strange}");
    // The key of another certificate.
    let (certificate, _) = tls.identity.authority.sign(&["client"]);
    assert!(
        TlsConfig::trusting_with_identity(roots, certificate.as_bytes(), key.as_bytes()).is_err()
    );
}

/// A server without TLS never answers a TLS handshake; one with TLS closes connections that are not
/// encrypted.
#[tokio::test]
async fn tls_on_a_plain_port_and_plain_text_on_a_tls_port_are_told_apart_from_a_dead_server() {
    let Some(tls) = tls_server(&["localhost"], "no").await else {
        return;
    };
    let mut endpoint = tls.endpoint("localhost", tls.trusting());
    endpoint.address = Endpoint::parse(&tls.server.url()).unwrap().address;
    endpoint.connect_timeout = BOUND;
    let error = refusal(endpoint.clone()).await;
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(
        error
            .to_string()
            .contains("does not speak TLS on this port"),
        "{error}"
    );

    // Frozen, it cannot be asked: it may speak TLS as soon as it runs again.
    tls.server.pause();
    endpoint.connect_timeout = Duration::from_secs(1);
    let error = refusal(endpoint).await;
    let frozen = refusal({
        let mut endpoint = tls.endpoint("localhost", tls.trusting());
        endpoint.connect_timeout = Duration::from_secs(1);
        endpoint
    })
    .await;
    tls.server.resume();
    for error in [error, frozen] {
        assert_eq!(error.kind(), ErrorKind::NotSent, "{error}");
        assert!(error.to_string().contains("does it speak TLS"), "{error}");
    }

    let mut endpoint =
        Endpoint::parse(&format!("redis://localhost:{}", tls.server.tls_port())).unwrap();
    endpoint.connect_timeout = BOUND;
    let error = refusal(endpoint).await;
    assert!(error.to_string().contains("use `rediss://`"), "{error}");
}

/// Other servers and proxies do answer.
#[tokio::test]
async fn the_first_bytes_tell_tls_from_plain_text() {
    let plain = Scripted::start(|mut peer| async move {
        peer.anything().await;
        peer.say("-ERR unknown command\r\n").await;
        peer.silence().await;
    })
    .await;
    let mut endpoint =
        Endpoint::parse(&format!("rediss://localhost:{}", plain.addr().port())).unwrap();
    endpoint.tls_config = Some(Authority::new().trusted());
    endpoint.connect_timeout = BOUND;
    let error = refusal(endpoint).await;
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.to_string().contains("use `redis://`"), "{error}");

    let alert = [0x15, 3, 3, 0, 2, 2, 70];
    let secure = Scripted::start(move |mut peer| async move {
        peer.anything().await;
        peer.say(alert).await;
        peer.silence().await;
    })
    .await;
    let error = refusal(Endpoint::parse(&secure.url()).unwrap()).await;
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.to_string().contains("use `rediss://`"), "{error}");
}

/// A caller that waits for a connection learns the reason of the failure.
#[tokio::test]
async fn a_connection_that_is_opened_on_demand_tells_of_a_refused_certificate_too() {
    let Some(tls) = tls_server(&["elsewhere.example"], "no").await else {
        return;
    };
    let mut endpoint = tls.endpoint("localhost", tls.trusting());
    endpoint.command_timeout = Duration::from_secs(1);
    let connection = Connection::lazy(endpoint, None);
    let error = connection.send(&Command::new("PING")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.to_string().contains("certificate"), "{error}");
}

/// The certificates that are trusted without a `TlsConfig`: a file that cannot be read is tried
/// again, one that could is not read again. In a process of its own, because both are properties of
/// a process.
#[test]
fn the_trusted_certificates_are_read_once_and_a_failure_is_not_remembered() {
    let files = Scratch::new();
    let bundle = files.join("bundle.pem");
    in_own_process_with(&[("SSL_CERT_FILE", bundle.as_os_str())], async {
        let bundle = PathBuf::from(std::env::var_os("SSL_CERT_FILE").expect("set above"));
        let Some(tls) = tls_server(&["localhost"], "no").await else {
            return;
        };
        let mut endpoint = tls.endpoint("localhost", tls.trusting());
        endpoint.tls_config = None;
        let error = refusal(endpoint.clone()).await;
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        assert!(
            error.to_string().contains(bundle.to_str().unwrap()),
            "{error}"
        );
        std::fs::write(&bundle, &tls.identity.authority.pem).unwrap();
        Connection::connect(endpoint.clone()).await.unwrap();
        std::fs::remove_file(&bundle).unwrap();
        Connection::connect(endpoint).await.unwrap();
    });
}

#[test]
fn what_is_no_certificate_is_refused_when_it_is_given() {
    assert!(TlsConfig::trusting(b"").is_err());
    assert!(
        TlsConfig::trusting(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
            .is_err()
    );
    let authority = Authority::new();
    let roots = authority.pem.as_bytes();
    assert!(TlsConfig::trusting_with_identity(roots, b"", b"").is_err());
    assert!(TlsConfig::trusting_with_identity(roots, roots, b"not a key").is_err());
}
