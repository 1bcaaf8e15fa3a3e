//! The URL of one server, read by hand.
//!
//! Every message here may end up in a log, so none of them quotes anything that could hold a password, which, in a URL
//! that is written wrongly, is nearly all of it (a `?` in a password turns the rest of it into a parameter's name): only the scheme is quoted.
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]

use super::scheme::{Deployment, Scheme, meant, nearest};
use super::{Address, Endpoint};

const DEFAULT_PORT: u16 = 6379;

/// Why a URL cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Problem {
    #[error("the server's URL has no scheme; write redis://host:port")]
    NoScheme,
    /// The scheme of several servers.
    #[error("'{0}://' is not the scheme of a single server; redis://, rediss:// and unix:// are")]
    NotSingle(String),
    /// A scheme that is none.
    #[error("'{0}://' is not a scheme that is understood; {advice}", advice = scheme_advice(.0))]
    Scheme(String),
    /// A part that is there but wrong: which, and what it should be.
    #[error("in the server's URL, {0}")]
    Part(&'static str),
    /// Not quoted: it may be the rest of a password. With what is meant by it, if that is known.
    #[error(
        "the server's URL has an unknown parameter; client_name, db, user and password are known{}{}",
        if .0.is_empty() { "" } else { ": " },
        .0
    )]
    Parameter(&'static str),
    /// A part that is given in two places.
    #[error("the server's URL has more than one {0}")]
    Twice(&'static str),
}

pub(super) fn parse(url: &str) -> Result<Endpoint, Problem> {
    let (scheme, rest) = url.split_once("://").ok_or(Problem::NoScheme)?;
    if rest.contains('#') {
        return Err(Problem::Part("a '#' must be written as %23"));
    }
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let mut endpoint = match Scheme::parse(scheme) {
        Some(Scheme { deployment, tls }) => match deployment {
            Deployment::Server => Endpoint { tls, ..tcp(rest)? },
            Deployment::Socket => unix(rest)?,
            Deployment::Cluster | Deployment::Sentinel => {
                return Err(Problem::NotSingle(scheme.to_ascii_lowercase()));
            }
        },
        None if is_scheme(scheme) => return Err(Problem::Scheme(scheme.to_ascii_lowercase())),
        None => return Err(Problem::NoScheme),
    };
    parameters(&mut endpoint, query)?;
    if endpoint.user.is_some() && endpoint.password.is_none() {
        return Err(Problem::Part("a user needs a password"));
    }
    Ok(endpoint)
}

/// `[[user][:password]@]host[:port][/database]`.
fn tcp(rest: &str) -> Result<Endpoint, Problem> {
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    // The last one: a password with an unencoded `@` is common enough, a host with one is not.
    let (who, place) = authority
        .rsplit_once('@')
        .map_or((None, authority), |(who, place)| (Some(who), place));
    let (host, port) = host_and_port(place)?;
    let mut endpoint = Endpoint::new(Address::Tcp { host, port });
    if let Some(who) = who {
        let (user, password) = who
            .split_once(':')
            .map_or((who, None), |(user, password)| (user, Some(password)));
        endpoint.user = present(decoded(user)?);
        // `user:@` is an empty password, which a user with `nopass` takes; `:@` is no user at all.
        endpoint.password = password
            .map(decoded)
            .transpose()?
            .filter(|password| endpoint.user.is_some() || !password.is_empty());
    }
    if !path.is_empty() {
        endpoint.database = database(path)?;
    }
    Ok(endpoint)
}

/// `/path/to/socket`.
fn unix(path: &str) -> Result<Endpoint, Problem> {
    let path = decoded(path)?;
    if !path.starts_with('/') || path.len() < 2 {
        return Err(Problem::Part(
            "the path of the socket must be absolute: unix:///path/to/socket",
        ));
    }
    Ok(Endpoint::new(Address::Unix(path.into())))
}

fn host_and_port(place: &str) -> Result<(String, u16), Problem> {
    if place.contains(',') {
        return Err(Problem::Part(
            "the host must be one name or address: several are for redis-cluster://host,host and \
             redis-sentinel://host,host/service",
        ));
    }
    let (host, port) = if let Some(rest) = place.strip_prefix('[') {
        let (host, rest) = rest
            .split_once(']')
            .ok_or(Problem::Part("the '[' of an IPv6 address must be closed"))?;
        if host.parse::<std::net::Ipv6Addr>().is_err() {
            return Err(Problem::Part("an IPv6 address must stand in the brackets"));
        }
        match rest.strip_prefix(':') {
            Some(port) => (host, Some(port)),
            None if rest.is_empty() => (host, None),
            None => return Err(Problem::Part("only a port may follow an IPv6 address")),
        }
    } else {
        place
            .split_once(':')
            .map_or((place, None), |(host, port)| (host, Some(port)))
    };
    if port.is_some_and(|port| port.contains(':')) {
        return Err(Problem::Part(
            "an IPv6 address must stand in brackets, and a ':' in a password must be %3A",
        ));
    }
    if host.is_empty() {
        return Err(Problem::Part("the host is missing"));
    }
    if host.contains(|c: char| {
        c.is_whitespace() || c.is_control() || matches!(c, '[' | ']' | '%' | '\\')
    }) {
        return Err(Problem::Part("the host must be one name or address"));
    }
    let port = match port {
        None => DEFAULT_PORT,
        Some(port) => match number(port) {
            Some(port @ 1..=0xffff) => u16::try_from(port).unwrap_or(DEFAULT_PORT),
            _ => return Err(Problem::Part("the port must be a number from 1 to 65535")),
        },
    };
    Ok((host.to_owned(), port))
}

fn parameters(endpoint: &mut Endpoint, query: &str) -> Result<(), Problem> {
    let mut has_database = endpoint.database != 0;
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        match name {
            "client_name" => {
                let name = decoded(value)?;
                // As CLIENT SETNAME requires.
                if name.bytes().any(|byte| !byte.is_ascii_graphic()) {
                    return Err(Problem::Part(
                        "client_name must be printable ASCII without spaces",
                    ));
                }
                set(&mut endpoint.client_name, name, "client_name")?;
            }
            "user" => set(&mut endpoint.user, decoded(value)?, "user")?,
            "password" => set(&mut endpoint.password, decoded(value)?, "password")?,
            "db" if has_database => return Err(Problem::Twice("database")),
            "db" => {
                endpoint.database = database(value)?;
                has_database = true;
            }
            other => return Err(Problem::Parameter(parameter_advice(other))),
        }
    }
    Ok(())
}

