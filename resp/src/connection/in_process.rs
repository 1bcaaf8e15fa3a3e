//! Streams to a server in the same process, instead of sockets.

use std::fmt;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};

/// Both directions of a stream.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> ByteStream for T {}

/// Opens streams to a server in this process. Clones open streams to the same one.
#[derive(Clone)]
pub struct Dialer(Arc<dyn Fn() -> Box<dyn ByteStream> + Send + Sync>);

impl Dialer {
    /// A dialer that opens a stream by calling `open`.
    pub fn new<S: ByteStream>(open: impl Fn() -> S + Send + Sync + 'static) -> Self {
        Self(Arc::new(move || Box::new(open())))
    }

    pub(crate) fn dial(&self) -> Box<dyn ByteStream> {
        (self.0)()
    }
}

impl PartialEq for Dialer {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Dialer {}

impl fmt::Debug for Dialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Dialer")
    }
}
