//! The meaning of error lines: every line recorded from seven servers, and forms that no recording
//! has.

use std::collections::BTreeMap;

use leasehold_resp::{ServerError, ServerErrorKind as Kind};

/// Whether a script was running, and whether a part of it may have been done.
const NOT_RUN: (bool, bool) = (false, false);
const MAYBE_RUN: (bool, bool) = (false, true);
const SCRIPT_NOT_RUN: (bool, bool) = (true, false);
const SCRIPT_MAYBE_RUN: (bool, bool) = (true, true);

/// The meaning of each recorded case, on every server.
#[rustfmt::skip]
const EXPECTED: &[(&str, Kind, (bool, bool))] = &[
    ("NOSCRIPT",                                Kind::NoScript,       NOT_RUN),
    ("NOSCRIPT after SCRIPT FLUSH",             Kind::NoScript,       NOT_RUN),
    ("WRONGTYPE inside script",                 Kind::WrongType,      SCRIPT_MAYBE_RUN),
    ("WRONGTYPE direct",                        Kind::WrongType,      MAYBE_RUN),
    ("WRONGTYPE via pcall returned",            Kind::WrongType,      MAYBE_RUN),
    ("error_reply with code",                   Kind::Other,          MAYBE_RUN),
    ("error_reply without code",                Kind::Other,          MAYBE_RUN),
    ("lua error() string",                      Kind::Script,         SCRIPT_MAYBE_RUN),
    ("lua error{err=}",                         Kind::Script,         SCRIPT_MAYBE_RUN),
    ("compile error",                           Kind::Script,         NOT_RUN),
    ("global access",                           Kind::Script,         SCRIPT_MAYBE_RUN),
    ("unknown cmd in script",                   Kind::Script,         SCRIPT_MAYBE_RUN),
    ("wrong arity in script",                   Kind::Script,         SCRIPT_MAYBE_RUN),
    ("not an integer in script",                Kind::Script,         SCRIPT_MAYBE_RUN),
    ("EVALSHA numkeys > args",                  Kind::Other,          MAYBE_RUN),
    ("EVALSHA negative numkeys",                Kind::Other,          MAYBE_RUN),
    ("EVALSHA arity",                           Kind::Other,          MAYBE_RUN),
    ("unknown command",                         Kind::UnknownCommand, NOT_RUN),
    ("EVALSHA_RO on replica",                   Kind::UnknownCommand, NOT_RUN),
    ("EVALSHA_RO with a write",                 Kind::Script,         SCRIPT_MAYBE_RUN),
    ("shebang no-writes + write",               Kind::Script,         SCRIPT_MAYBE_RUN),
    ("FCALL missing function",                  Kind::Other,          MAYBE_RUN),
    ("SCRIPT KILL nothing running",             Kind::Other,          MAYBE_RUN),
    ("FUNCTION KILL nothing",                   Kind::Other,          MAYBE_RUN),
    ("SCRIPT KILL (script wrote)",              Kind::Other,          MAYBE_RUN),
    ("WAITAOF 1 local, AOF off",                Kind::Other,          MAYBE_RUN),
    ("EXEC without MULTI",                      Kind::Other,          MAYBE_RUN),
    ("EXECABORT",                               Kind::ExecAbort,      NOT_RUN),
    ("HELLO 4",                                 Kind::NoProto,        NOT_RUN),
    ("HELLO abc",                               Kind::Other,          MAYBE_RUN),
    ("BUSY",                                    Kind::Busy,           NOT_RUN),
    ("BUSY: PING",                              Kind::Busy,           NOT_RUN),
    ("BUSY (script wrote)",                     Kind::Busy,           NOT_RUN),
    ("BUSY: PING (script wrote)",               Kind::Busy,           NOT_RUN),
    ("BUSY: reply of the killed script",        Kind::ScriptKilled,   SCRIPT_NOT_RUN),
    ("OOM on EVALSHA (write script)",           Kind::Oom,            SCRIPT_NOT_RUN),
    ("OOM direct SET",                          Kind::Oom,            NOT_RUN),
    ("OOM: shebang script w/o allow-oom",       Kind::Oom,            NOT_RUN),
    ("NOAUTH",                                  Kind::NoAuth,         NOT_RUN),
    ("NOAUTH: HELLO 3 without AUTH",            Kind::NoAuth,         NOT_RUN),
    ("NOAUTH: PING",                            Kind::NoAuth,         NOT_RUN),
    ("NOAUTH: big bulk",                        Kind::NoAuth,         NOT_RUN),
    ("WRONGPASS",                               Kind::WrongPass,      NOT_RUN),
    ("AUTH of a disabled user",                 Kind::WrongPass,      NOT_RUN),
    ("NOPERM command",                          Kind::NoPerm,         NOT_RUN),
    ("NOPERM key (declared)",                   Kind::NoPerm,         NOT_RUN),
    ("NOPERM channel",                          Kind::NoPerm,         NOT_RUN),
    ("NOPERM shard channel",                    Kind::NoPerm,         NOT_RUN),
    ("NOPERM key touched in script",            Kind::NoPerm,         SCRIPT_MAYBE_RUN),
    ("NOPERM command inside script",            Kind::NoPerm,         SCRIPT_MAYBE_RUN),
    ("MISCONF (rdb) on EVALSHA",                Kind::MisConf,        SCRIPT_NOT_RUN),
    ("MISCONF (rdb) direct SET",                Kind::MisConf,        NOT_RUN),
    ("MISCONF: PING",                           Kind::MisConf,        NOT_RUN),
    ("MISCONF (aof, disk full) on EVALSHA",     Kind::MisConf,        SCRIPT_NOT_RUN),
    ("MISCONF (aof) PING",                      Kind::MisConf,        NOT_RUN),
    ("NOREPLICAS on EVALSHA",                   Kind::NoReplicas,     SCRIPT_NOT_RUN),
    ("NOREPLICAS direct",                       Kind::NoReplicas,     NOT_RUN),
    ("READONLY on EVALSHA",                     Kind::ReadOnly,       SCRIPT_NOT_RUN),
    ("READONLY direct",                         Kind::ReadOnly,       NOT_RUN),
    ("FAILOVER: replies seen by a writer (t)",  Kind::ReadOnly,       NOT_RUN),
    ("WAIT on a replica",                       Kind::WaitMisuse,     MAYBE_RUN),
    ("UNBLOCKED (demoted while BLPOP)",         Kind::Unblocked,      MAYBE_RUN),
    ("WAIT while demoted",                      Kind::Unblocked,      MAYBE_RUN),
    ("CLIENT UNBLOCK ERROR",                    Kind::Unblocked,      MAYBE_RUN),
    ("MASTERDOWN on EVALSHA",                   Kind::MasterDown,     NOT_RUN),
    ("MASTERDOWN on GET",                       Kind::MasterDown,     NOT_RUN),
    ("MASTERDOWN: PING",                        Kind::MasterDown,     NOT_RUN),
    ("MASTERDOWN: SCRIPT LOAD",                 Kind::MasterDown,     NOT_RUN),
    ("LOADING on EVALSHA",                      Kind::Loading,        NOT_RUN),
    ("LOADING: PING",                           Kind::Loading,        NOT_RUN),
    ("LOADING: SCRIPT LOAD",                    Kind::Loading,        NOT_RUN),
    ("maxclients: reply before any command",    Kind::MaxClients,     NOT_RUN),
    ("protocol error: bad bulk len",            Kind::Protocol,       NOT_RUN),
    ("protocol error: bad multibulk",           Kind::Protocol,       NOT_RUN),
    ("protocol error: expected $",              Kind::Protocol,       NOT_RUN),
    ("proto-max-bulk-len exceeded",             Kind::Protocol,       NOT_RUN),
    ("CLUSTERDOWN slot not served",             Kind::ClusterDown,    NOT_RUN),
    ("CLUSTERDOWN the cluster is down",         Kind::ClusterDown,    NOT_RUN),
    ("CLUSTERDOWN only accepts read commands",  Kind::ClusterDown,    SCRIPT_NOT_RUN),
    ("slot not served, no full coverage",       Kind::ClusterDown,    NOT_RUN),
    // Sent while the cluster was down, which most servers notice first.
    ("CROSSSLOT on EVALSHA 2 keys",             Kind::ClusterDown,    NOT_RUN),
    ("script: 2 keys two slots in EVAL",        Kind::CrossSlot,      NOT_RUN),
    ("script: non-local key, undeclared",       Kind::NonLocalKey,    SCRIPT_MAYBE_RUN),
    ("SELECT 1 in cluster",                     Kind::Other,          MAYBE_RUN),
];

