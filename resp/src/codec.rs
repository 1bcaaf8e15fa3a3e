//! The codec in the shape that `tokio_util::codec::Framed` wants.
//!
//! The connection does not use it: it reads larger blocks than `Framed` does and shares its output buffer with its
//! callers. This is for frames over other streams.

use std::fmt;
use std::io;

use bytes::BytesMut;
use tokio_util::codec;

use crate::protocol::command::{Command, Encode};
use crate::protocol::decode::{Decoder, Frame, Limits};
use crate::protocol::encode;
use crate::protocol::value::Value;

/// Frames in, and requests or values out.
///
/// ```
/// use bytes::BytesMut;
/// use leasehold_resp::{Codec, Command, Frame, Limits, Value};
/// use tokio_util::codec::{Decoder, Encoder};
///
/// let mut codec = Codec::new(Limits::default());
/// let mut bytes = BytesMut::new();
/// codec.encode(Command::new("GET").arg("key"), &mut bytes)?;
/// assert_eq!(&bytes[..], b"*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n");
///
/// let mut bytes = BytesMut::from("+OK\r\n");
/// assert_eq!(codec.decode(&mut bytes)?, Some(Frame::Reply(Value::Simple("OK".into()))));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Default)]
pub struct Codec {
    decoder: Decoder,
    /// The last encoded request; kept for its capacity.
    scratch: Vec<u8>,
}

impl Codec {
    /// A codec at the start of a stream.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            decoder: Decoder::new(limits),
            scratch: Vec::new(),
        }
    }

    fn write(&mut self, out: &mut BytesMut, write: impl FnOnce(&mut Vec<u8>)) {
        self.scratch.clear();
        write(&mut self.scratch);
        out.extend_from_slice(&self.scratch);
    }
}

/// Protocol errors are of the kind `InvalidData`, with the [`ProtocolError`](crate::ProtocolError) inside.
impl codec::Decoder for Decoder {
    type Item = Frame;
    type Error = io::Error;

    fn decode(&mut self, src: &mut BytesMut) -> io::Result<Option<Frame>> {
        let frame = Self::decode(self, src)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        if frame.is_none() {
            src.reserve(self.wanted());
        }
        Ok(frame)
    }
}

impl codec::Decoder for Codec {
    type Item = Frame;
    type Error = io::Error;

    fn decode(&mut self, src: &mut BytesMut) -> io::Result<Option<Frame>> {
        codec::Decoder::decode(&mut self.decoder, src)
    }
}

impl<E: Encode + ?Sized> codec::Encoder<&E> for Codec {
    type Error = io::Error;

    fn encode(&mut self, command: &E, dst: &mut BytesMut) -> io::Result<()> {
        self.write(dst, |out| command.encode(out));
        Ok(())
    }
}

impl codec::Encoder<Command> for Codec {
    type Error = io::Error;

    fn encode(&mut self, command: Command, dst: &mut BytesMut) -> io::Result<()> {
        codec::Encoder::encode(self, &command, dst)
    }
}

/// For the server's side: a reply.
impl codec::Encoder<Value> for Codec {
    type Error = io::Error;

    fn encode(&mut self, value: Value, dst: &mut BytesMut) -> io::Result<()> {
        self.write(dst, |out| encode::value(out, &value));
        Ok(())
    }
}

/// Never the bytes: requests carry passwords.
impl fmt::Debug for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Codec").finish_non_exhaustive()
    }
}
