//! The example of a transfer over two accounts: many at once, in all directions, and no money is made or lost.

use std::path::Path;
use std::process::Stdio;

use leasehold_testkit::{Scratch, Server};
use tokio::process::Command;

use crate::examples::program;

const ACCOUNTS: [&str; 3] = ["alice", "bob", "carol"];

fn balance(directory: &Path, account: &str) -> i64 {
    let text = std::fs::read_to_string(directory.join(account)).unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn many_transfers_at_once_keep_the_sum() {
    let server = Server::start().await;
    let scratch = Scratch::new();
    for account in ACCOUNTS {
        std::fs::write(scratch.path().join(account), "100 0\n").unwrap();
    }
    let program = program("transfer").await;
    let transfer = |from: &str, to: &str, amount: &str| {
        let mut command = Command::new(&program);
        command
            .arg(server.url())
            .arg(scratch.path())
            .args([from, to, amount])
            .stdin(Stdio::null());
        async move { command.output().await.expect("it can be run") }
    };
    let first = transfer("alice", "bob", "1").await;
    let said = String::from_utf8_lossy(&first.stderr);
    assert!(first.status.success(), "{said}");
    let mut running = Vec::new();
    for n in 0..9 {
        let (from, to) = (ACCOUNTS[n % 3], ACCOUNTS[(n + 1 + n / 3) % 3]);
        if from != to {
            running.push(tokio::spawn(transfer(from, to, "7")));
        }
    }
    for transfer in running {
        let output = transfer.await.unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
    }
    let sum: i64 = ACCOUNTS
        .iter()
        .map(|account| balance(scratch.path(), account))
        .sum();
    assert_eq!(sum, 300);
    let poor = transfer("alice", "carol", "1000").await;
    assert!(
        !poor.status.success(),
        "nobody spends what they do not have"
    );
    let left = server.raw().await.cmd(&["KEYS", "bank:*"]).await;
    assert!(left.array().is_empty(), "{left:?}");
}
