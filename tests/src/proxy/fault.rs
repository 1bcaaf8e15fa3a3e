//! Faults of a connection.

use std::collections::HashSet;
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// The fault of one direction.
///
/// Counts (`after`, `at`, `nth`) begin when the fault is set, or with the connection if that is
/// younger. Set those that count replies while no reply is under way.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Fault {
    /// Everything passes.
    #[default]
    None,
    /// Bytes are passed on this much later.
    Delay(Duration),
    /// A few bytes at a time, with a pause after each piece.
    Trickle {
        /// Bytes in a piece, at least one.
        bytes: usize,
        /// The pause after it.
        pause: Duration,
    },
    /// Nothing is read: the sender's buffers fill up and it feels back-pressure. Nothing is lost.
    Stall,
    /// Everything is read and thrown away, the end of the stream too. On the way to the client:
    /// requests are executed and their replies lost.
    Blackhole,
    /// Inverts the bits of one byte, once: the one after `at` others.
    Corrupt {
        /// Number of bytes that pass unharmed before.
        at: u64,
    },
    /// Ends the connection after exactly this many bytes, once. With `after` 0 it happens when the
    /// first byte arrives, and that byte does not pass.
    Cut {
        /// Number of bytes that pass before.
        after: u64,
        /// The kind of the end.
        how: Cut,
    },
    /// Swallows the `nth` reply (1 is the next) and ends the connection, once: the request was
    /// executed, and its sender does not learn it. Pushes are not counted. To the client only.
    LoseReply {
        /// The number of the reply.
        nth: u64,
        /// The kind of the connection's end.
        how: Cut,
    },
    /// Swallows published messages and nothing else: a missed wake-up. To the client only.
    DropMessages,
    /// Delivers every published message twice. To the client only.
    RepeatMessages,
}

/// The end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// RST to the client. The server's side is closed in the ordinary way, so that requests that
    /// had passed are executed.
    Rst,
    /// An orderly end of stream to both.
    Fin,
    /// An end of stream in this direction only; the other one goes on. What is still sent this way
    /// is thrown away.
    HalfClose,
    /// Nothing passes any more, in either direction, without any notice.
    Silence,
}

/// The treatment of new connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accept {
    /// They are accepted and connected to the server.
    Forward,
    /// Nothing listens: ECONNREFUSED.
    Refuse,
    /// They are accepted, and nothing is ever read or sent.
    Silence,
}

/// A direction's fault, with a number that tells whether it is still the one a connection began to
/// count for.
#[derive(Debug, Clone, Default)]
pub(super) struct Plan {
    pub(super) fault: Fault,
    pub(super) generation: u64,
    /// Peers whose connections pass nothing.
    pub(super) severed: HashSet<IpAddr>,
    /// The numbers of the connections that are held up.
    pub(super) held: Range<u64>,
    /// Whether each of those passes one frame after all, and then nothing.
    pub(super) one_passes: bool,
    /// Ports that frames name, and those that they are to name. In effect while there is no fault.
    pub(super) renamed: Arc<[(u16, u16)]>,
}

impl Plan {
    pub(super) fn replace(&mut self, fault: Fault) {
        self.fault = fault;
        self.generation += 1;
    }
}
