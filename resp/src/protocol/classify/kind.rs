//! The classes of server errors, and what each of them says about the command.
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]

/// The classes of server errors.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ServerErrorKind {
    /// The script behind a SHA1 is not known here (any more): send it with its text.
    NoScript,
    /// The slot lives at another node, for good.
    Moved {
        /// The slot.
        slot: u16,
        /// Name or address, IPv6 without brackets; `None` means the host that answered, `?` that the node does not know.
        host: Option<String>,
        /// Port.
        port: u16,
    },
    /// The slot is migrating, and this one command is to be tried at its future node, behind an `ASKING`.
    Ask {
        /// The slot.
        slot: u16,
        /// As in [`Moved`](Self::Moved).
        host: Option<String>,
        /// Port.
        port: u16,
    },
    /// The slot is migrating and the keys are not all on one side yet.
    TryAgain,
    /// The keys belong to several slots.
    CrossSlot,
    /// The cluster, or the slot, has no master right now.
    ClusterDown,
    /// The node has restarted and reads its data; what was not persistent is gone.
    Loading,
    /// A script, of any client, has been running for too long.
    Busy,
    /// The node is a replica.
    ReadOnly,
    /// The node is a replica without a master, told not to serve old data.
    MasterDown,
    /// `maxmemory` is reached; scripts that only delete still work.
    Oom,
    /// The node cannot persist and is told to refuse writes then.
    MisConf,
    /// Fewer replicas than `min-replicas-to-write`.
    NoReplicas,
    /// No or not enough authentication.
    NoAuth,
    /// Wrong user or password, or a disabled user.
    WrongPass,
    /// The user may not do this.
    NoPerm,
    /// A key holds another type.
    WrongType,
    /// A script failed, with a code of its own or without.
    Script,
    /// A script that had not written yet was ended by `SCRIPT KILL`.
    ScriptKilled,
    /// A script touched a key of a slot that this node does not serve.
    NonLocalKey,
    /// A blocking command was ended from outside, mostly because the node became a replica; the connection ends too.
    Unblocked,
    /// The node has too many clients. Sent before any command; the connection ends.
    MaxClients,
    /// The node is in protected mode. Sent before any command; the connection ends.
    Denied,
    /// The server does not speak this version of the protocol.
    NoProto,
    /// The server could not read what was sent; the connection ends.
    Protocol,
    /// A transaction was discarded because one of its commands was refused.
    ExecAbort,
    /// The server does not have this command or subcommand.
    UnknownCommand,
    /// This sentinel does not watch a master of that name.
    NoSuchMaster,
    /// The sentinel has no replica that it could promote.
    NoGoodReplica,
    /// A failover is under way already.
    FailoverInProgress,
    /// The end of a subscription, from a connection that has none. Only Valkey 8.0 minds.
    NotSubscribed,
    /// `WAIT` on a replica: the node lost its role, and the writes before are not confirmed.
    WaitMisuse,
    /// Anything else; see the code and the message.
    Other,
}

impl ServerErrorKind {
    /// The class of a line that was taken apart.
    pub(super) fn of(code: &str, message: &str, in_script: bool) -> Self {
        match code {
            "ERR" => Self::of_phrase(message, in_script),
            "NOSCRIPT" => Self::NoScript,
            "MOVED" => redirect(message, |slot, host, port| Self::Moved { slot, host, port }),
            "ASK" => redirect(message, |slot, host, port| Self::Ask { slot, host, port }),
            "TRYAGAIN" => Self::TryAgain,
            "CROSSSLOT" => Self::CrossSlot,
            "CLUSTERDOWN" => Self::ClusterDown,
            "LOADING" => Self::Loading,
            "BUSY" => Self::Busy,
            "READONLY" => Self::ReadOnly,
            "MASTERDOWN" => Self::MasterDown,
            "OOM" => Self::Oom,
            "MISCONF" => Self::MisConf,
            "NOREPLICAS" => Self::NoReplicas,
            "NOAUTH" => Self::NoAuth,
            "WRONGPASS" => Self::WrongPass,
            "NOPERM" => Self::NoPerm,
            "WRONGTYPE" => Self::WrongType,
            "UNBLOCKED" => Self::Unblocked,
            "DENIED" => Self::Denied,
            "NOPROTO" => Self::NoProto,
            "EXECABORT" => Self::ExecAbort,
            "NOGOODSLAVE" => Self::NoGoodReplica,
            "INPROG" => Self::FailoverInProgress,
            "NOSUB" => Self::NotSubscribed,
            _ if in_script => Self::Script,
            _ => Self::Other,
        }
    }

