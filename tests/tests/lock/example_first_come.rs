//! The example of an instrument that is used first come, first served: by processes, in the order in
//! which they asked.

use std::process::Stdio;

use leasehold_testkit::{Scratch, Server};
use tokio::process::Command;

use crate::examples::program;
use crate::support::{locks, until, within};

const NAMES: [&str; 4] = ["uranium", "helium", "argon", "zinc"];

#[tokio::test]
async fn processes_measure_in_the_order_in_which_they_asked() {
    let server = Server::start().await;
    let mut raw = server.raw().await;
    let scratch = Scratch::new();
    let log = scratch.path().join("log");
    let program = program("first_come").await;
    let held = locks(&server).await.fair_mutex("lab:spectrometer").lock();
    let held = held.await.unwrap();
    let mut running = Vec::new();
    for (ahead, name) in NAMES.iter().enumerate() {
        let process = Command::new(&program)
            .arg(server.url())
            .arg(&log)
            .arg(name)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        running.push(process.expect("it can be run").wait_with_output());
        until("it waits", async || {
            let line = raw.cmd(&["ZCARD", "leasehold_line:{lab:spectrometer}"]);
            line.await.int() == ahead as i64 + 1
        })
        .await;
    }
    held.release().await.unwrap();
    for (ahead, process) in running.into_iter().enumerate() {
        let output = within("its turn", process).await.unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{output:?}");
        assert!(said.contains(&format!(": {ahead} wait already")), "{said}");
    }
    let log = std::fs::read_to_string(log).unwrap();
    let expected = NAMES.map(|name| format!("{name} begins\n{name} ends\n"));
    assert_eq!(log, expected.concat());
}
