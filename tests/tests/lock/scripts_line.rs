//! The scripts of the mutex by themselves, with tickets in line.

use leasehold_testkit::{Cluster, Raw, RawValue, Server};

use crate::scripts::sources::{ACQUIRE, RELEASE};
use crate::scripts::{
    A, B, C, CHANNEL, Ears, KEPT, LINE, TOKEN, acquire, call, counter, ears, force_unlock, granted,
    join, line, line_up, look, now, place, release, run, sharded_ears, taken, ticket,
};
use crate::support::{assert_everything_expires, bulk, exists, fields, pttl, until};

/// Whether the server has channels that belong to slots; says so if not.
async fn has_sharded_channels(server: &Server) -> bool {
    let has = server.knows("SPUBLISH").await;
    if !has {
        println!("skipped: no sharded channels");
    }
    has
}

#[tokio::test]
async fn tickets_stand_in_the_order_of_their_first_requests() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    acquire(&mut raw, "me:1", "30000").await;
    let (a, b) = (ticket(A, 1), ticket(B, 7));
    let before = now(&mut raw).await;
    let first = place(&join(&mut raw, &a).await);
    let second = place(&join(&mut raw, &b).await);
    assert!((20_000..=30_000).contains(&first.ms), "{first:?}");
    assert!(first.now >= before && second.now >= first.now);
    assert!(second.now <= now(&mut raw).await);
    assert_eq!((first.ahead, first.new), (0, true));
    assert_eq!(first.score, first.now, "the place is the time");
    assert_eq!((second.ahead, second.new), (1, true));
    assert!(second.score > first.score);

    raw.cmd(&["PEXPIRE", LINE, "1000"]).await;
    let again = place(&join(&mut raw, &a).await);
    assert_eq!((again.ahead, again.score), (0, first.score));
    assert!(!again.new);
    assert_eq!(line(&mut raw).await, format!("{a} {b}"));
    let kept = pttl(&mut raw, LINE).await;
    assert!((50_000..=60_000).contains(&kept), "{kept}");
    assert_everything_expires(&mut raw).await;
    assert_eq!(fields(&mut raw, "L").await, "me:1=1");
}

#[tokio::test]
async fn a_free_lock_is_taken_past_the_line_and_its_release_serves_the_line() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let mut heard = ears(&server, A).await;
    line_up(&mut raw, &[&ticket(A, 1)]).await;
    let barged = ticket(B, 1);
    assert!(join(&mut raw, &barged).await.int() > 0);
    assert_eq!(line(&mut raw).await, ticket(A, 1), "without a ticket");
    assert_eq!(release(&mut raw, &barged, "P", &[]).await.int(), 2);
    assert_eq!(granted(&mut heard).await.number, 1);
}

#[tokio::test]
async fn a_clock_that_was_set_back_lets_nobody_in_front() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    acquire(&mut raw, "me:1", "30000").await;
    let ahead = now(&mut raw).await + 3_600_000_000;
    raw.cmd(&["ZADD", LINE, &ahead.to_string(), &ticket(A, 1)])
        .await;
    for (n, reply) in [
        (1, join(&mut raw, &ticket(B, 1)).await),
        (2, look(&mut raw, &ticket(C, 1), "", "P").await),
        (3, join(&mut raw, &ticket(C, 2)).await),
    ] {
        let place = place(&reply);
        assert_eq!((place.ahead, place.score), (n, ahead + n));
        assert!(place.now < ahead);
    }
    assert_everything_expires(&mut raw).await;
}

#[tokio::test]
async fn a_look_brings_a_lost_ticket_back_to_its_place() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    acquire(&mut raw, "me:1", "30000").await;
    let tickets = [ticket(A, 1), ticket(B, 1), ticket(C, 1)];
    let mut scores = Vec::new();
    for ticket in &tickets {
        scores.push(place(&join(&mut raw, ticket).await).score);
    }
    raw.cmd(&["DEL", LINE]).await;
    for n in [2, 0, 1] {
        let score = scores[n].to_string();
        let back = place(&look(&mut raw, &tickets[n], &score, "P").await);
        assert!(back.new, "it was missing");
        assert_eq!(back.score, scores[n]);
        assert_everything_expires(&mut raw).await;
    }
    assert_eq!(line(&mut raw).await, tickets.join(" "));

    // A ticket that is there keeps its place, whatever score the request brings.
    for score in ["1", "", "9000000000000000"] {
        let kept = place(&look(&mut raw, &tickets[1], score, "P").await);
        assert_eq!((kept.ahead, kept.score), (1, scores[1]));
        assert!(!kept.new);
    }
    // One whose score is not known any more lines up at the end.
    raw.cmd(&["ZREM", LINE, &tickets[0]]).await;
    let last = place(&look(&mut raw, &tickets[0], "", "P").await);
    assert!(last.new && last.ahead == 2 && last.score > scores[2]);
}

