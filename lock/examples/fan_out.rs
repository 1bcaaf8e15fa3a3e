//! A job that is fanned out to workers, and collected when all parts are done.
//!
//! `cargo run --example fan_out -- redis://127.0.0.1:6379`

use std::time::Duration;

use leasehold::Locks;
use tokio::time::sleep;

const PAGES: [&str; 4] = ["page-1", "page-2", "page-3", "page-4"];

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).expect("the URL of a server");
    let locks = Locks::connect(url.clone()).await?;
    // The expiry ends the wait of everybody if a worker never comes back.
    let crawled = locks.latch("crawl:7").expiry(Duration::from_secs(60));
    crawled.reset(PAGES.len() as u64).await?;

    let workers: Vec<_> = PAGES
        .into_iter()
        .map(|page| tokio::spawn(crawl(url.clone(), page)))
        .collect();
    crawled.wait().await?;
    println!("all {} pages are there", PAGES.len());
    for worker in workers {
        worker.await??;
    }
    Ok(())
}

/// A worker, in another process. It counts for its page, so a queue that delivers a page twice does no harm.
async fn crawl(url: String, page: &str) -> Result<(), leasehold::Error> {
    let locks = Locks::connect(url).await?;
    sleep(Duration::from_millis(20)).await;
    println!("{page} done");
    let latch = locks.latch("crawl:7");
    latch.count_down_as(page).await?;
    latch.count_down_as(page).await.map(drop)
}