/// Cases in which one server differs from the rest.
const EXCEPTIONS: &[(&str, &str, Kind, (bool, bool))] = &[
    // The command is newer than the server.
    (
        "redis70",
        "WAITAOF 1 local, AOF off",
        Kind::UnknownCommand,
        NOT_RUN,
    ),
    // The keys are looked at before the state of the cluster.
    (
        "valkey91",
        "CROSSSLOT on EVALSHA 2 keys",
        Kind::CrossSlot,
        NOT_RUN,
    ),
];

fn recorded() -> BTreeMap<String, BTreeMap<String, String>> {
    serde_json::from_str(include_str!("../../data/server-errors.json"))
        .expect("the recording is well-formed")
}

#[test]
fn every_recorded_line_of_every_server_has_its_class() {
    let recorded = recorded();
    assert_eq!(recorded.len(), 7, "seven servers were recorded");
    for (server, cases) in &recorded {
        assert!(cases.len() >= 70, "{server} is complete");
        for (case, line) in cases {
            let exception = EXCEPTIONS
                .iter()
                .find(|(of, which, ..)| of == server && which == case);
            let rule = EXPECTED.iter().find(|(which, ..)| which == case);
            let (kind, (in_script, may_have_executed)) = match (exception, rule) {
                (Some((_, _, kind, run)), _) | (None, Some((_, kind, run))) => (kind, *run),
                (None, None) => panic!("nobody said what '{case}' means"),
            };
            let error = ServerError::parse(line.as_bytes());
            let read = (error.kind(), error.in_script(), error.may_have_executed());
            assert_eq!(
                read,
                (kind, in_script, may_have_executed),
                "{server}, {case}: {line}"
            );
        }
    }
    for (case, ..) in EXPECTED {
        assert!(
            recorded.values().any(|cases| cases.contains_key(*case)),
            "'{case}' was never recorded"
        );
    }
}

