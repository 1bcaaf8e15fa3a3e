//! A connection to a server in memory.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::BytesMut;
use leasehold_resp::{Decoder, Frame, Limits, Value};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::Server;
use crate::engine::sync::lock;

/// A connection. What is written is executed before the write returns.
pub(in crate::testing) struct Session {
    server: Arc<Server>,
    id: u64,
    decoder: Decoder,
    /// The beginning of a command, the rest of which was not written yet.
    received: BytesMut,
}

impl Session {
    pub(super) fn new(server: Arc<Server>, id: u64) -> Self {
        lock(&server.data).messages.open(id);
        Self {
            server,
            id,
            decoder: Decoder::new(Limits::CONNECTION),
            received: BytesMut::new(),
        }
    }

    /// Executes all commands that have been written completely, if the server runs.
    fn execute(&mut self) -> io::Result<()> {
        {
            let mut data = lock(&self.server.data);
            if data.messages.inbox(self.id).is_none() {
                return Err(io::ErrorKind::ConnectionReset.into());
            }
            if data.messages.is_stopped() {
                return Ok(());
            }
        }
        while !self.received.is_empty() {
            let frame = self.decoder.decode(&mut self.received);
            let Some(frame) = frame.map_err(|error| io::Error::other(error.to_string()))? else {
                break;
            };
            let Frame::Reply(Value::Array(args)) = frame else {
                return Err(io::Error::other("a command is an array"));
            };
            let args: Vec<_> = args
                .iter()
                .filter_map(Value::as_bytes)
                .map(<[u8]>::to_vec)
                .collect();
            let replies = self.server.run(self.id, &args);
            let mut data = lock(&self.server.data);
            for reply in &replies {
                data.messages.send(self.id, reply);
            }
        }
        Ok(())
    }
}

impl AsyncWrite for Session {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.received.extend_from_slice(bytes);
        let executed = self.execute();
        self.server.wake();
        Poll::Ready(executed.map(|()| bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for Session {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.received.is_empty() {
            // Written while the server was stopped.
            self.execute()?;
            self.server.wake();
        }
        let mut data = lock(&self.server.data);
        let Some(inbox) = data.messages.inbox(self.id) else {
            return Poll::Ready(Ok(()));
        };
        if inbox.bytes.is_empty() {
            inbox.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let n = inbox.bytes.len().min(buffer.remaining());
        buffer.put_slice(&inbox.bytes[..n]);
        inbox.bytes.drain(..n);
        Poll::Ready(Ok(()))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        lock(&self.server.data).messages.close(self.id);
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}
