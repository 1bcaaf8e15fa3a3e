//! floor-write: a request written straight into a reused buffer.

/// Appends `EVALSHA sha <keys> key.. arg..`.
#[inline]
pub fn evalsha(out: &mut Vec<u8>, sha: &[u8], keys: &[&[u8]], args: &[&[u8]]) {
    let size: usize = keys.iter().chain(args).map(|part| part.len() + 12).sum();
    out.reserve(size + 80);
    header(out, b'*', 3 + keys.len() + args.len());
    out.extend_from_slice(b"$7\r\nEVALSHA\r\n$40\r\n");
    out.extend_from_slice(sha);
    out.extend_from_slice(b"\r\n$1\r\n");
    // One digit: no script here has ten keys.
    out.push(b'0' + keys.len() as u8);
    out.extend_from_slice(b"\r\n");
    for part in keys.iter().chain(args) {
        bulk(out, part);
    }
}

/// Appends a request of any arguments.
pub fn request(out: &mut Vec<u8>, parts: &[&[u8]]) {
    header(out, b'*', parts.len());
    for part in parts {
        bulk(out, part);
    }
}

#[inline]
fn bulk(out: &mut Vec<u8>, bytes: &[u8]) {
    header(out, b'$', bytes.len());
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

#[inline]
fn header(out: &mut Vec<u8>, kind: u8, n: usize) {
    if n < 10 {
        out.extend_from_slice(&[kind, b'0' + n as u8, b'\r', b'\n']);
    } else if n < 100 {
        out.extend_from_slice(&[
            kind,
            b'0' + (n / 10) as u8,
            b'0' + (n % 10) as u8,
            b'\r',
            b'\n',
        ]);
    } else {
        out.push(kind);
        out.extend_from_slice(n.to_string().as_bytes());
        out.extend_from_slice(b"\r\n");
    }
}
