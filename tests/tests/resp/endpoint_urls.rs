//! The URLs of a server: their meaning, refusals, and that no part of a password is ever shown.

use std::time::Duration;

use leasehold_resp::{Address, Endpoint, ErrorKind};

/// The compared parts: address, TLS, user, password, database, name.
type Parts<'a> = (
    &'a str,
    bool,
    Option<&'a str>,
    Option<&'a str>,
    u32,
    Option<&'a str>,
);

fn parts<'a>(endpoint: &'a Endpoint, node: &'a str) -> Parts<'a> {
    (
        node,
        endpoint.tls,
        endpoint.user.as_deref(),
        endpoint.password.as_deref(),
        endpoint.database,
        endpoint.client_name.as_deref(),
    )
}

#[test]
#[rustfmt::skip]
fn every_form_of_url_is_understood() {
    let cases: &[(&str, Parts<'static>)] = &[
        ("redis://localhost",                         ("localhost:6379", false, None, None, 0, None)),
        ("redis://localhost/",                        ("localhost:6379", false, None, None, 0, None)),
        ("REDIS://LocalHost:1",                       ("LocalHost:1",    false, None, None, 0, None)),
        ("rediss://cache.example:65535/15",           ("cache.example:65535", true, None, None, 15, None)),
        ("redis://127.0.0.1:6380/0?",                 ("127.0.0.1:6380", false, None, None, 0, None)),
        ("redis://[::1]",                             ("[::1]:6379",     false, None, None, 0, None)),
        ("redis://u:p@[2001:db8::7]:7000/3",          ("[2001:db8::7]:7000", false, Some("u"), Some("p"), 3, None)),
        ("redis://:secret@h",                         ("h:6379", false, None, Some("secret"), 0, None)),
        ("redis://alice:secret@h",                    ("h:6379", false, Some("alice"), Some("secret"), 0, None)),
        // A user with `nopass` takes any password, the empty one too.
        ("redis://alice:@h",                          ("h:6379", false, Some("alice"), Some(""), 0, None)),
        ("redis://:@h",                               ("h:6379", false, None, None, 0, None)),
        ("redis://@h",                                ("h:6379", false, None, None, 0, None)),
        // Reserved characters are percent-encoded; unambiguous ones need not be.
        ("redis://a%3Ab:p%40%2f%3A%3f%23%25%c3%a9@h", ("h:6379", false, Some("a:b"), Some("p@/:?#%é"), 0, None)),
        ("redis://u:p:q@r@h",                         ("h:6379", false, Some("u"), Some("p:q@r"), 0, None)),
        ("redis://h?client_name=billing-7",           ("h:6379", false, None, None, 0, Some("billing-7"))),
        ("redis://h/?client_name=a%3Db&db=4",         ("h:6379", false, None, None, 4, Some("a=b"))),
        ("redis://h?user=u&password=a@b&client_name=", ("h:6379", false, Some("u"), Some("a@b"), 0, None)),
        ("unix:///run/redis.sock",                    ("/run/redis.sock", false, None, None, 0, None)),
        ("redis+unix:///run/redis.sock",              ("/run/redis.sock", false, None, None, 0, None)),
        ("valkey://h:1",                              ("h:1", false, None, None, 0, None)),
        ("valkeys://h/2",                             ("h:6379", true, None, None, 2, None)),
        ("unix:///run/a%20b.sock?db=1&user=u&password=p%26q&client_name=n", ("/run/a b.sock", false, Some("u"), Some("p&q"), 1, Some("n"))),
    ];
    for (url, expected) in cases {
        let endpoint = Endpoint::parse(url).unwrap_or_else(|error| panic!("{url}: {error}"));
        assert_eq!(parts(&endpoint, &endpoint.node()), *expected, "{url}");
        assert_eq!(endpoint.address.to_string(), *endpoint.node(), "{url}");
    }
}

#[test]
fn what_is_not_said_has_a_default_and_can_be_set() {
    let mut endpoint = Endpoint::parse("redis://h").unwrap();
    assert_eq!(
        (endpoint.connect_timeout, endpoint.command_timeout),
        (Duration::from_secs(5), Duration::from_secs(5))
    );
    assert_eq!(
        endpoint,
        Endpoint::new(Address::Tcp {
            host: "h".to_owned(),
            port: 6379
        })
    );
    endpoint.command_timeout = Duration::from_millis(50);
    assert_ne!(endpoint, Endpoint::parse("redis://h").unwrap());
}

#[test]
fn what_cannot_be_used_is_refused_with_the_reason() {
    let cases = [
        ("", "has no scheme"),
        ("localhost:6379", "has no scheme"),
        ("://h", "has no scheme"),
        ("my password://h", "has no scheme"),
        (
            "http://h",
            "'http://' is not a scheme that is understood; write redis://",
        ),
        ("https://h", "write rediss://"),
        (
            "reids://h",
            "'reids://' is not a scheme that is understood; write redis://",
        ),
        (
            "postgres://h",
            "redis://, rediss:// (with TLS), unix://, redis-cluster:// and redis-sentinel:// are",
        ),
        ("redis-cluster://a,b", "redis://, rediss:// and unix:// are"),
        ("redis-sentinel://a,b/service", "'redis-sentinel://' is not"),
        ("rediss+unix:///a", "'rediss+unix://' is not"),
        ("redis://", "the host is missing"),
        ("redis://:6379", "the host is missing"),
        ("redis://u:p@", "the host is missing"),
        (
            "redis://a,b",
            "several are for redis-cluster://host,host and redis-sentinel://host,host/service",
        ),
        ("redis://a b", "one name or address"),
        ("redis://h:", "from 1 to 65535"),
        ("redis://h:0", "from 1 to 65535"),
        ("redis://h:65536", "from 1 to 65535"),
        ("redis://h:+1", "from 1 to 65535"),
        ("redis://h:6379x", "from 1 to 65535"),
        ("redis://::1", "must stand in brackets"),
        ("redis://[::1", "must be closed"),
        ("redis://[::1]6379", "only a port may follow"),
        ("redis://[cache]", "an IPv6 address must stand"),
        ("redis://h/x", "the database must be a number"),
        ("redis://h/-1", "the database must be a number"),
        ("redis://h/1/2", "the database must be a number"),
        ("redis://h/4294967296", "the database must be a number"),
        ("redis://h?db=", "the database must be a number"),
        ("redis://h/1?db=2", "more than one database"),
        ("redis://h?db=1&db=1", "more than one database"),
        ("redis://u:p@h?password=q", "more than one password"),
        ("redis://u:p@h?user=q", "more than one user"),
        (
            "redis://h?timeout=5",
            "unknown parameter; client_name, db, user and password are known: timeouts are set in the program",
        ),
        (
            "redis://h?hunter2=5",
            "unknown parameter; client_name, db, user and password are known",
        ),
        ("redis://h?username=u", "write `user`"),
        ("redis://h?clien_name=u", "write `client_name`"),
        ("redis://h?databse=1", "are known"),
        ("redis://h?dbb=1", "write `db`"),
        ("redis://h?passwrod=1", "write `password`"),
        (
            "redis://h?ssl_cert_reqs=none",
            "what TLS trusts is set in the program",
        ),
        (
            "redis://h?sentinel_user=u",
            "write redis-sentinel://host,host/service",
        ),
        ("redis://h?client_name=a%20b", "printable ASCII"),
        ("redis://h?client_name=a%0ab", "printable ASCII"),
        ("redis://alice@h", "a user needs a password"),
        ("unix:///s?user=alice", "a user needs a password"),
        ("redis://:p%@h", "two hexadecimal digits"),
        ("redis://:p%4@h", "two hexadecimal digits"),
        ("redis://:p%zz@h", "two hexadecimal digits"),
        ("redis://:p%+1@h", "two hexadecimal digits"),
        ("redis://:%ff@h", "must be UTF-8"),
        ("redis://:p#q@h", "must be written as %23"),
        ("unix://", "must be absolute"),
        ("unix:///", "must be absolute"),
        ("unix://relative/path", "must be absolute"),
    ];
    for (url, reason) in cases {
        let error = Endpoint::parse(url).expect_err(url);
        assert_eq!(error.kind(), ErrorKind::Config, "{url}");
        assert!(error.to_string().contains(reason), "{url}: {error}");
    }
}

#[test]
fn no_message_shows_a_password_however_the_url_is_broken() {
    let mut urls = Vec::new();
    for scheme in [
        "redis",
        "rediss",
        "unix",
        "http",
        "redis-cluster",
        "",
        ":hunter2@",
    ] {
        for who in [
            ":hunter2@",
            "u:hunter2@",
            "hunter2@",
            "u:x?hunter2@",
            "u:1?hunter2&@",
            "u:x#hunter2@",
            "u:x/hunter2@",
            "u:hunter2%@",
        ] {
            for place in [
                "",
                "h",
                "h:x",
                "[h]",
                "h/x",
                "h/1?x=hunter2",
                "h?password=hunter2",
                "/s?password=hunter2&password=hunter2",
            ] {
                urls.push(format!("{scheme}://{who}{place}"));
                urls.push(format!("{scheme}:{who}{place}"));
            }
        }
    }
    for url in urls {
        match Endpoint::parse(&url) {
            Ok(endpoint) => {
                // The parts before the password are no secret: a path or a user that happens to
                // look like one.
                let shown = format!("{endpoint:?}");
                let is_elsewhere = endpoint.address.to_string().contains("hunter2")
                    || endpoint.user.as_deref() == Some("hunter2");
                assert!(is_elsewhere || !shown.contains("hunter2"), "{url}: {shown}");
                assert!(
                    !shown.contains("password: Some(\"hunter2"),
                    "{url}: {shown}"
                );
            }
            Err(error) => {
                let shown = format!("{error} {error:?}");
                assert!(!shown.contains("hunter2"), "{url}: {shown}");
            }
        }
    }
}

/// Not the server's fault, so nothing is sent, and trying again is pointless.
#[cfg(not(feature = "tls"))]
#[tokio::test]
async fn rediss_without_the_feature_is_a_setting_that_cannot_be_used() {
    let endpoint = Endpoint::parse("rediss://127.0.0.1:1").unwrap();
    let connected = leasehold_resp::Connection::connect(endpoint).await;
    let error = connected.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.to_string().contains("the feature `tls`"), "{error}");
}