/// Redis 6.2 puts its place in front of an error that a script catches with `pcall`, and has no code
/// for a refusal then.
#[test]
fn an_error_that_a_script_caught_and_replied_with_has_its_class() {
    let denied =
        b"@user_script: 63: The user executing the script can't run this command or subcommand";
    let error = ServerError::parse(denied);
    assert_eq!((error.kind(), error.code()), (&Kind::NoPerm, "ERR"));
    assert!(error.in_script());
    let typed =
        b"@user_script: 7: WRONGTYPE Operation against a key holding the wrong kind of value";
    let error = ServerError::parse(typed);
    assert_eq!(
        (error.kind(), error.code()),
        (&Kind::WrongType, "WRONGTYPE")
    );
}

#[test]
fn an_error_of_a_script_has_the_same_code_and_message_on_all_servers() {
    for (server, cases) in &recorded() {
        let error = ServerError::parse(cases["READONLY on EVALSHA"].as_bytes());
        assert_eq!(error.code(), "READONLY", "{server}");
        assert_eq!(
            error.message(),
            "You can't write against a read only replica.",
            "{server}"
        );
        let error = ServerError::parse(cases["WRONGTYPE inside script"].as_bytes());
        assert_eq!(error.code(), "WRONGTYPE", "{server}");
        assert_eq!(
            error.message(),
            "Operation against a key holding the wrong kind of value",
            "{server}"
        );
        let error = ServerError::parse(cases["lua error() string"].as_bytes());
        assert_eq!(
            (error.code(), error.message()),
            ("ERR", "user_script:1: boom"),
            "{server}"
        );
    }
}

fn kind(line: &str) -> Kind {
    ServerError::parse(line.as_bytes()).kind().clone()
}

#[test]
fn redirects_name_their_target_in_every_form_servers_use() {
    let moved = |host: Option<&str>, port| Kind::Moved {
        slot: 5,
        host: host.map(str::to_owned),
        port,
    };
    let cases = [
        ("127.0.0.1:21300", moved(Some("127.0.0.1"), 21300)),
        ("cache-1.example:6379", moved(Some("cache-1.example"), 6379)),
        ("::1:6379", moved(Some("::1"), 6379)),
        ("2001:db8::7:6379", moved(Some("2001:db8::7"), 6379)),
        ("[2001:db8::7]:6379", moved(Some("2001:db8::7"), 6379)),
        // The host that answered, and one whose name the node does not know.
        (":22021", moved(None, 22021)),
        ("?:6379", moved(Some("?"), 6379)),
    ];
    for (target, expected) in cases {
        assert_eq!(kind(&format!("MOVED 5 {target}")), expected);
    }
    let ask = Kind::Ask {
        slot: 16383,
        host: Some("127.0.0.1".to_owned()),
        port: 1,
    };
    assert_eq!(kind("ASK 16383 127.0.0.1:1"), ask);
}

#[test]
fn a_redirect_that_nobody_can_follow_is_no_redirect() {
    for rest in [
        "",
        "5",
        "5 ",
        "5 host",
        "16384 host:1",
        "-1 host:1",
        "x host:1",
        "5 host:",
        "5 host:0",
        "5 host:65536",
    ] {
        assert_eq!(kind(&format!("MOVED {rest}")), Kind::Other, "{rest}");
        assert_eq!(kind(&format!("ASK {rest}")), Kind::Other, "{rest}");
    }
}

