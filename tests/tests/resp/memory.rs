//! How much memory a peer can make a connection take, and that it is given back.

use std::time::Duration;

use allocation_counter::measure;
use bytes::BytesMut;
use leasehold_resp::{
    Command, Connection, Decoder, Endpoint, Frame, Limits, ProtocolErrorKind, Value,
};
use leasehold_testkit::own_process::in_own_process;
use leasehold_testkit::scripted::{Peer, Scripted};

/// Elements that a hostile peer sends in one reply.
const MANY: usize = 10_000_000;

/// The smallest elements.
const SMALL: [&[u8]; 7] = [
    b"_\r\n",
    b":1\r\n",
    b"#t\r\n",
    b"*0\r\n",
    b"$1\r\nx\r\n",
    b"*1\r\n_\r\n",
    b"%1\r\n_\r\n_\r\n",
];

/// Feeds `header` and then `body` over and over, in pieces as they come from a socket, until a
/// frame is whole or refused; how many bytes were read.
fn feed(decoder: &mut Decoder, header: &str, body: &[u8], times: usize) -> (usize, Option<Frame>) {
    let piece = body.repeat((16 << 10) / body.len());
    let mut left = times * body.len();
    let mut buf = BytesMut::from(header);
    let mut read = header.len();
    loop {
        match decoder.decode(&mut buf) {
            Ok(Some(frame)) => return (read, Some(frame)),
            Ok(None) if left > 0 => {
                let n = piece.len().min(left);
                buf.extend_from_slice(&piece[..n]);
                (left, read) = (left - n, read + n);
            }
            Ok(None) => panic!("neither whole nor refused"),
            Err(error) => {
                assert_eq!(error.kind(), ProtocolErrorKind::TooMuchMemory);
                return (read, None);
            }
        }
    }
}

#[test]
fn ten_million_small_elements_cost_less_than_four_times_their_bytes() {
    for body in SMALL {
        let header = format!("*{MANY}\r\n");
        for limits in [Limits::HANDSHAKE, Limits::CONNECTION, Limits::default()] {
            let limits = Limits {
                elements: u64::MAX,
                ..limits
            };
            let mut read = None;
            let taken = measure(|| {
                let mut decoder = Decoder::new(limits);
                read = Some(feed(&mut decoder, &header, body, MANY));
            });
            let (read, frame) = read.unwrap();
            assert!(frame.is_none(), "{limits:?}");
            let shown = body.escape_ascii();
            let sent = (MANY * body.len()) as u64;
            let peak = taken.bytes_max;
            assert!(peak <= 4 * sent, "{shown}: {peak} bytes for {sent}");
            // And never more than the limit, with the frame in its buffer.
            let most = (limits.memory + 2 * read) as u64;
            assert!(peak <= most, "{shown}: {peak} bytes of {most}");
            assert_eq!(taken.bytes_current, 0, "{shown}");
        }
    }
}

/// A large reply that is allowed leaves nothing behind in the decoder.
#[test]
fn what_a_large_reply_took_is_given_back() {
    let mut decoder = Decoder::new(Limits::CONNECTION);
    let kept = measure(|| {
        let (_, frame) = feed(&mut decoder, "*300000\r\n", b":1\r\n", 300_000);
        assert!(
            matches!(frame, Some(Frame::Reply(Value::Array(elements))) if elements.len() == 300_000)
        );
        decoder.shrink();
    });
    assert!(kept.bytes_max < 32 << 20, "{}", kept.bytes_max);
    assert!(kept.bytes_current < 4 << 10, "{}", kept.bytes_current);
}

/// Attributes describe values that come later; a stream of them inside of an array must not pile
/// up.
#[test]
fn attributes_and_pushes_inside_of_an_array_do_not_keep_their_bytes() {
    let attribute = b"|1\r\n+key\r\n$100\r\n"
        .iter()
        .chain(&[b'x'; 100])
        .chain(b"\r\n");
    let attribute: Vec<u8> = attribute.copied().collect();
    let push = b">2\r\n+message\r\n$5\r\nhello\r\n".to_vec();
    for noise in [
        attribute.clone(),
        push,
        [&attribute[..], b"$1\r\ny\r\n"].concat(),
    ] {
        let elements = if noise.ends_with(b"y\r\n") { 2000 } else { 0 };
        let mut decoder = Decoder::new(Limits::CONNECTION);
        let mut frame = None;
        let taken = measure(|| {
            let mut buf = BytesMut::from(&format!("*{}\r\n$4\r\nhead\r\n", elements + 2)[..]);
            for _ in 0..2000 {
                buf.extend_from_slice(&noise);
                while let Some(Frame::Push(_)) = decoder.decode(&mut buf).unwrap() {}
            }
            buf.extend_from_slice(b"$4\r\ntail\r\n");
            frame = decoder.decode(&mut buf).unwrap();
        });
        let Some(Frame::Reply(Value::Array(values))) = frame else {
            panic!("a whole array")
        };
        assert_eq!(values[0].as_str(), Some("head"));
        assert_eq!(values.last().unwrap().as_str(), Some("tail"));
        assert!(
            values[1..=elements]
                .iter()
                .all(|value| value.as_str() == Some("y"))
        );
        // Sent: 240 KB of noise. Kept: some KB, and 90 bytes or so for each element.
        assert!(
            taken.bytes_max < (64 << 10) + elements as u64 * 130,
            "{}",
            taken.bytes_max
        );
    }
}

/// The same over a socket, and before and after the handshake. Runs in a process of its own, whose
/// memory it measures.
#[test]
fn a_peer_that_sends_ten_million_elements_costs_little_and_nothing_stays() {
    in_own_process(async {
        for polite in [false, true] {
            let server = Scripted::start(move |mut peer| async move {
                if peer.number > 0 {
                    return peer.behave().await;
                }
                if polite {
                    peer.greet().await;
                } else {
                    peer.request().await;
                }
                flood(&mut peer).await;
                peer.silence().await;
            })
            .await;
            let mut endpoint = Endpoint::parse(&server.url()).unwrap();
            endpoint.connect_timeout = Duration::from_secs(20);
            let before = memory("VmRSS:");
            let error = match Connection::connect(endpoint).await {
                Err(error) => error,
                Ok(connection) => {
                    let flooded = connection.send(&Command::new("PING")).await.unwrap_err();
                    let well = connection.send(&Command::new("ECHO").arg("well")).await;
                    assert_eq!(well.unwrap().as_str(), Some("well"));
                    let kept = memory("VmRSS:").saturating_sub(before);
                    assert!(kept < 24 << 20, "{kept} bytes stay");
                    flooded
                }
            };
            assert!(error.to_string().contains("limit"), "{error}");
            let most = if polite { 80 } else { 8 };
            let grown = memory("VmHWM:").saturating_sub(before);
            assert!(grown < most << 20, "{grown} bytes, polite: {polite}");
        }
    });
}

async fn flood(peer: &mut Peer) {
    peer.say(format!("*{MANY}\r\n")).await;
    let piece = b":1\r\n".repeat(4 << 10);
    for _ in 0..MANY / (4 << 10) {
        peer.say(&piece).await;
    }
}

/// A field of this process' status, in bytes.
fn memory(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib << 10
}