#[tokio::test]
async fn a_release_makes_the_first_the_holder_and_tells_it_alone() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let mut heard = [
        ears(&server, A).await,
        ears(&server, B).await,
        Ears::plain(&server, CHANNEL).await,
        Ears::plain(&server, &format!("{LINE}:{A}")).await,
    ];
    let held = acquire(&mut raw, "me:1", "30000").await.int();
    join(&mut raw, &ticket(A, 12)).await;
    join(&mut raw, &ticket(B, 3)).await;
    let before = now(&mut raw).await;
    let ended = release(&mut raw, "me:1", "P", &["", CHANNEL, ""]).await;
    assert_eq!(ended.int(), 2);
    let grant = granted(&mut heard[0]).await;
    assert_eq!((grant.number, grant.lease), (12, 1_000));
    assert!(grant.token > held);
    assert_eq!(grant.token, counter(&mut raw).await);
    assert!((before..=now(&mut raw).await).contains(&grant.time));
    for others in &mut heard[1..] {
        assert_eq!(others.heard().await, [""; 0]);
    }
    assert_eq!(fields(&mut raw, "L").await, format!("{}=1", ticket(A, 12)));
    assert!((1..=1_000).contains(&pttl(&mut raw, "L").await));
    assert_eq!(line(&mut raw).await, ticket(B, 3));
    assert_everything_expires(&mut raw).await;

    let ended = release(&mut raw, "me:1", "P", &["", CHANNEL, ""]).await;
    assert_eq!(ended.int(), 0, "a lost reply, repeated");
    assert_eq!(heard[1].heard().await, [""; 0]);
    assert_eq!(fields(&mut raw, "L").await, format!("{}=1", ticket(A, 12)));
}

#[tokio::test]
async fn arguments_that_are_left_out_mean_a_server_and_a_counter_for_ten_minutes() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let mut heard = ears(&server, A).await;
    let kept = async |raw: &mut Raw| {
        let ms = pttl(raw, TOKEN).await;
        assert!((590_000..=600_000).contains(&ms), "{ms}");
    };
    // A counter behind the time, and one ahead of it.
    for counter in ["1", "9000000000000000"] {
        raw.cmd(&["SET", TOKEN, counter]).await;
        let held = run(&mut raw, ACQUIRE, &["L", TOKEN], &["me:1", "30000"]).await;
        assert!(held.int() > 1);
        kept(&mut raw).await;
        join(&mut raw, &ticket(A, 1)).await;
        raw.cmd(&["PERSIST", TOKEN]).await;
        let ended = run(&mut raw, RELEASE, &["L", TOKEN, LINE], &["me:1"]).await;
        assert_eq!(ended.int(), 2);
        assert!(granted(&mut heard).await.token > held.int());
        kept(&mut raw).await;
        let ended = run(&mut raw, RELEASE, &["L", TOKEN, LINE], &[&ticket(A, 1)]).await;
        assert_eq!(ended.int(), 1);
    }
}

#[tokio::test]
async fn a_ticket_names_its_own_grant_lease() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let mut heard = ears(&server, A).await;
    for lease in [60_000, 2_500, 1] {
        acquire(&mut raw, "me:1", "30000").await;
        join(&mut raw, &format!("{}|{lease}", ticket(A, 5))).await;
        assert_eq!(release(&mut raw, "me:1", "P", &[]).await.int(), 2);
        let grant = granted(&mut heard).await;
        assert_eq!((grant.number, grant.lease), (5, lease));
        if lease > 1 {
            let field = format!("{}=1", ticket(A, 5));
            assert_eq!(fields(&mut raw, "L").await, field, "without the suffix");
            assert!((lease / 2..=lease).contains(&pttl(&mut raw, "L").await));
        }
        raw.cmd(&["DEL", "L"]).await;
    }
}

