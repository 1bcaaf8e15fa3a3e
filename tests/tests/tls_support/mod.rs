//! Certificates made for the occasion.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use leasehold_resp::tls::TlsConfig;
use leasehold_testkit::{Scratch, Server};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

/// Whoever signs.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub(crate) pem: String,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // OpenSSL takes a certificate whose subject is its issuer's for one that is signed by itself.
        params
            .distinguished_name
            .push(DnType::CommonName, "the authority");
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self {
            issuer: Issuer::new(params, key),
            pem,
        }
    }

    /// A certificate for `names` and its key.
    pub(crate) fn sign(&self, names: &[&str]) -> (String, String) {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(names)
            .unwrap()
            .signed_by(&key, &self.issuer)
            .unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    /// Trusts this authority and nobody else.
    pub(crate) fn trusted(&self) -> TlsConfig {
        TlsConfig::trusting(self.pem.as_bytes()).unwrap()
    }
}

/// What a server shows, in files that its configuration names.
pub(crate) struct Identity {
    pub(crate) authority: Authority,
    files: Scratch,
}

impl Identity {
    /// A certificate for `names` and nothing else.
    pub(crate) fn new(names: &[&str]) -> Self {
        let (authority, files) = (Authority::new(), Scratch::new());
        let (certificate, key) = authority.sign(names);
        for (name, pem) in [
            ("cert", &certificate),
            ("key", &key),
            ("ca-cert", &authority.pem),
        ] {
            std::fs::write(files.join(name), pem).unwrap();
        }
        Self { authority, files }
    }

    /// Lines of a server's configuration, without certificates of clients.
    pub(crate) fn lines(&self) -> Vec<String> {
        let file = |name| format!("tls-{name}-file {}", self.files.join(name).display());
        vec![
            file("cert"),
            file("key"),
            file("ca-cert"),
            "tls-auth-clients no".into(),
        ]
    }
}

/// Whether the server was built with TLS, as the one of Redis 6.2 from the package index is not. Prints that it was not.
pub(crate) async fn speaks_tls() -> bool {
    let knows = knows("tls-port").await;
    if !knows {
        eprintln!("skipped: the server does not speak TLS");
    }
    knows
}

/// Whether the server has this setting.
pub(crate) async fn knows(setting: &str) -> bool {
    !Server::start()
        .await
        .raw()
        .await
        .cmd(&["CONFIG", "GET", setting])
        .await
        .array()
        .is_empty()
}
