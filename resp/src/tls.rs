//! TLS configuration: trusted roots and client certificate.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, ConfigBuilder, RootCertStore, WantsVerifier, crypto};

pub use tokio_rustls::rustls;

/// Where operating systems keep the certificates they trust, unless `SSL_CERT_FILE` says otherwise.
const SYSTEM_ROOTS: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
    "/opt/homebrew/etc/ca-certificates/cert.pem",
];

/// The configuration that is used where none is given, once it could be read.
static SYSTEM: OnceLock<TlsConfig> = OnceLock::new();

/// TLS configuration: trusted roots and client certificate. Clones share it.
///
/// Without one, `rediss://` trusts the certificates in the file that `SSL_CERT_FILE` names, or those of the system. The
/// file is read at the first connect and, if that fails, at the next one; what was read serves the whole process.
#[derive(Clone)]
pub struct TlsConfig(Arc<ClientConfig>);

impl TlsConfig {
    /// Trusts the certificates in `roots`, PEM, and nothing else.
    ///
    /// # Errors
    ///
    /// There is no certificate in `roots`, or one that cannot be read.
    pub fn trusting(roots: &[u8]) -> io::Result<Self> {
        Ok(Self(Arc::new(verifying(roots)?.with_no_client_auth())))
    }

    /// Trusts `roots`, and shows `certificate` with its private `key`; all PEM.
    ///
    /// # Errors
    ///
    /// Something in them cannot be read, or the key is not the certificate's.
    pub fn trusting_with_identity(
        roots: &[u8],
        certificate: &[u8],
        key: &[u8],
    ) -> io::Result<Self> {
        let chain = certificates(certificate)?;
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|error| invalid("the private key", error))?;
        let config = verifying(roots)?.with_client_auth_cert(chain, key);
        Ok(Self(Arc::new(config.map_err(|error| {
            invalid("the client certificate", error)
        })?)))
    }

    /// Trusts what is trusted without a configuration, and shows `certificate` with its private `key`, both PEM.
    ///
    /// # Errors
    ///
    /// Something in them cannot be read, the key is not the certificate's, or the system has no trusted certificates.
    pub fn with_identity(certificate: &[u8], key: &[u8]) -> io::Result<Self> {
        Self::trusting_with_identity(&system_roots()?, certificate, key)
    }

    fn system() -> io::Result<Self> {
        if let Some(known) = SYSTEM.get() {
            return Ok(known.clone());
        }
        let read = Self::trusting(&system_roots()?)?;
        Ok(SYSTEM.get_or_init(|| read).clone())
    }
}

/// Any configuration of rustls.
impl From<Arc<ClientConfig>> for TlsConfig {
    fn from(config: Arc<ClientConfig>) -> Self {
        Self(config)
    }
}

/// The same object, that is: rustls does not compare configurations.
impl PartialEq for TlsConfig {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for TlsConfig {}

impl fmt::Debug for TlsConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsConfig")
    }
}

pub(crate) fn client_config(config: Option<&TlsConfig>) -> io::Result<Arc<ClientConfig>> {
    match config {
        Some(config) => Ok(Arc::clone(&config.0)),
        None => TlsConfig::system().map(|config| config.0),
    }
}

pub(crate) fn server_name(host: &str) -> io::Result<ServerName<'static>> {
    ServerName::try_from(host.to_owned()).map_err(|error| invalid("the host name", error))
}

fn system_roots() -> io::Result<Vec<u8>> {
    let from_environment = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    let known = SYSTEM_ROOTS
        .iter()
        .map(PathBuf::from)
        .find(|path| path.exists());
    let Some(path) = from_environment.or(known) else {
        let advice = "no trusted certificates found: set SSL_CERT_FILE, or pass a TlsConfig";
        return Err(io::Error::new(io::ErrorKind::NotFound, advice));
    };
    std::fs::read(&path).map_err(|error| {
        io::Error::new(
            error.kind(),
            format!("cannot read {}: {error}", path.display()),
        )
    })
}

fn verifying(
    roots: &[u8],
) -> io::Result<ConfigBuilder<ClientConfig, rustls::client::WantsClientCert>> {
    let mut store = RootCertStore::empty();
    // A system's bundle may hold a certificate that rustls refuses; it counts only if none is left.
    store.add_parsable_certificates(certificates(roots)?);
    if store.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "no usable certificate among the trusted ones",
        ));
    }
    Ok(builder()?.with_root_certificates(store))
}

/// The provider is named, so that an application with another default provider changes nothing here.
fn builder() -> io::Result<ConfigBuilder<ClientConfig, WantsVerifier>> {
    ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)
}

fn certificates(pem: &[u8]) -> io::Result<Vec<CertificateDer<'static>>> {
    CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|error| invalid("a certificate", error))
}

fn invalid(what: &str, error: impl fmt::Display) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("{what} cannot be used: {error}"),
    )
}