#[tokio::test]
async fn a_grant_goes_through_the_channel_of_the_slot() {
    let server = Server::start().await;
    if !has_sharded_channels(&server).await {
        return;
    }
    let mut raw = server.raw().await;
    let mut heard = sharded_ears(&server, B).await;
    let mut plain = ears(&server, B).await;
    for n in 0..3 {
        acquire(&mut raw, "me:1", "30000").await;
        join(&mut raw, &ticket(B, n)).await;
        match n {
            0 => release(&mut raw, "me:1", "S", &[]).await,
            1 => force_unlock(&mut raw, "", "S").await,
            _ => {
                raw.cmd(&["DEL", "L"]).await;
                look(&mut raw, &ticket(C, 1), "", "S").await
            }
        };
        let grant = granted(&mut heard).await;
        assert_eq!((grant.number, grant.token), (n, counter(&mut raw).await));
        assert_eq!(fields(&mut raw, "L").await, format!("{}=1", ticket(B, n)));
        raw.cmd(&["DEL", "L", LINE]).await;
    }
    assert_eq!(plain.heard().await, [""; 0]);
}

/// After a failover a client may still listen at the node that was the master. That passes messages of the shard on, and the new
/// master does not count it.
#[tokio::test]
async fn a_client_that_listens_at_another_node_of_the_shard_keeps_its_grant() {
    let cluster = Cluster::start().await;
    let master = cluster.master_of("L").await.expect("a master");
    let replica = cluster.replicas_of(master).await[0];
    if !has_sharded_channels(cluster.node(master)).await {
        return;
    }
    let mut heard = sharded_ears(cluster.node(replica), A).await;
    let mut raw = cluster.raw(master).await;
    acquire(&mut raw, "me:1", "30000").await;
    join(&mut raw, &ticket(A, 1)).await;
    join(&mut raw, &ticket(B, 1)).await;
    assert_eq!(release(&mut raw, "me:1", "S", &[]).await.int(), 2);
    let mut messages = Vec::new();
    until("the grant is heard", async || {
        messages.extend(heard.heard().await);
        !messages.is_empty()
    })
    .await;
    assert!(messages[0].starts_with("G 1 "), "{messages:?}");
    assert_eq!(fields(&mut raw, "L").await, format!("{}=1", ticket(A, 1)));
    assert_eq!(line(&mut raw).await, ticket(B, 1));
}

#[tokio::test]
async fn whoever_finds_the_lock_free_serves_the_first() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let mut heard = [ears(&server, A).await, ears(&server, B).await];
    let (a, b, dead) = (ticket(A, 1), ticket(B, 1), ticket(C, 1));
    line_up(&mut raw, &[&dead, &a, &b]).await;
    let place = place(&look(&mut raw, &b, "3", "P").await);
    assert_eq!((place.ms, place.ahead, place.score), (1_000, 0, 3));
    assert!(!place.new);
    let grant = granted(&mut heard[0]).await;
    assert!(grant.time >= place.now);
    assert_eq!(fields(&mut raw, "L").await, format!("{a}=1"));
    assert_eq!(line(&mut raw).await, b);
    assert_everything_expires(&mut raw).await;

    // Its own turn: it is the holder for its whole lease, without a message.
    raw.cmd(&["DEL", "L"]).await;
    let (token, ms) = taken(&look(&mut raw, &b, "3", "P").await);
    assert!(token > grant.token);
    assert_eq!((token, ms), (counter(&mut raw).await, 30_000));
    assert_eq!(fields(&mut raw, "L").await, format!("{b}=1"));
    assert!((20_000..=30_000).contains(&pttl(&mut raw, "L").await));
    assert!(!exists(&mut raw, LINE).await);
    assert_eq!(heard[1].heard().await, [""; 0]);
    assert_everything_expires(&mut raw).await;
}

#[tokio::test]
async fn a_look_takes_the_lock_behind_dead_tickets_and_with_a_ticket_that_was_lost() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (dead, mine) = (ticket(B, 1), format!("{}|700", ticket(C, 1)));
    // Nobody listens, not even the one who asks.
    for tickets in [&[&dead[..], &mine][..], &[&mine], &[&dead], &[]] {
        raw.cmd(&["DEL", "L", LINE]).await;
        line_up(&mut raw, tickets).await;
        let (_, ms) = taken(&look(&mut raw, &mine, "9", "P").await);
        assert_eq!(ms, 30_000, "its lease, and not a grant lease");
        assert_eq!(fields(&mut raw, "L").await, format!("{}=1", ticket(C, 1)));
        assert!(pttl(&mut raw, "L").await > 20_000);
        assert!(!exists(&mut raw, LINE).await);
    }
}

