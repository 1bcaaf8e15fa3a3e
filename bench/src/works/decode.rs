//! Decoding: throughput and allocations.

use std::hint::black_box;
use std::io::Result;

use bytes::BytesMut;

use crate::alloc;
use crate::floor::scan::Scan;
use crate::floor::tape::Tape;
use crate::harness::{Harness, Placement};
use crate::ours;
use crate::peers;
use crate::report::{Aim, Bound, Row, Section};
use crate::sample::{Figures, Request, cpu_seconds_per_step, figures};

const CANDIDATES: &[&str] = &[
    "floor-scan",
    "floor-tape",
    "leasehold-resp",
    "redis",
    "redis-protocol",
    "rustis",
];
const PEERS: &[&str] = &["redis", "redis-protocol", "rustis"];
const FLOOR: &str = "floor-tape";

/// Payload of one TCP segment.
const SEGMENT: usize = 1460;
/// Bytes decoded at once where nothing is cut: one write of a server.
const BLOCK: usize = 16 << 10;

/// The variants: name, column, whether it comes in segments.
const VARIANTS: &[(&str, &str, bool)] = &[
    ("small", "small MB/s", false),
    ("nested", "nested MB/s", false),
    ("array-20k", "20k array MB/s", true),
    ("array-100k", "100k array MB/s", true),
    ("scalars", "scalars MB/s", false),
];

/// Takes the samples.
pub fn run(harness: &Harness) -> Result<Section> {
    let mut by_variant = Vec::new();
    for (variant, _, _) in VARIANTS {
        // Quadratic: this one alone would take a minute a sample.
        let able = |candidate: &&&'static str| {
            !(**candidate == "redis-protocol" && *variant == "array-100k")
        };
        let candidates: Vec<&'static str> = CANDIDATES.iter().filter(able).copied().collect();
        by_variant.push(
            harness.interleave(harness.rounds(5), &candidates, |candidate| {
                let request = Request {
                    work: "decode".into(),
                    candidate: candidate.into(),
                    variant: (*variant).into(),
                    millis: harness.millis(400),
                    ..Request::default()
                };
                harness.sample(Placement::CrossCpu, &request)
            })?,
        );
    }
    let row = |candidate: &&str| {
        let speeds = by_variant
            .iter()
            .map(|samples| samples.median(candidate, "mb_s"));
        let allocations = [0, 1, 4]
            .iter()
            .map(|&i| by_variant[i].median(candidate, "allocs"));
        Row {
            candidate: (*candidate).into(),
            cells: speeds.chain(allocations).collect(),
        }
    };
    let aim = |variant: usize, what: &str, figure: &str, bound: Bound| Aim {
        what: what.into(),
        floor: by_variant[variant].median(FLOOR, figure),
        peer: bound.best(
            PEERS
                .iter()
                .map(|peer| by_variant[variant].median(peer, figure)),
        ),
        ours: by_variant[variant].median("leasehold-resp", figure),
        bound,
    };
    let columns = VARIANTS.iter().map(|(_, column, _)| *column);
    Ok(Section {
        title: "Decode",
        how:
            "Replies into values, the values dropped, by CPU time; a copy into the read buffer is included, as a socket would make \
              it. Small: `:1`, `+OK`, null and a 13-byte bulk in turn. Nested: 32 arrays of an integer and three \
              bulks. Arrays: 10-byte bulks, arriving in 1460-byte segments. Allocations are per reply. The floors make \
              no values; `rustis` is called through its benchmark shim, a reply at a time; `redis-protocol` is \
              quadratic on segments and left out of the large array."
                .into(),
        columns: columns.chain(["small allocs", "nested allocs", "scalar allocs"]).map(str::to_owned).collect(),
        rows: CANDIDATES.iter().map(row).collect(),
        aims: vec![
            aim(0, "decode small replies, MB/s", "mb_s", Bound::AtLeast(350.0)),
            aim(4, "allocations per scalar reply", "allocs", Bound::AtMost(0.0)),
            aim(1, "decode nested arrays, MB/s", "mb_s", Bound::AtLeast(350.0)),
            aim(2, "decode a 20 000-element array in segments, MB/s", "mb_s", Bound::AtLeast(500.0)),
            aim(3, "the same with 100 000 elements, MB/s", "mb_s", Bound::AtLeast(500.0)),
        ],
    })
}

/// Takes one sample.
pub fn sample(request: &Request) -> Figures {
    let frames = input(&request.variant);
    let replies = frames.len();
    let bytes: usize = frames.iter().map(Vec::len).sum();
    let segments = VARIANTS
        .iter()
        .any(|(variant, _, segments)| *variant == request.variant && *segments);
    let mut step = stepper(&request.candidate, frames, segments);
    let seconds = cpu_seconds_per_step(request.duration(), &mut step);
    alloc::start();
    step();
    let allocated = alloc::stop();
    figures([
        ("mb_s", bytes as f64 / seconds / 1e6),
        ("allocs", allocated.calls as f64 / replies as f64),
    ])
}

