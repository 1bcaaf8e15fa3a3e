//! The arguments for TLS: trusted authorities, and a certificate to show.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args as Arguments;
use leasehold::TlsConfig;
use leasehold_cluster::Target;

use crate::exit::Failure;

/// What `redis-cli` calls so, too.
#[derive(Arguments, Debug)]
#[command(next_help_heading = "TLS")]
pub(crate) struct Tls {
    /// The certificates of the authorities to trust instead of those of the system, PEM.
    #[arg(long, global = true, value_name = "FILE", env = "LEASEHOLD_TLS_CACERT")]
    cacert: Option<PathBuf>,
    /// A certificate to show the server, PEM; needs --key.
    #[arg(long, global = true, value_name = "FILE", env = "LEASEHOLD_TLS_CERT")]
    cert: Option<PathBuf>,
    /// The private key of that certificate, PEM.
    #[arg(
        long = "key",
        global = true,
        value_name = "FILE",
        env = "LEASEHOLD_TLS_KEY"
    )]
    private_key: Option<PathBuf>,
}

impl Tls {
    /// The configuration for connections to all of `urls`; `None` where nothing was said, so that the system decides.
    ///
    /// # Errors
    ///
    /// A file cannot be read or used, or a URL is one without TLS: a file that is named there is a mistake, and what it was to
    /// protect would be sent in the open.
    pub(crate) fn config<'a>(
        &self,
        urls: impl IntoIterator<Item = &'a str>,
    ) -> Result<Option<TlsConfig>, Failure> {
        let identity = match (given(self.cert.as_ref()), given(self.private_key.as_ref())) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            _ => {
                return Err(Failure::usage(
                    "--cert and --key belong together: a certificate and its private key",
                ));
            }
        };
        let authorities = given(self.cacert.as_ref());
        if authorities.is_none() && identity.is_none() {
            return Ok(None);
        }
        if urls.into_iter().any(is_open) {
            return Err(Failure::usage(
                "--cacert, --cert and --key are for URLs with TLS, which begin with rediss",
            ));
        }
        let made = match (authorities, identity) {
            (Some(roots), None) => TlsConfig::trusting(&read("--cacert", roots)?),
            (roots, Some((certificate, key))) => {
                let roots = roots.map(|roots| read("--cacert", roots)).transpose()?;
                let certificate = read("--cert", certificate)?;
                let key = read("--key", key)?;
                match roots {
                    Some(roots) => TlsConfig::trusting_with_identity(&roots, &certificate, &key),
                    None => TlsConfig::with_identity(&certificate, &key),
                }
            }
            (None, None) => return Ok(None),
        };
        made.map(Some).map_err(|error| {
            let names = [&self.cacert, &self.cert, &self.private_key];
            let names: Vec<_> = names
                .into_iter()
                .flatten()
                .map(|path| shown(path))
                .collect();
            Failure::usage(format!("no TLS with {}: {error}", names.join(", ")))
        })
    }
}

/// A variable that is empty names nothing.
fn given(path: Option<&PathBuf>) -> Option<&Path> {
    let path = path.map(PathBuf::as_path);
    path.filter(|path| !path.as_os_str().is_empty())
}

/// Whether it is a URL without TLS. What is no URL is told so later.
fn is_open(url: &str) -> bool {
    Target::parse(url).is_ok_and(|mut target| {
        let endpoints = target.endpoints_mut();
        endpoints.iter().any(|endpoint| !endpoint.tls)
    })
}

fn read(option: &str, path: &Path) -> Result<Vec<u8>, Failure> {
    fs::read(path).map_err(|error| {
        Failure::usage(format!(
            "the file of {option}, {}, cannot be read: {error}",
            shown(path)
        ))
    })
}

fn shown(path: &Path) -> String {
    crate::output::shown(&path.to_string_lossy())
}