#[tokio::test]
async fn a_look_of_the_holder_tells_what_is_left_and_takes_the_ticket_out() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let mut heard = ears(&server, A).await;
    let (a, b) = (ticket(A, 1), ticket(B, 1));
    acquire(&mut raw, "me:1", "30000").await;
    join(&mut raw, &a).await;
    release(&mut raw, "me:1", "P", &[]).await;
    let token = granted(&mut heard).await.token;
    for lined in [&[&b[..]][..], &[&a, &b]] {
        line_up(&mut raw, lined).await;
        let (same, ms) = taken(&look(&mut raw, &a, "", "P").await);
        assert_eq!(same, token);
        assert!((1..=1_000).contains(&ms), "not extended: {ms}");
        assert!(pttl(&mut raw, "L").await <= 1_000);
        assert_eq!(line(&mut raw).await, b);
    }
    // A line of another type does not hide the hold.
    raw.cmd(&["DEL", LINE]).await;
    raw.cmd(&["SET", LINE, "precious"]).await;
    assert_eq!(taken(&look(&mut raw, &a, "", "P").await).0, token);
    assert_eq!(raw.cmd(&["GET", LINE]).await, bulk("precious"));
}

#[tokio::test]
async fn a_release_takes_the_ticket_back_in_whatever_state_it_is() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let mut heard = [ears(&server, A).await, ears(&server, B).await];
    let (a, b) = (ticket(A, 1), format!("{}|2000", ticket(B, 1)));
    let hold = ticket(B, 1);

    // Waiting: first, or behind another, or not there at all.
    acquire(&mut raw, "me:1", "30000").await;
    for lined in [&[&a[..], &b][..], &[&b, &a], &[&a]] {
        line_up(&mut raw, lined).await;
        for _ in 0..2 {
            assert_eq!(release(&mut raw, &hold, "P", &[&b]).await.int(), 0);
            assert_eq!(line(&mut raw).await, a);
        }
        assert_eq!(fields(&mut raw, "L").await, "me:1=1");
        raw.cmd(&["DEL", LINE]).await;
    }
    // Without the flag it stays.
    line_up(&mut raw, &[&b, &a]).await;
    assert_eq!(release(&mut raw, &hold, "P", &[]).await.int(), 0);
    assert_eq!(release(&mut raw, &hold, "P", &[""]).await.int(), 0);
    assert_eq!(line(&mut raw).await, format!("{b} {a}"));

    // Granted: the next one has it, and hears of it once.
    assert_eq!(release(&mut raw, "me:1", "P", &[]).await.int(), 2);
    assert_eq!(granted(&mut heard[1]).await.lease, 2_000);
    assert_eq!(release(&mut raw, &hold, "P", &[&b]).await.int(), 2);
    let second = granted(&mut heard[0]).await;
    assert_eq!(release(&mut raw, &hold, "P", &[&b]).await.int(), 0);
    assert_eq!(heard[0].heard().await, [""; 0]);
    assert_eq!(second.token, counter(&mut raw).await);

    // A holder whose ticket stayed in line, as an acquire that was repeated leaves it.
    line_up(&mut raw, &[&a]).await;
    assert_eq!(release(&mut raw, &a, "P", &[&a]).await.int(), 1);
    assert_eq!(raw.cmd(&["EXISTS", "L", LINE]).await.int(), 0);
    for heard in &mut heard {
        assert_eq!(heard.heard().await, [""; 0]);
    }
}