    /// The class of an `ERR`, by the phrases that mean something else than "failed".
    fn of_phrase(message: &str, in_script: bool) -> Self {
        let begins = |phrase: &str| message.starts_with(phrase);
        let has = |phrase: &str| message.contains(phrase);
        if begins("Protocol error: unauthenticated") {
            // A large request before AUTH: the size is refused, but the cause is the missing password.
            Self::NoAuth
        } else if begins("Protocol error") {
            Self::Protocol
        } else if begins("max number of clients") {
            Self::MaxClients
        } else if begins("WAIT cannot be used with replica instances") {
            Self::WaitMisuse
        } else if begins("No such master with that name") {
            Self::NoSuchMaster
        } else if !in_script
            && (begins("unknown command")
                || begins("unknown subcommand")
                || begins("Unknown subcommand"))
        {
            Self::UnknownCommand
        } else if has("while the cluster is down and readonly") {
            Self::ClusterDown
        } else if begins("ACL failure in script") || begins("The user executing the script can't") {
            Self::NoPerm
        } else if begins("Script killed by user with") {
            Self::ScriptKilled
        } else if has("ttempted to access a non local key")
            || has("attempted to access a slot not served")
        {
            Self::NonLocalKey
        } else if has("attempted to access keys that do not hash to the same slot") {
            Self::CrossSlot
        } else if in_script || begins("Error compiling script") {
            Self::Script
        } else {
            Self::Other
        }
    }

    /// See [`ServerError::may_have_executed`](super::ServerError::may_have_executed).
    pub(super) const fn may_have_executed(&self, in_script: bool) -> bool {
        match self {
            // Asked at a script's first write only: one that has written is never stopped half way by these.
            Self::ClusterDown
            | Self::ReadOnly
            | Self::MasterDown
            | Self::Oom
            | Self::MisConf
            | Self::NoReplicas
            // One that has written cannot be killed.
            | Self::ScriptKilled => false,
            // Refused before anything ran, unless a script had begun.
            Self::NoScript
            | Self::Moved { .. }
            | Self::Ask { .. }
            | Self::TryAgain
            | Self::CrossSlot
            | Self::Loading
            | Self::Busy
            | Self::NoAuth
            | Self::WrongPass
            | Self::NoPerm
            | Self::MaxClients
            | Self::Denied
            | Self::NoProto
            | Self::Protocol
            | Self::ExecAbort
            | Self::UnknownCommand
            | Self::NoSuchMaster
            | Self::NoGoodReplica
            | Self::FailoverInProgress
            | Self::NotSubscribed
            // A script that does not compile ran as little, which is why this asks as well.
            | Self::Script => in_script,
            // A script may have written before it met the wrong type, and return the error without a trace of itself.
            Self::WrongType | Self::NonLocalKey | Self::Unblocked | Self::Other => true,
            // The write that was to be confirmed was made, on a node that is now a replica.
            Self::WaitMisuse => true,
        }
    }

    /// See [`ServerError::is_transient`](super::ServerError::is_transient).
    pub(super) const fn is_transient(&self) -> bool {
        match self {
            // End by themselves: a migration, an election, a restart, a long script, a replica that reconnects.
            Self::TryAgain
            | Self::ClusterDown
            | Self::Loading
            | Self::Busy
            | Self::MasterDown
            | Self::NoReplicas
            | Self::ScriptKilled
            | Self::MaxClients
            | Self::FailoverInProgress
            | Self::NoGoodReplica => true,
            // Want another node (which is the router's to know), another client, or an operator. Memory and disks may
            // recover, but not within a command's deadline, and trying again makes neither any better.
            Self::NoScript
            | Self::Moved { .. }
            | Self::Ask { .. }
            | Self::CrossSlot
            | Self::ReadOnly
            | Self::Oom
            | Self::MisConf
            | Self::NoAuth
            | Self::WrongPass
            | Self::NoPerm
            | Self::WrongType
            | Self::Script
            | Self::NonLocalKey
            | Self::Unblocked
            | Self::Denied
            | Self::NoProto
            | Self::Protocol
            | Self::ExecAbort
            | Self::UnknownCommand
            | Self::NoSuchMaster
            | Self::NotSubscribed
            | Self::WaitMisuse
            | Self::Other => false,
        }
    }
}

/// `<slot> <host>:<port>`, whose host may be empty, a name, `?` or an IPv6 address without brackets: the port is behind
/// the last colon. Something else is no redirect that anybody could follow.
fn redirect(
    message: &str,
    kind: impl FnOnce(u16, Option<String>, u16) -> ServerErrorKind,
) -> ServerErrorKind {
    let parts = || {
        let (slot, rest) = message.split_once(' ')?;
        let slot = slot.parse().ok().filter(|slot| *slot < 16384)?;
        let (host, port) = rest.split(' ').next()?.rsplit_once(':')?;
        // A node without a name may have no port either.
        let port = port.parse().ok().filter(|port| *port != 0 || host == "?")?;
        let host = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
            .unwrap_or(host);
        Some((slot, (!host.is_empty()).then(|| host.to_owned()), port))
    };
    match parts() {
        Some((slot, host, port)) => kind(slot, host, port),
        None => ServerErrorKind::Other,
    }
}
