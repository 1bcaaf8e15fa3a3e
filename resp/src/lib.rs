//! Bytes to values and back, one pipelined connection, and a pool of them.
//!
//! The client under `leasehold`, written by hand: [`decode`] and [`encode`] are the RESP2/RESP3 codec, [`pipeline`]
//! is the protocol of one connection as a pure state machine, [`connection`] moves its bytes over a socket.
//!
//! Everything that reads bytes from outside is free of panics by lint and by fuzzing: a hostile peer can cause an
//! error and a closed connection, never more.

pub mod classify;
pub mod codec;
pub mod command;
pub mod connection;
pub mod decode;
mod driver;
pub mod encode;
pub mod endpoint;
pub mod error;
mod handshake;
pub mod pipeline;
pub mod pool;
pub mod push;
pub mod reply;
mod silence;
mod socket;
#[cfg(feature = "tls")]
pub mod tls;
pub mod value;

pub use classify::{ServerError, ServerErrorKind};
pub use codec::Codec;
pub use command::{Asking, Command, Encode};
pub use connection::Connection;
pub use decode::{Decoder, Frame, Limits, ProtocolError, ProtocolErrorKind};
pub use endpoint::{Address, Endpoint};
pub use error::{Error, ErrorKind};
pub use reply::Reply;
pub use value::Value;
