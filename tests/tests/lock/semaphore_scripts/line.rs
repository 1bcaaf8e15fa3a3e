//! Those who wait: who is served, what the first of them keeps, and what dead and stopped processes cost.

use leasehold_testkit::{RawValue, Server};

use super::{FIVE, TAKEN, confirm, ears, free, heard, left, line, permit, taken, waits};
use crate::scripts::{A, B, C, now, ticket};
use crate::support::{assert_everything_expires, ms, until};

#[tokio::test]
async fn those_who_wait_are_served_in_their_order_and_told_alone() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (mut first, mut second) = (ears(&server, B).await, ears(&server, C).await);
    FIVE.acquire(&mut raw, &ticket(A, 1), 4).await;
    FIVE.acquire(&mut raw, &ticket(A, 2), 1).await;
    let waiting = waits(&FIVE.look(&mut raw, &ticket(B, 1), 1, "").await);
    assert_eq!((waiting.ahead, waiting.new), (0, true));
    let behind = waits(&FIVE.look(&mut raw, &ticket(C, 9), 2, "").await);
    assert_eq!((behind.ahead, behind.new), (1, true));
    assert!(behind.score > waiting.score);
    assert_eq!(line(&mut raw).await, format!("{B}:1p1 {C}:9p2"));
    assert_everything_expires(&mut raw).await;

    assert_eq!(FIVE.release(&mut raw, &ticket(A, 1), 4).await, 1);
    let words = heard(&mut first, "GS").await;
    assert_eq!((&*words[1], &*words[2], &*words[4]), ("1", "0", "1000"));
    let words = heard(&mut second, "GS").await;
    assert_eq!((&*words[1], &*words[4]), ("9", "1000"));
    assert_eq!(line(&mut raw).await, "");
    assert_eq!((free(&mut raw).await, taken(&mut raw).await), (1, 4));
    // For a grant lease.
    let granted = left(&FIVE.look(&mut raw, &ticket(C, 9), 2, "").await);
    assert!((1..=1_000).contains(&granted), "{granted}");
    assert!(left(&confirm(&mut raw, &ticket(C, 9), "2").await) >= 20_000);
}

#[tokio::test]
async fn a_newcomer_does_not_pass_the_line() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let _first = ears(&server, B).await;
    FIVE.acquire(&mut raw, &ticket(A, 1), 2).await;
    waits(&FIVE.look(&mut raw, &ticket(B, 1), 4, "").await);
    assert!(FIVE.acquire(&mut raw, &ticket(C, 1), 1).await.int() < 0);
    let behind = waits(&FIVE.look(&mut raw, &ticket(C, 1), 1, "").await);
    assert_eq!(behind.ahead, 1);
}

/// Whoever stands first keeps what is free, so permits that come back one by one do not go to small requests behind it.
#[tokio::test]
async fn the_first_keeps_what_it_cannot_use_yet() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (mut large, mut small) = (ears(&server, B).await, ears(&server, C).await);
    for number in 1..=5 {
        FIVE.acquire(&mut raw, &ticket(A, number), 1).await;
    }
    let first = waits(&FIVE.look(&mut raw, &ticket(B, 1), 3, "").await);
    waits(&FIVE.look(&mut raw, &ticket(C, 1), 1, "").await);

    // It has shown nothing yet: it keeps the permit for a grant lease, and is asked to look.
    FIVE.release(&mut raw, &ticket(A, 1), 1).await;
    assert_eq!(heard(&mut large, "LS").await[1], "1");
    assert_eq!(line(&mut raw).await, format!("{B}:1p3 {C}:1p1"));
    assert_eq!((free(&mut raw).await, taken(&mut raw).await), (0, 5));
    // What comes back before that look is kept for it, too.
    FIVE.release(&mut raw, &ticket(A, 5), 1).await;
    assert_eq!(line(&mut raw).await, format!("{B}:1p3 {C}:1p1"));
    assert_eq!((free(&mut raw).await, taken(&mut raw).await), (0, 5));
    let back = waits(
        &FIVE
            .look(&mut raw, &ticket(B, 1), 3, &first.score.to_string())
            .await,
    );
    assert_eq!((back.ahead, back.new, back.score), (0, false, first.score));
    let kept = raw
        .cmd(&[b"ZSCORE".to_vec(), TAKEN.into(), permit(B, 1, 0)])
        .await;
    let kept: i64 = kept.str().parse().expect("a time");
    let kept = kept - now(&mut raw).await / 1000;
    assert!((2_500..=3_300).contains(&kept), "three looks: {kept}");

    // Now it is known to be alive.
    assert!(FIVE.acquire(&mut raw, &ticket(A, 9), 1).await.int() < 0);
    FIVE.release(&mut raw, &ticket(A, 3), 1).await;
    assert_eq!(heard(&mut large, "GS").await[1], "1");
    FIVE.release(&mut raw, &ticket(A, 4), 1).await;
    assert_eq!(heard(&mut small, "GS").await[1], "1");
    assert_eq!((free(&mut raw).await, taken(&mut raw).await), (0, 5));
}

