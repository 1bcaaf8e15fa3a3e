//! `slot()` agrees with the servers on every key, however odd.

use leasehold_cluster::slot::{SLOTS, slot, tag};
use leasehold_testkit::{Cluster, Server};

/// A generator that needs no crate and gives every run the same keys.
struct Random(u64);

impl Random {
    fn next(&mut self, below: usize) -> usize {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        usize::try_from(self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33).unwrap() % below
    }
}

#[test]
fn slots_known_from_the_specification() {
    assert_eq!(SLOTS, 16_384);
    for (key, expected) in [
        ("", 0),
        ("123456789", 12_739),
        ("foo", 12_182),
        ("bar", 5_061),
        ("{foo}bar", 12_182),
    ] {
        assert_eq!(slot(key.as_bytes()), expected, "{key:?}");
    }
}

#[test]
fn the_tag_is_what_the_first_brace_opens_and_the_next_one_behind_it_closes() {
    let cases: &[(&str, &str)] = &[
        ("{user1000}.following", "user1000"),
        ("foo{}{bar}", "foo{}{bar}"),
        ("foo{{bar}}zap", "{bar"),
        ("foo{bar}{zap}", "bar"),
        // The rule that some clients have, which looks for any closing brace, fails on these.
        ("a}b{c}d", "c"),
        ("}{a}", "a"),
        ("}a{", "}a{"),
        ("{a", "{a"),
        ("a}", "a}"),
        ("{}", "{}"),
        ("", ""),
        ("{\0}x", "\0"),
    ];
    for (key, expected) in cases {
        assert_eq!(tag(key.as_bytes()), expected.as_bytes(), "{key:?}");
    }
}

/// In one pipeline: thousands of round trips would take seconds.
#[tokio::test]
async fn slots_are_those_the_server_computes_for_thousands_of_odd_names() {
    let mut random = Random(0x1EA5_E401_D000_0001);
    let mut keys: Vec<Vec<u8>> = Vec::new();
    // All short strings over what matters to the rule.
    for length in 0..=6 {
        for mut code in 0..4_usize.pow(length) {
            let mut key = Vec::new();
            for _ in 0..length {
                key.push(b"{}ab"[code % 4]);
                code /= 4;
            }
            keys.push(key);
        }
    }
    // Binary ones with braces here and there, up to a few kilobytes.
    for round in 0..4_000 {
        let length = if round % 100 == 0 {
            random.next(5_000)
        } else {
            random.next(40)
        };
        keys.push(
            (0..length)
                .map(|_| {
                    if random.next(6) == 0 {
                        b"{}"[random.next(2)]
                    } else {
                        random.next(256) as u8
                    }
                })
                .collect(),
        );
    }
    for name in [
        "lock:ä{ö}ü",
        "redisson_lock__channel:{order:42}",
        "{🦀}",
        "\r\n{\r\n}",
        "{a}{b}",
        "{{{}}}",
    ] {
        keys.push(name.into());
    }

    let server = Server::builder()
        .config("cluster-enabled yes")
        .start()
        .await;
    let mut raw = server.raw().await;
    for batch in keys.chunks(500) {
        let pipeline: Vec<u8> = batch
            .iter()
            .flat_map(|key| leasehold_testkit::raw::encode(&[b"CLUSTER", b"KEYSLOT", &key[..]]))
            .collect();
        raw.send_bytes(&pipeline).await.unwrap();
        for key in batch {
            let theirs = raw.read().await.unwrap().int();
            assert_eq!(
                i64::from(slot(key)),
                theirs,
                "{:?}",
                String::from_utf8_lossy(key)
            );
        }
    }
    println!("{} keys", keys.len());
}

/// Also where it counts: a command sent by our slot is not redirected.
#[tokio::test]
async fn the_names_of_locks_reach_the_node_that_serves_them_at_the_first_try() {
    let cluster = Cluster::builder().replicas(0).start().await;
    let view = cluster.view(0).await.unwrap();
    for n in 0..200 {
        let key = format!("a}}b{n}{{tag{n}}}c}}");
        let owner = view
            .iter()
            .find(|member| member.serves(slot(key.as_bytes())))
            .unwrap();
        let index = (0..3).find(|index| cluster.id(*index) == owner.id).unwrap();
        assert_eq!(
            cluster.raw(index).await.cmd(&["GET", &key]).await.error(),
            None,
            "{key}"
        );
    }
}
