//! The target of a URL: a server, a cluster, or a service that sentinels monitor.

use leasehold_resp::endpoint::scheme::{Deployment, Scheme};
use leasehold_resp::{Endpoint, Error};

/// Where the keys live.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Target {
    /// One server.
    Single(Endpoint),
    /// A cluster, by some of its nodes. They are asked for the map now and whenever it is in doubt.
    Cluster {
        /// At least one.
        seeds: Vec<Endpoint>,
        /// Whether channels belong to slots where the servers can do that.
        sharded_channels: bool,
    },
    /// The master of a service, by the sentinels that know it.
    Sentinel {
        /// At least one.
        sentinels: Vec<Endpoint>,
        /// The name the service has in the sentinels' configuration.
        service: String,
        /// User, password, database and the rest, for the servers; the address is found out.
        server: Endpoint,
    },
}

impl Target {
    /// Reads the URL of a single server (see [`Endpoint::parse`]), or one of
    ///
    /// - `redis-cluster://[[user][:password]@]host[:port],host[:port]…[/database][?client_name=…]`; a database other than
    ///   0 takes Valkey 9 with `cluster-databases`, elsewhere connecting fails
    /// - `redis-sentinel://[[user][:password]@]host[:port],host[:port]…/service[/database][?…]`, the port being 26379
    ///   if absent; user and password are those of the servers, and `sentinel_user` and `sentinel_password` behind the
    ///   `?` those of the sentinels, if required
    ///
    /// With `rediss-` instead of `redis-` all connections speak TLS. `redis+cluster`, `valkey-cluster`, `valkeys+sentinel` and
    /// the like mean the same.
    ///
    /// # Errors
    ///
    /// A URL that cannot be used; the message never shows a password.
    pub fn parse(url: &str) -> Result<Self, Error> {
        let Some((scheme, rest)) = url.split_once("://") else {
            return Endpoint::parse(url).map(Self::Single);
        };
        let Some(Scheme {
            deployment: family,
            tls,
        }) = Scheme::parse(scheme)
        else {
            return Endpoint::parse(url).map(Self::Single);
        };
        let single = if tls { "rediss" } else { "redis" };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) = match authority.rsplit_once('@') {
            Some((login, hosts)) => (format!("{login}@"), hosts),
            None => (String::new(), authority),
        };
        match family {
            Deployment::Cluster => Ok(Self::Cluster {
                seeds: endpoints(single, &login, hosts, 6379, path, query)?,
                sharded_channels: true,
            }),
            Deployment::Sentinel => sentinel(single, &login, hosts, path, query),
            Deployment::Server | Deployment::Socket => Endpoint::parse(url).map(Self::Single),
        }
    }

    /// All endpoints that belong to it, to change settings that a URL does not have.
    pub fn endpoints_mut(&mut self) -> Vec<&mut Endpoint> {
        match self {
            Self::Single(endpoint) => vec![endpoint],
            Self::Cluster { seeds, .. } => seeds.iter_mut().collect(),
            Self::Sentinel {
                sentinels, server, ..
            } => sentinels.iter_mut().chain([server]).collect(),
        }
    }
}

impl Target {
    /// Uses the channels of the whole cluster, also where the servers have sharded ones. Elsewhere there are no others.
    pub fn use_plain_channels(&mut self) {
        if let Self::Cluster {
            sharded_channels, ..
        } = self
        {
            *sharded_channels = false;
        }
    }

    /// The endpoints of servers, without sentinels.
    pub fn servers_mut(&mut self) -> Vec<&mut Endpoint> {
        match self {
            Self::Single(endpoint) => vec![endpoint],
            Self::Cluster { seeds, .. } => seeds.iter_mut().collect(),
            Self::Sentinel { server, .. } => vec![server],
        }
    }
}

impl From<Endpoint> for Target {
    fn from(endpoint: Endpoint) -> Self {
        Self::Single(endpoint)
    }
}

fn sentinel(
    scheme: &str,
    login: &str,
    hosts: &str,
    path: &str,
    query: &str,
) -> Result<Target, Error> {
    let (service, database) = path.split_once('/').unwrap_or((path, ""));
    if service.is_empty() {
        return Err(Error::config(
            "the URL names no service; write redis-sentinel://host,host/service",
        ));
    }
    let (mut own, mut theirs) = (Vec::new(), Vec::new());
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        match parameter.strip_prefix("sentinel_") {
            Some(sentinel) => theirs.push(sentinel),
            None => own.push(parameter),
        }
    }
    // The user and password of a sentinel come as parameters; put them where a URL has them.
    let value = |name: &str| {
        theirs
            .iter()
            .find_map(|parameter| parameter.strip_prefix(name)?.strip_prefix('='))
    };
    let known = |parameter: &&str| {
        ["user=", "password="]
            .iter()
            .any(|name| parameter.starts_with(name))
    };
    if !theirs.iter().all(known) {
        return Err(Error::config(
            "of the parameters sentinel_…, the URL may have sentinel_user and sentinel_password",
        ));
    }
    let sentinel_login = match (value("user"), value("password")) {
        (None, None) => String::new(),
        (user, password) => format!("{}:{}@", user.unwrap_or(""), password.unwrap_or("")),
    };
    let sentinels = endpoints(scheme, &sentinel_login, hosts, 26379, "", "")?;
    let first = hosts.split(',').next().unwrap_or_default();
    let mut servers = endpoints(scheme, login, first, 26379, database, &own.join("&"))?;
    // The server's address is not known yet; the first sentinel's stands in for it.
    let server = servers.swap_remove(0);
    Ok(Target::Sentinel {
        sentinels,
        service: decode(service)?,
        server,
    })
}

/// One endpoint for each of `hosts`, through the parser for single servers.
fn endpoints(
    scheme: &str,
    login: &str,
    hosts: &str,
    port: u16,
    database: &str,
    query: &str,
) -> Result<Vec<Endpoint>, Error> {
    hosts
        .split(',')
        .map(|host| {
            if host.is_empty() {
                return Err(Error::config("the URL has an empty host among its hosts"));
            }
            let has_port = host
                .rsplit_once(':')
                .is_some_and(|(_, port)| !port.contains(']'));
            let port = if has_port {
                String::new()
            } else {
                format!(":{port}")
            };
            Endpoint::parse(&format!(
                "{scheme}://{login}{host}{port}/{database}?{query}"
            ))
        })
        .collect()
}

/// Percent-decodes a service's name.
fn decode(text: &str) -> Result<String, Error> {
    let bad = || Error::config("the name of the service is not valid percent-encoding");
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let digit = |byte: Option<u8>| {
            byte.and_then(|byte| char::from(byte).to_digit(16))
                .ok_or_else(bad)
        };
        bytes.push(match byte {
            b'%' => (digit(rest.next())? * 16 + digit(rest.next())?) as u8,
            byte => byte,
        });
    }
    String::from_utf8(bytes).map_err(|_| bad())
}