#[tokio::test]
async fn an_open_release_leaves_the_lock_to_redisson_if_it_waits() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let sharded = server.knows("SPUBLISH").await;
    for mode in ["P", "S", "C"] {
        if mode == "S" && !sharded {
            continue;
        }
        let listen = async |channel: &str| match mode {
            "S" => Ears::sharded(&server, channel).await,
            _ => Ears::plain(&server, channel).await,
        };
        let own = match mode {
            "S" => format!("{LINE}:{A}"),
            _ => format!("leasehold:{A}"),
        };
        let (mut ours, mut heard) = (listen(&own).await, vec![listen(CHANNEL).await]);
        let a = ticket(A, 1);
        // Each client of ours with a ticket listens on Java's channel too: of those who listen, so
        // many are Redisson's.
        for (listening, own_without_ticket, redisson) in [
            (1, "0", 0),
            (2, "0", 1),
            (2, "1", 0),
            (3, "1", 1),
            (3, "2", 0),
            (3, "", 0),
        ] {
            while heard.len() < listening {
                heard.push(listen(CHANNEL).await);
            }
            raw.cmd(&["DEL", "L", LINE]).await;
            acquire(&mut raw, "me:1", "30000").await;
            line_up(&mut raw, &[&a]).await;
            let more = ["", CHANNEL, own_without_ticket];
            let ended = release(&mut raw, "me:1", mode, &more).await.int();
            let open = redisson > 0 || mode == "C" && !own_without_ticket.is_empty();
            assert_eq!(ended, if open { 1 } else { 2 }, "{mode} {listening}");
            assert_eq!(exists(&mut raw, "L").await, !open);
            assert_eq!(line(&mut raw).await, if open { &a } else { "" });
            assert_eq!(ours.heard().await.len(), usize::from(!open));
            for heard in &mut heard {
                assert_eq!(heard.heard().await.len(), usize::from(open));
            }
        }
    }
}

#[tokio::test]
async fn redisson_hears_of_a_release_that_served_nobody() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let mut java = Ears::plain(&server, CHANNEL).await;
    let mut heard = ears(&server, A).await;
    for (lined, served) in [(ticket(B, 1), false), (ticket(A, 1), true)] {
        for forced in [false, true] {
            raw.cmd(&["DEL", "L"]).await;
            acquire(&mut raw, "me:1", "30000").await;
            line_up(&mut raw, &[&lined]).await;
            let ended = if forced {
                force_unlock(&mut raw, CHANNEL, "P").await
            } else {
                release(&mut raw, "me:1", "P", &["", CHANNEL, ""]).await
            };
            assert_eq!(ended.int(), if served && !forced { 2 } else { 1 });
            assert_eq!(java.heard().await.len(), usize::from(!served));
            assert_eq!(heard.heard().await.len(), usize::from(served));
        }
    }
}

#[tokio::test]
async fn force_hands_the_lock_on() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let mut heard = ears(&server, B).await;
    let held = acquire(&mut raw, "me:1", "30000").await.int();
    line_up(&mut raw, &[&ticket(A, 1), &ticket(B, 1), &ticket(C, 1)]).await;
    assert_eq!(force_unlock(&mut raw, "", "P").await.int(), 1);
    let grant = granted(&mut heard).await;
    assert!(grant.token > held);
    assert_eq!(fields(&mut raw, "L").await, format!("{}=1", ticket(B, 1)));
    assert_eq!(line(&mut raw).await, ticket(C, 1));
    assert_eq!(release(&mut raw, "me:1", "P", &[]).await.int(), 0);
    assert_everything_expires(&mut raw).await;

    raw.cmd(&["DEL", "L"]).await;
    assert_eq!(force_unlock(&mut raw, "", "P").await.int(), 0);
    assert_eq!(line(&mut raw).await, ticket(C, 1), "only who held it");
}

#[tokio::test]
async fn tokens_of_grants_are_unique_and_rise() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let mut heard = [ears(&server, A).await, ears(&server, B).await];
    let clients = [A, B];
    let mut last = acquire(&mut raw, &ticket(A, 0), "30000").await.int();
    for n in 1..200 {
        let (from, to) = (clients[(n + 1) % 2], clients[n % 2]);
        let number = n as u64;
        join(&mut raw, &ticket(to, number)).await;
        match n % 20 {
            5 => raw.cmd(&["DEL", TOKEN]).await,
            13 => {
                let ahead = (last + 5_000_000).to_string();
                raw.cmd(&["SET", TOKEN, &ahead]).await
            }
            _ => RawValue::Null,
        };
        let before = counter_or_zero(&mut raw).await.max(last);
        let ended = release(&mut raw, &ticket(from, number - 1), "P", &[]).await;
        assert_eq!(ended.int(), 2);
        let grant = granted(&mut heard[n % 2]).await;
        // A counter that was ahead of the time and is lost takes tokens back: the only way.
        if n % 20 == 5 {
            assert_eq!(grant.token, grant.time);
        } else {
            assert!(grant.token > before, "{} after {before}", grant.token);
        }
        assert_eq!(grant.token, counter(&mut raw).await);
        assert!(grant.token >= grant.time);
        last = grant.token;
    }
}