/// Sets what was not set yet. Two passwords are a mistake, and either choice would be a surprise.
fn set(place: &mut Option<String>, value: String, name: &'static str) -> Result<(), Problem> {
    if place.is_some() {
        return Err(Problem::Twice(name));
    }
    *place = present(value);
    Ok(())
}

fn database(text: &str) -> Result<u32, Problem> {
    number(text).ok_or(Problem::Part("the database must be a number"))
}

/// Advice on a scheme that is none.
fn scheme_advice(scheme: &str) -> String {
    match meant(scheme) {
        Some(meant) => format!("write {meant}://"),
        None => {
            "redis://, rediss:// (with TLS), unix://, redis-cluster:// and redis-sentinel:// are"
                .into()
        }
    }
}

/// Advice on a parameter that is unknown. It says nothing of one that may be the rest of a password.
fn parameter_advice(name: &str) -> &'static str {
    match name.to_ascii_lowercase().as_str() {
        "username" => "write `user`",
        "pass" | "pwd" | "auth" => "write `password`",
        "database" | "database_id" => "write `db`",
        "name" | "clientname" | "client-name" => "write `client_name`",
        "timeout"
        | "socket_timeout"
        | "connect_timeout"
        | "socket_connect_timeout"
        | "command_timeout" => "timeouts are set in the program",
        "protocol" | "version" => "leave the protocol out, it is always RESP3",
        "ssl" | "tls" => "TLS is asked for with rediss://",
        name if name.starts_with("ssl_") || name.starts_with("tls_") || name == "insecure" => {
            "what TLS trusts is set in the program"
        }
        name if name.starts_with("sentinel") || name == "master_name" => {
            "for sentinels write redis-sentinel://host,host/service"
        }
        name => match nearest(name, &["client_name", "db", "user", "password"]) {
            Some("client_name") => "write `client_name`",
            Some("db") => "write `db`",
            Some("user") => "write `user`",
            Some(_) => "write `password`",
            None => "",
        },
    }
}

/// Whether it looks like a scheme, so that a message may show it.
fn is_scheme(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text.len() <= 24
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.'))
}

/// Digits only: `parse` alone would take a sign.
fn number(text: &str) -> Option<u32> {
    text.bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| text.parse().ok())
        .flatten()
}

fn present(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

/// The text with every `%xx` replaced by its byte.
fn decoded(text: &str) -> Result<String, Problem> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|byte| char::from(byte).to_digit(16));
        match (digit(), digit()) {
            (Some(high), Some(low)) => bytes.push((high << 4 | low) as u8),
            _ => {
                return Err(Problem::Part(
                    "a '%' must be followed by two hexadecimal digits, and is %25 itself",
                ));
            }
        }
    }
    String::from_utf8(bytes).map_err(|_| Problem::Part("what is percent-encoded must be UTF-8"))
}
