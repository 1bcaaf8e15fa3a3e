//! Certificates made for a test.

use leasehold_resp::tls::TlsConfig;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

use crate::{Scratch, Server};

/// A certificate authority of a test.
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Its own certificate.
    pub pem: String,
}

impl Authority {
    /// Creates an authority with a fresh key.
    ///
    /// # Panics
    ///
    /// When no key can be generated.
    #[expect(clippy::new_without_default, reason = "each one is another authority")]
    #[must_use]
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // OpenSSL takes a certificate whose subject is its issuer's for one that is signed by
        // itself.
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

    /// A certificate for `names` and its key, both as PEM.
    ///
    /// # Panics
    ///
    /// When a name cannot stand in a certificate.
    #[must_use]
    pub fn sign(&self, names: &[&str]) -> (String, String) {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(names)
            .unwrap()
            .signed_by(&key, &self.issuer)
            .unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    /// A client's configuration that trusts this authority and no other.
    #[must_use]
    pub fn trusted(&self) -> TlsConfig {
        TlsConfig::trusting(self.pem.as_bytes()).expect("its own certificate is valid")
    }
}

/// The certificate and key of a server, in files that its configuration names.
#[derive(Debug)]
pub struct Identity {
    /// The authority that signed the certificate.
    pub authority: Authority,
    files: Scratch,
}

impl Identity {
    /// A certificate for `names` only, signed by a fresh authority.
    ///
    /// # Panics
    ///
    /// When the files cannot be written.
    #[must_use]
    pub fn new(names: &[&str]) -> Self {
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

    /// The lines of a server's configuration. Clients need no certificate.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let file = |name| format!("tls-{name}-file {}", self.files.join(name).display());
        vec![
            file("cert"),
            file("key"),
            file("ca-cert"),
            "tls-auth-clients no".into(),
        ]
    }
}

/// Whether the server was built with TLS, as the one of Redis 6.2 from the package index is not.
/// Prints that it was not.
pub async fn speaks_tls() -> bool {
    let knows = knows("tls-port").await;
    if !knows {
        eprintln!("skipped: the server does not speak TLS");
    }
    knows
}

/// Whether the server has this setting.
pub async fn knows(setting: &str) -> bool {
    !Server::start()
        .await
        .raw()
        .await
        .cmd(&["CONFIG", "GET", setting])
        .await
        .array()
        .is_empty()
}
