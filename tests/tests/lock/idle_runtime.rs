//! A connection that lives on a runtime which is blocked or not driven.

use std::time::Instant;

use leasehold::Locks;
use leasehold_testkit::Server;

use crate::support::{ms, within};

#[test]
fn calls_end_in_time_when_nothing_drives_the_connection() {
    let driven = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let idle = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let server = driven.block_on(Server::start());
    let locks = idle
        .block_on(
            Locks::builder(server.url())
                .command_timeout(ms(1_000))
                .connect(),
        )
        .expect("the server is up");
    driven.block_on(async {
        let began = Instant::now();
        let waiters: Vec<_> = (0..4)
            .map(|n| {
                let mutex = locks.mutex("a");
                tokio::spawn(async move {
                    match n {
                        0 => mutex.try_lock().await.map(drop),
                        1 => mutex.try_lock_for(ms(500)).await.map(drop),
                        _ => mutex.lock().await.map(drop),
                    }
                })
            })
            .collect();
        let mut failed = 0;
        for waiter in waiters {
            failed += usize::from(within("a call", waiter).await.unwrap().is_err());
        }
        assert!(failed >= 1, "at least the one that was sent has no answer");
        assert!(locks.mutex("a").holder().await.is_err());
        assert!(locks.mutex("a").remaining().await.is_err());
        assert!(locks.mutex("a").force_unlock().await.is_err());
        let took = began.elapsed();
        assert!(took < ms(12_000), "eight calls of 1 s took {took:?}");
        let _ = within("the shutdown", locks.shutdown()).await;
    });
}
