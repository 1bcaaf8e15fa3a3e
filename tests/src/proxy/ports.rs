//! The ports that a server names in its replies.

/// The address at which all servers listen.
const HOST: &[u8] = b"127.0.0.1";

/// Number of digits of a port.
const DIGITS: usize = 5;

/// Separators between address and port: in text, in `CLUSTER SLOTS`, in `INFO`, in `ROLE`.
const BETWEEN: [&[u8]; 4] = [b":", b"\r\n:", b",port=", b"\r\n$5\r\n"];

/// Replaces the ports that stand behind a loopback address in a frame: `(from, to)`, all of five
/// digits, so that no length changes.
pub(super) fn rename(frame: &mut [u8], ports: &[(u16, u16)]) {
    let mut at = 0;
    while let Some(host) = frame[at..]
        .windows(HOST.len())
        .position(|word| word == HOST)
    {
        at += host + HOST.len();
        let rest = &mut frame[at..];
        let Some(between) = BETWEEN.iter().find(|between| rest.starts_with(between)) else {
            continue;
        };
        let Some(named) = rest.get_mut(between.len()..between.len() + DIGITS) else {
            continue;
        };
        let new = ports
            .iter()
            .find(|(from, _)| from.to_string().as_bytes() == &*named);
        if let Some((_, to)) = new {
            named.copy_from_slice(to.to_string().as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_renamed_wherever_a_server_names_an_address() {
        for (before, after) in [
            (
                "-MOVED 21001 127.0.0.1:21001\r\n",
                "-MOVED 21001 127.0.0.1:21900\r\n",
            ),
            (
                "*2\r\n$9\r\n127.0.0.1\r\n:21001\r\n",
                "*2\r\n$9\r\n127.0.0.1\r\n:21900\r\n",
            ),
            (
                "ip=127.0.0.1,port=21001,offset=21001",
                "ip=127.0.0.1,port=21900,offset=21001",
            ),
            (
                "$9\r\n127.0.0.1\r\n$5\r\n21002\r\n",
                "$9\r\n127.0.0.1\r\n$5\r\n21901\r\n",
            ),
            (
                "x 127.0.0.1:21002@31002 y 127.0.0.1:21003@31003",
                "x 127.0.0.1:21901@31002 y 127.0.0.1:21003@31003",
            ),
            ("127.0.0.1:210", "127.0.0.1:210"),
            ("127.0.0.1", "127.0.0.1"),
        ] {
            let mut frame = before.as_bytes().to_vec();
            rename(&mut frame, &[(21_001, 21_900), (21_002, 21_901)]);
            assert_eq!(String::from_utf8_lossy(&frame), after);
        }
    }
}
