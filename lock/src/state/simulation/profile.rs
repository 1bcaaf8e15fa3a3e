//! The faults of one run, and the parts that are broken in it on purpose.

use super::random::Random;

/// The faults of one run. Without a unit: in per mille.
#[derive(Clone, Debug, Default)]
pub(super) struct Profile {
    pub(super) processes: usize,
    /// Tasks a process that want the lock.
    pub(super) waiters: usize,
    /// How long things go wrong.
    pub(super) faults_ms: u64,
    /// Tasks want the lock again at once.
    pub(super) eager: bool,

    pub(super) push_lost: u64,
    pub(super) push_doubled: u64,
    pub(super) push_late: u64,
    pub(super) request_lost: u64,
    pub(super) reply_lost: u64,
    pub(super) slow: u64,
    pub(super) timeout_ms: u64,

    pub(super) crash: u64,
    pub(super) stop: u64,
    pub(super) disconnect: u64,
    /// The server notices late that a connection is gone.
    pub(super) half_open: bool,
    /// The server may end connections for others.
    pub(super) kills: bool,
    /// Requests of connections that are gone run up to 2.5 s later.
    pub(super) late_runs: bool,
    pub(super) failover: u64,
    pub(super) replicated: bool,
    pub(super) untrusted: u64,
    pub(super) server_steps: u64,
    pub(super) wall_steps: u64,
    pub(super) rates: bool,
    pub(super) migration: u64,
    /// Users without rights to the line.
    pub(super) without_line: u64,
    pub(super) forced: u64,
    pub(super) shutdown: u64,
    /// The user's runtime stands still, and the keeper works.
    pub(super) block: u64,
    /// The line, or all data, are gone.
    pub(super) data_loss: u64,

    pub(super) cancel: u64,
    /// `try_lock` and `try_lock_for`.
    pub(super) tries: u64,
    /// Holds of microseconds.
    pub(super) brief: bool,
    pub(super) long_holds: u64,
    pub(super) fixed: u64,
    pub(super) max_hold: u64,
    /// Leases from here up.
    pub(super) shortest_ms: u64,
    pub(super) longest_ms: u64,

    pub(super) redisson: bool,
    /// Whether the count of receivers of a message says nothing.
    pub(super) uncounted: bool,
}

/// A rule that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Broken {
    /// A grant counts from its receipt.
    DeadlineFromReceipt,
    /// A token does not have the time as its floor.
    NoTimeFloor,
    /// A release ends whatever hold is there.
    ReleaseByAnybody,
    /// A confirmation brings a hold back that is gone.
    ConfirmCreates,
    /// A ticket that is in line does not look.
    NoBackstop,
    /// A confirmed lease counts from the answer.
    DeadlineFromConfirmReceipt,
    /// A confirmed hold has the token of the message.
    TokenOfMessage,
    /// The rate of clocks is bounded on the wrong side.
    RateWrongWay,
    /// A lock that replicas are to confirm begins with the message.
    ReplicatedUnconfirmed,
    /// A look that finds the lock free takes it.
    LookJumps,
    /// A grant of a ticket that is not known any more is not handed on.
    UnknownNotHandedOn,
    /// The release of a hold that was asked for twice does not name its ticket.
    LeanRepetition,
    /// A ticket that went missing comes back at the end.
    BackAtTheEnd,
    /// Nothing looks after a reconnect.
    NoLookAfterReconnect,
}

impl Profile {
    /// Nothing goes wrong, and all want the lock all the time.
    pub(super) fn calm(processes: usize, waiters: usize) -> Self {
        Self {
            processes,
            waiters,
            faults_ms: 10_000,
            eager: true,
            timeout_ms: 1_000,
            kills: true,
            shortest_ms: 3_000,
            longest_ms: 3_000,
            ..Self::default()
        }
    }

    /// Those of a seed that show best what this rule is for.
    pub(super) fn draw_for(random: &Random, broken: Broken) -> Self {
        let drawn = Self::draw(random);
        match broken {
            // A message that is so late that the ticket was granted again.
            Broken::TokenOfMessage => Self {
                processes: 3,
                eager: true,
                push_late: 500,
                replicated: true,
                redisson: false,
                ..drawn
            },
            Broken::ReplicatedUnconfirmed => Self {
                eager: true,
                failover: 100,
                replicated: true,
                long_holds: 200,
                server_steps: 0,
                redisson: false,
                ..drawn
            },
            Broken::ConfirmCreates => Self {
                eager: true,
                push_late: 300,
                stop: 150,
                ..drawn
            },
            _ => drawn,
        }
    }

    /// Whether all take their turns in line.
    pub(super) const fn is_ordered(&self) -> bool {
        !self.redisson && self.migration == 0 && self.without_line == 0
    }

    /// The faults of a seed.
    pub(super) fn draw(random: &Random) -> Self {
        let on = |share: u64, most: u64| {
            let n = random.below(most);
            if random.chance(share) { n } else { 0 }
        };
        let flag = |share: u64| random.chance(share);
        let (push, net, conn) = (flag(500), flag(500), flag(500));
        let of = |group: bool, most: u64| if group { random.below(most) } else { 0 };
        let replicated = flag(250);
        let failover = on(300, 100);
        let migration = on(150, 150);
        // A clock that is set back beside a counter that is lost or cannot be used gives old tokens.
        let data_loss = if replicated { 0 } else { on(150, 60) };
        let has_counter = failover == 0 && migration == 0 && data_loss == 0;
        let shortest_ms = if flag(250) {
            random.between(300, 1_200)
        } else {
            random.between(1_500, 3_000)
        };
        Self {
            processes: random.between(2, 4) as usize + if flag(50) { 5 } else { 0 },
            waiters: random.between(1, 4) as usize,
            faults_ms: random.between(3_000, 8_000),
            eager: flag(500),
            push_lost: of(push, 300),
            push_doubled: of(push, 300),
            push_late: of(push, 300),
            request_lost: of(net, 60),
            reply_lost: of(net, 60),
            slow: of(net, 150),
            timeout_ms: random.between(300, 1_500),
            crash: on(500, 30),
            stop: on(500, 150),
            disconnect: of(conn, 300),
            half_open: conn && flag(500),
            kills: !flag(250),
            late_runs: flag(500),
            failover,
            replicated,
            untrusted: if replicated { on(300, 60) } else { 0 },
            server_steps: if has_counter { on(150, 60) } else { 0 },
            wall_steps: on(200, 60),
            rates: flag(500),
            migration,
            without_line: on(100, 500),
            forced: on(100, 50),
            shutdown: on(200, 30),
            block: on(300, 150),
            data_loss,
            cancel: on(500, 700),
            tries: on(500, 600),
            brief: false,
            long_holds: on(500, 200),
            fixed: on(300, 600),
            max_hold: on(300, 600),
            shortest_ms,
            longest_ms: shortest_ms + random.between(0, 1_500),
            redisson: flag(200),
            uncounted: flag(100),
        }
    }
}
