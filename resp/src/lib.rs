//! The RESP client under `leasehold`: bytes to values and back, one pipelined connection, and a pool of connections.
//!
//! - [`protocol`] is pure: the RESP2/RESP3 codec, commands, pushes, and the classification of error replies.
//! - [`connection`] holds the pipeline of one connection, a state machine without I/O, and the task that moves its bytes
//!   over a socket; [`pool`] keeps the connections to one server.
//! - [`endpoint`] is where a server listens and how to authenticate there, from a URL or from fields.
//!
//! Everything that parses bytes from the network is free of panics by lint and by fuzzing: a hostile peer can cause an
//! error and a closed connection, never more.

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod codec;
pub mod connection;
pub mod endpoint;
pub mod error;
pub mod protocol;
#[doc(hidden)]
pub mod timer;
#[cfg(feature = "tls")]
pub mod tls;

pub use codec::Codec;
pub use connection::reply::Reply;
pub use connection::{Connection, pipeline, pool};
pub use endpoint::{Address, AskServer, Endpoint};
pub use error::{Error, ErrorKind};
pub use protocol::classify::{ServerError, ServerErrorKind};
pub use protocol::command::{Asking, Command, Encode};
pub use protocol::decode::{Decoder, Frame, Limits, ProtocolError, ProtocolErrorKind};
pub use protocol::greeting::ConnectionId;
pub use protocol::value::Value;
pub use protocol::{command, encode, push};
