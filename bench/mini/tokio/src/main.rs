//! The least that talks to a server.

use std::io::Result;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

fn main() -> Result<()> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(async {
            let mut stream = TcpStream::connect("127.0.0.1:6379").await?;
            stream.write_all(b"PING\r\n").await?;
            let mut reply = [0; 64];
            let n = stream.read(&mut reply).await?;
            println!("{}", String::from_utf8_lossy(&reply[..n]));
            Ok(())
        })
}