/// Something that decodes all `frames` once.
fn stepper(candidate: &str, frames: Vec<Vec<u8>>, segments: bool) -> Box<dyn FnMut()> {
    let expected = frames.len();
    if candidate == "rustis" {
        return Box::new(move || rustis(&frames, segments));
    }
    let stream = frames.concat();
    let chunk = if segments { SEGMENT } else { stream.len() };
    let mut decoder = decoder(candidate);
    Box::new(move || {
        let decoded: usize = stream.chunks(chunk).map(&mut decoder).sum();
        assert_eq!(decoded, expected);
    })
}

/// Decodes bytes as they come; returns the number of completed replies.
type Decode = Box<dyn FnMut(&[u8]) -> usize>;

/// The decoder of a candidate.
fn decoder(candidate: &str) -> Decode {
    match candidate {
        "floor-scan" => {
            let (mut buf, mut scan) = (Vec::new(), Scan::default());
            Box::new(move |bytes| {
                buf.extend_from_slice(bytes);
                let decoded = std::iter::from_fn(|| scan.frame(&buf)).count();
                if decoded > 0 {
                    buf.clear();
                    scan.rewind();
                }
                decoded
            })
        }
        "floor-tape" => {
            let (mut buf, mut tape) = (Vec::new(), Tape::default());
            Box::new(move |bytes| {
                buf.extend_from_slice(bytes);
                let decoded = std::iter::from_fn(|| tape.frame(&buf).then_some(())).count();
                if decoded > 0 {
                    black_box(&tape.elements);
                    buf.clear();
                    tape.clear();
                }
                decoded
            })
        }
        "leasehold-resp" => {
            let mut decoder = ours::resp::Decoder::default();
            buffered(move |buf| decoder.next(buf).map(black_box).is_some())
        }
        "redis" => {
            let mut decoder = peers::redis::Decoder::default();
            buffered(move |buf| decoder.next(buf).map(black_box).is_some())
        }
        "redis-protocol" => {
            buffered(|buf| peers::redis_protocol::decode(buf).map(black_box).is_some())
        }
        other => panic!("no candidate {other}"),
    }
}

/// A decoder that takes replies out of a `BytesMut`.
fn buffered(mut next: impl FnMut(&mut BytesMut) -> bool + 'static) -> Decode {
    let mut buf = BytesMut::new();
    Box::new(move |bytes| {
        buf.extend_from_slice(bytes);
        let mut decoded = 0;
        while !buf.is_empty() && next(&mut buf) {
            decoded += 1;
        }
        decoded
    })
}

fn rustis(frames: &[Vec<u8>], segments: bool) {
    for frame in frames {
        if segments {
            let chunks: Vec<&[u8]> = frame.chunks(SEGMENT).collect();
            black_box(peers::rustis::decode_chunks(&chunks));
        } else {
            black_box(peers::rustis::decode(frame));
        }
    }
}

/// The replies of a variant.
fn input(variant: &str) -> Vec<Vec<u8>> {
    let small: [&[u8]; 4] = [b":1\r\n", b"+OK\r\n", b"_\r\n", b"$13\r\nlock:order:42\r\n"];
    let scalars: [&[u8]; 4] = [b":1\r\n", b":29987\r\n", b"_\r\n", b"#t\r\n"];
    let repeated = |replies: &[&[u8]]| {
        let bytes: usize = replies.iter().map(|reply| reply.len()).sum();
        let count = (BLOCK / bytes).max(1) * replies.len();
        replies
            .iter()
            .cycle()
            .take(count)
            .map(|reply| reply.to_vec())
            .collect()
    };
    match variant {
        "small" => repeated(&small),
        "scalars" => repeated(&scalars),
        "nested" => repeated(&[&nested()]),
        "array-20k" => vec![array(20_000)],
        "array-100k" => vec![array(100_000)],
        other => panic!("no variant {other}"),
    }
}

fn nested() -> Vec<u8> {
    let row =
        b"*4\r\n:29987\r\n$12\r\norder:000042\r\n$36\r\n7c9e6679-7425-40de-944b-e07fc1f90ae7\r\n$8\r\nreserved\r\n";
    [b"*32\r\n".to_vec(), row.repeat(32)].concat()
}

fn array(elements: usize) -> Vec<u8> {
    [
        format!("*{elements}\r\n").into_bytes(),
        b"$10\r\n0123456789\r\n".repeat(elements),
    ]
    .concat()
}
