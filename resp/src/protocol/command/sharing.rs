//! The commands that a shared connection refuses. Pure.

/// The rule that forbids a command on a connection that others share: its name, with the subcommand or option if that
/// alone is the reason. `None` for a command that may be sent.
///
/// Names are compared without regard to case, as servers do. Every command passes through here, so the length and the
/// first byte are compared first: `EVALSHA` costs three comparisons of one byte.
pub(super) fn forbids<'a>(
    name: &[u8],
    args: impl Fn(&[u8]) -> bool,
    subcommand: impl Fn() -> &'a [u8],
) -> Option<&'static str> {
    let first = name.first()?.to_ascii_uppercase();
    let rule = rules(name.len())
        .iter()
        .find(|rule| rule.as_bytes()[0] == first && rule.as_bytes().eq_ignore_ascii_case(name))?;
    match *rule {
        "CLIENT" => find(&CLIENT, subcommand()),
        "SCRIPT" => find(&["SCRIPT DEBUG"], subcommand()),
        "XREAD" => args(b"BLOCK").then_some("XREAD BLOCK"),
        "XREADGROUP" => args(b"BLOCK").then_some("XREADGROUP BLOCK"),
        rule => Some(rule),
    }
}

/// The names of that many bytes: commands that answer otherwise than with one reply, keep state in the connection, or
/// block it. `CLIENT`, `SCRIPT`, `XREAD` and `XREADGROUP` do so in some forms only.
const fn rules(length: usize) -> &'static [&'static str] {
    match length {
        4 => &["AUTH", "EXEC", "QUIT", "SYNC", "WAIT"],
        5 => &[
            "BLPOP", "BRPOP", "HELLO", "MULTI", "PSYNC", "RESET", "WATCH", "XREAD",
        ],
        6 => &[
            "ASKING", "BLMOVE", "BLMPOP", "BZMPOP", "CLIENT", "SCRIPT", "SELECT",
        ],
        7 => &["DISCARD", "MONITOR", "WAITAOF"],
        // Some forms of `REPLCONF` have no reply at all.
        8 => &["BZPOPMAX", "BZPOPMIN", "READONLY", "REPLCONF"],
        9 => &["READWRITE", "SUBSCRIBE"],
        10 => &["BRPOPLPUSH", "PSUBSCRIBE", "SSUBSCRIBE", "XREADGROUP"],
        11 => &["UNSUBSCRIBE"],
        12 => &["PUNSUBSCRIBE", "SUNSUBSCRIBE"],
        _ => &[],
    }
}

/// Subcommands that switch a mode of the connection. `REPLY OFF` leaves every later caller without an answer.
const CLIENT: [&str; 7] = [
    "CLIENT CACHING",
    "CLIENT CAPA",
    "CLIENT IMPORT-SOURCE",
    "CLIENT NO-EVICT",
    "CLIENT NO-TOUCH",
    "CLIENT REPLY",
    "CLIENT TRACKING",
];

fn find(rules: &[&'static str], subcommand: &[u8]) -> Option<&'static str> {
    let is_meant = |rule: &&str| {
        rule.split_once(' ')
            .is_some_and(|(_, word)| word.as_bytes().eq_ignore_ascii_case(subcommand))
    };
    rules.iter().copied().find(|rule| is_meant(rule))
}