#[test]
fn what_no_recording_has_is_known_as_well() {
    let cases = [
        (
            "TRYAGAIN Multiple keys request during rehashing of slot",
            Kind::TryAgain,
        ),
        (
            "DENIED Redis is running in protected mode because protected mode is enabled",
            Kind::Denied,
        ),
        (
            "ERR max number of clients + cluster connections reached",
            Kind::MaxClients,
        ),
        ("ERR No such master with that name", Kind::NoSuchMaster),
        (
            "NOGOODSLAVE No suitable replica to promote",
            Kind::NoGoodReplica,
        ),
        (
            "INPROG Failover already in progress",
            Kind::FailoverInProgress,
        ),
        (
            "NOSUB 'sunsubscribe' command executed not in subscribed mode",
            Kind::NotSubscribed,
        ),
        (
            "ERR unknown subcommand 'SETINFO'. Try CLIENT HELP.",
            Kind::UnknownCommand,
        ),
        (
            "ERR Unknown subcommand or wrong number of arguments for 'SETINFO'. Try CLIENT HELP",
            Kind::UnknownCommand,
        ),
        // A function's place is named differently from a script's.
        (
            "WRONGTYPE Operation against a key script: acquire, on @user_function:12.",
            Kind::WrongType,
        ),
        (
            "ERR Script attempted to access keys that do not hash to the same slot script: on @user_script:3.",
            Kind::CrossSlot,
        ),
        // The same words from somewhere else mean something else.
        (
            "ERR Unknown Redis command called from script script: abc, on @user_script:1.",
            Kind::Script,
        ),
        ("ERR something script: about to fail", Kind::Other),
    ];
    for (line, expected) in cases {
        assert_eq!(kind(line), expected, "{line}");
    }
}

#[test]
fn a_script_that_borrows_a_refusal_is_not_believed_to_have_done_nothing() {
    // Raised by `error{err='MOVED ..'}`, not by the server: it may have written before.
    let borrowed = ServerError::parse(b"MOVED 5 127.0.0.1:7000 script: abc, on @user_script:4.");
    assert!(borrowed.in_script() && borrowed.may_have_executed());
    let real = ServerError::parse(b"MOVED 5 127.0.0.1:7000");
    assert!(!real.in_script() && !real.may_have_executed());
}

#[test]
fn what_passes_by_itself_is_worth_another_try() {
    for line in [
        "TRYAGAIN x",
        "CLUSTERDOWN x",
        "LOADING x",
        "BUSY x",
        "MASTERDOWN x",
        "NOREPLICAS x",
        "INPROG x",
        "NOGOODSLAVE x",
        "ERR max number of clients reached",
        "ERR Script killed by user with SCRIPT KILL.",
    ] {
        assert!(ServerError::parse(line.as_bytes()).is_transient(), "{line}");
    }
    for line in [
        "NOSCRIPT x",
        "MOVED 5 h:1",
        "ASK 5 h:1",
        "READONLY x",
        "OOM x",
        "MISCONF x",
        "NOAUTH x",
        "WRONGPASS x",
        "NOPERM x",
        "WRONGTYPE x",
        "CROSSSLOT x",
        "UNBLOCKED x",
        "DENIED x",
        "NOPROTO x",
        "EXECABORT x",
        "NOSUB x",
        "ERR x",
        "MYCODE x",
        "x",
        "",
    ] {
        assert!(
            !ServerError::parse(line.as_bytes()).is_transient(),
            "{line}"
        );
    }
}

#[test]
fn any_bytes_can_be_read_and_shown() {
    let error = ServerError::parse(b"ERR unknown command '\xff\x00\r\n\x1b[31m', with args");
    assert_eq!(error.kind(), &Kind::UnknownCommand);
    assert_eq!(
        error.to_string(),
        "ERR unknown command '\u{fffd}    [31m', with args",
        "no control byte reaches a terminal"
    );

    let error = ServerError::parse(b"");
    assert_eq!(
        (error.code(), error.message(), error.to_string()),
        ("", "", String::new())
    );
    let error = ServerError::parse(b"just text");
    assert_eq!((error.code(), error.message()), ("", "just text"));
    let error = ServerError::parse(b"MYCODE");
    assert_eq!(
        (error.code(), error.message(), error.to_string()),
        ("MYCODE", "", "MYCODE".to_owned())
    );
    let error = ServerError::parse(b"READONLY no script: on @user_script:1.");
    assert_eq!(error.to_string(), "READONLY no (in a script)");
}
