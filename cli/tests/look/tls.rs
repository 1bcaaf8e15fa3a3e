//! `--cacert`, `--cert` and `--key`: a private authority, at a server that wants to see a certificate.

use std::path::Path;

use leasehold_testkit::tls::{Authority, Identity, speaks_tls};
use leasehold_testkit::{Scratch, Server, ServerBuilder};

use crate::support::{Ran, program, run};

/// A server that wants a certificate, and the files of a client.
struct Stage {
    url: String,
    files: Scratch,
    _server: Server,
    _identity: Identity,
}

impl Stage {
    /// `None` if the server was built without TLS.
    async fn start() -> Option<Self> {
        if !speaks_tls().await {
            return None;
        }
        let identity = Identity::new(&["localhost"]);
        let lines = identity.lines().into_iter();
        let builder = lines.fold(Server::builder().tls(), ServerBuilder::config);
        let server = builder.config("tls-auth-clients yes").start().await;
        let files = Scratch::new();
        let (cert, key) = identity.authority.sign(&["client"]);
        for (name, pem) in [
            ("ca", &identity.authority.pem),
            ("cert", &cert),
            ("key", &key),
            ("stranger", &Authority::new().pem),
            ("text", &"no certificate".to_owned()),
        ] {
            std::fs::write(files.join(name), pem).expect("written");
        }
        Some(Self {
            url: format!("rediss://localhost:{}", server.tls_port()),
            files,
            _server: server,
            _identity: identity,
        })
    }

    /// With these files of it behind the options.
    async fn run(&self, options: &[(&str, &str)], args: &[&str]) -> Ran {
        let mut words = Vec::new();
        for (option, file) in options {
            words.push((*option).to_owned());
            words.push(self.file(file));
        }
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        run(
            &self.url,
            &[args[..1].to_vec(), words, args[1..].to_vec()].concat(),
        )
        .await
    }

    fn file(&self, name: &str) -> String {
        Path::new(&self.files.join(name)).display().to_string()
    }
}

const ALL: &[(&str, &str)] = &[("--cacert", "ca"), ("--cert", "cert"), ("--key", "key")];

#[tokio::test(flavor = "multi_thread")]
async fn every_command_trusts_the_authority_and_shows_its_certificate() {
    let Some(stage) = Stage::start().await else {
        return;
    };
    let redlock = stage.url.clone();
    for (args, code) in [
        (&["ls"][..], 0),
        (&["inspect", "free"], 1),
        (&["who", "nobody"], 1),
        (&["break", "free", "--yes"], 1),
        (&["wait", "free"], 0),
        (&["latch", "set", "latch", "1"], 0),
        (
            &["sem", "acquire", "sem", "--permits", "2", "--lease", "1m"],
            0,
        ),
        (&["run", "order", "--", "true"], 0),
        (
            &[
                "run",
                "--durable",
                "--redlock",
                &redlock,
                "order",
                "--",
                "true",
            ],
            0,
        ),
    ] {
        if cfg!(not(target_os = "linux")) && args[0] == "run" {
            continue;
        }
        let ran = stage.run(ALL, args).await;
        assert_eq!(ran.code, code, "{args:?}: {ran:?}");
    }
    let doctor = stage.run(ALL, &["doctor"]).await;
    assert!(doctor.out.contains("persistence"), "{doctor:?}");
    let hold = stage.run(ALL, &["lock", "order", "--lease", "1m"]).await;
    let hold = hold.out.trim();
    for args in [
        &["verify", "order", hold][..],
        &["extend", "order", hold, "--lease", "2m"],
        &["unlock", "order", hold],
    ] {
        let ran = stage.run(ALL, args).await;
        assert_eq!(ran.code, 0, "{args:?}: {ran:?}");
    }

    // In the environment, as the URL; and the authorities of the system.
    for authorities in ["LEASEHOLD_TLS_CACERT", "SSL_CERT_FILE"] {
        let mut ls = program(&stage.url);
        ls.arg("ls")
            .env(authorities, stage.file("ca"))
            .env("LEASEHOLD_TLS_CERT", stage.file("cert"))
            .env("LEASEHOLD_TLS_KEY", stage.file("key"));
        let output = ls.output().await.expect("the program runs");
        assert!(output.status.success(), "{authorities}: {output:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_a_file_is_said_in_a_sentence() {
    let Some(stage) = Stage::start().await else {
        return;
    };
    let key = ("--key", "key");
    for (options, code, why) in [
        (&[("--cert", "cert"), key][..], None, "certificate"),
        (&[("--cacert", "stranger")], None, "certificate"),
        (&[("--cacert", "ca")], None, ""),
        (&[("--cert", "cert")], Some(64), "belong together"),
        (&[("--cacert", "none")], Some(64), "the file of --cacert"),
        (&[("--cacert", "text")], Some(64), "no TLS with"),
        (
            &[("--cacert", "ca"), ("--cert", "cert"), ("--key", "text")],
            Some(64),
            "private key",
        ),
    ] {
        for command in ["ls", "latch"] {
            let args = [command, "count-down", "x"];
            let args = if command == "ls" {
                &args[..1]
            } else {
                &args[..]
            };
            let ran = stage.run(options, args).await;
            assert!(
                ran.code != 0 && ran.err.contains(why),
                "{options:?}: {ran:?}"
            );
            assert!(code.is_none_or(|code| ran.code == code), "{ran:?}");
            assert!(!ran.err.contains("BEGIN"), "{ran:?}");
        }
    }
    let open = stage.url.replace("rediss", "redis");
    let ran = run(&open, &["ls", "--cacert", &stage.file("ca")]).await;
    assert!(ran.code == 64 && ran.err.contains("rediss"), "{ran:?}");
}