#[tokio::test]
async fn a_first_that_is_gone_costs_nobody_its_permits() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let mut small = ears(&server, C).await;
    FIVE.acquire(&mut raw, &ticket(A, 1), 2).await;
    FIVE.acquire(&mut raw, &ticket(A, 2), 3).await;
    // Its process hears nothing.
    waits(&FIVE.look(&mut raw, &ticket(B, 1), 5, "").await);
    waits(&FIVE.look(&mut raw, &ticket(C, 1), 2, "").await);
    FIVE.release(&mut raw, &ticket(A, 1), 2).await;
    assert_eq!(heard(&mut small, "GS").await[1], "1");
    assert_eq!(line(&mut raw).await, "");
    assert_eq!((free(&mut raw).await, taken(&mut raw).await), (0, 5));
}

#[tokio::test]
async fn a_first_that_was_stopped_costs_one_grant_lease() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let mut stopped = ears(&server, B).await;
    let mut small = ears(&server, C).await;
    FIVE.acquire(&mut raw, &ticket(A, 1), 2).await;
    FIVE.acquire(&mut raw, &ticket(A, 2), 3).await;
    waits(&FIVE.look(&mut raw, &ticket(B, 1), 5, "").await);
    waits(&FIVE.look(&mut raw, &ticket(C, 1), 2, "").await);
    FIVE.release(&mut raw, &ticket(A, 1), 2).await;
    // It hears, and does nothing.
    assert_eq!(heard(&mut stopped, "LS").await[1], "1");
    let asked = std::time::Instant::now();
    until("the second is served by its own look", async || {
        let reply = FIVE.look(&mut raw, &ticket(C, 1), 2, "").await;
        matches!(&reply, RawValue::Array(parts) if parts.len() == 1)
    })
    .await;
    let waited = asked.elapsed();
    assert!(waited >= ms(500), "the first had its time: {waited:?}");
    assert!(small.heard().await.is_empty());
}

#[tokio::test]
async fn a_ticket_that_is_taken_back_gives_up_what_it_kept() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let (_large, mut small) = (ears(&server, B).await, ears(&server, C).await);
    FIVE.acquire(&mut raw, &ticket(A, 1), 3).await;
    waits(&FIVE.look(&mut raw, &ticket(B, 1), 4, "").await);
    assert_eq!(free(&mut raw).await, 0, "two are kept");
    waits(&FIVE.look(&mut raw, &ticket(C, 1), 2, "").await);
    let gone = FIVE
        .release_part(&mut raw, &ticket(B, 1), 4, 0, &[&format!("{B}:1p4")])
        .await;
    assert_eq!(gone, 0);
    assert_eq!(heard(&mut small, "GS").await[1], "1");
    assert_eq!((free(&mut raw).await, taken(&mut raw).await), (0, 5));
    assert_eq!(line(&mut raw).await, "");
}