async fn counter_or_zero(raw: &mut Raw) -> i64 {
    match raw.cmd(&["GET", TOKEN]).await {
        RawValue::Null => 0,
        number => number.int(),
    }
}

#[tokio::test]
async fn no_token_of_a_block_is_given_to_anybody_else() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let mut heard = [ears(&server, A).await, ears(&server, B).await];
    let keys = ["L", TOKEN];
    let mut last = 0;
    for ahead in [0, 3_600_000_000] {
        raw.cmd(&["DEL", "L"]).await;
        if ahead > 0 {
            raw.cmd(&["SET", TOKEN, &(last + ahead).to_string()]).await;
        }
        let args = ["me:1", "30000", KEPT, "", "64"];
        let first = run(&mut raw, ACQUIRE, &keys, &args).await.int();
        assert!(first > last + ahead);
        assert_eq!(counter(&mut raw).await, first + 63);
        // Repeated, it is one token, which is in the block as well.
        let (again, _) = taken(&run(&mut raw, ACQUIRE, &keys, &args).await);
        assert_eq!(again, first + 63);

        join(&mut raw, &format!("{}+", ticket(A, 1))).await;
        join(&mut raw, &format!("{}|2000+", ticket(B, 1))).await;
        assert_eq!(release(&mut raw, "me:1", "P", &[]).await.int(), 2);
        let second = granted(&mut heard[0]).await;
        assert!(second.token > again && second.lease == 1_000);
        assert_eq!(counter(&mut raw).await, second.token + 63);
        let ended = release(&mut raw, &ticket(A, 1), "P", &[]).await;
        assert_eq!(ended.int(), 2);
        let third = granted(&mut heard[1]).await;
        assert!(third.token > second.token + 63 && third.lease == 2_000);
        assert_eq!(fields(&mut raw, "L").await, format!("{}=1", ticket(B, 1)));
        last = counter(&mut raw).await;
        assert_everything_expires(&mut raw).await;
    }
    raw.cmd(&["DEL", "L"]).await;
    for (counter, exact) in [("9007199254740927", true), ("9007199254740928", false)] {
        raw.cmd(&["SET", TOKEN, counter]).await;
        let reply = run(&mut raw, ACQUIRE, &keys, &["me:1", "1", KEPT, "", "64"]).await;
        assert_eq!(reply.error().is_none(), exact, "{reply:?}");
        raw.cmd(&["DEL", "L"]).await;
    }
}

#[tokio::test]
async fn a_message_tells_the_name_to_the_byte() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let mut heard = server.raw().await;
    heard.hello3().await;
    let channel = format!("leasehold:{A}");
    heard
        .send(&["SUBSCRIBE", &channel])
        .await
        .expect("connected");
    heard.push().await;
    for name in [&b"zero\0byte"[..], b"{tag} rest", b"%d %s %%", b"\xff\r\n"] {
        let [counter, line] = [&b"counter:"[..], b"line:"].map(|prefix| [prefix, name].concat());
        let keys: [&[u8]; 3] = [name, &counter, &line];
        let hold = ticket(A, 1);
        let args: [&[u8]; 3] = [b"me:1", b"30000", KEPT.as_bytes()];
        raw.cmd(&call(ACQUIRE, &keys[..2], &args)).await;
        let args: [&[u8]; 4] = [hold.as_bytes(), args[1], args[2], hold.as_bytes()];
        raw.cmd(&call(ACQUIRE, &keys, &args)).await;
        let args: [&[u8]; 3] = [b"me:1", b"P", KEPT.as_bytes()];
        assert_eq!(raw.cmd(&call(RELEASE, &keys, &args)).await.int(), 2);
        let RawValue::Bulk(message) = heard.push().await.remove(2) else {
            panic!("expected a message")
        };
        assert!(message.starts_with(b"G 1 "));
        let words: Vec<_> = message.splitn(6, |byte| *byte == b' ').collect();
        assert_eq!(words[4..], [b"1000", name]);
    }
}
