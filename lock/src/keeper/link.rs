//! The keeper's thread: its connection, its timer, and what it waits for.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use leasehold_cluster::{Client, Target};
use leasehold_resp as resp;
use leasehold_resp::ServerErrorKind;
use tokio::task::JoinSet;

use super::{Asked, Batch, Job, Shared};
use crate::error::LostReason;
use crate::id::Decimal;
use crate::lease::{Now, millis};
use crate::scripts::{RELEASE, RENEW, release_of};

/// While there is no connection, what is due is looked at again after this long.
pub(super) const CONNECT_CHECK: Duration = Duration::from_millis(20);
/// Pauses between attempts to connect, and to finish a release, grow up to this.
const MAX_PAUSE: Duration = Duration::from_millis(500);

/// The connection, made for the first lock that is held when the thread gets to it. Once made it reconnects by itself.
enum Link {
    None,
    Connecting,
    Up(Client),
}

/// What a task of the keeper came to.
enum Done {
    Connected(Client),
    Renewed(Batch, Result<resp::Value, resp::Error>),
    /// Not renewed: their slot is migrating, and each may be at another node.
    Apart(Batch),
    Finished,
}

/// Keeps until it is closed and has nothing left to keep.
pub(super) async fn run(shared: Arc<Shared>, target: Target) {
    let mut link = Link::None;
    let mut tasks = JoinSet::new();
    let mut changes = 0;
    loop {
        if let Link::Up(client) = &link
            && client.changes() != changes
        {
            changes = client.changes();
            shared.look_at_all(true);
        }
        let now = Now::read();
        let is_time = shared.is_time(now.monotonic);
        // Not only when something is due: a node that goes away is noticed by the connections that end.
        if matches!(link, Link::None) && shared.has_work() {
            tasks.spawn(boxed(connect(target.clone())));
            link = Link::Connecting;
        }
        let client = if let Link::Up(client) = &link {
            Some(client)
        } else {
            None
        };
        if is_time {
            renew(&shared, client, now, &mut tasks);
        }
        if let Some(client) = client {
            for job in shared.take_jobs() {
                tasks.spawn(boxed(finish(client.clone(), job)));
            }
        }
        // A connect under way is for work that may be gone: nobody waits for it.
        let idle = tasks.is_empty() || matches!(link, Link::Connecting) && tasks.len() == 1;
        if idle && shared.ends() {
            return;
        }
        let mut done = next(&shared, client, changes, &mut tasks).await;
        // Whatever else is known already, before the schedule is looked through again.
        while let Some(outcome) = done {
            match outcome {
                Done::Connected(client) => {
                    changes = client.changes();
                    link = Link::Up(client);
                    // What went away before we were there to see it.
                    shared.look_at_all(false);
                }
                Done::Renewed(batch, answer) => shared.settle(batch, answer),
                Done::Apart(batch) => {
                    if let Link::Up(client) = &link {
                        for one in batch.apart() {
                            tasks.spawn(boxed(renew_one(client.clone(), one)));
                        }
                    }
                }
                Done::Finished => {}
            }
            done = tasks.try_join_next().and_then(Result::ok);
        }
    }
}

/// Submits everything that is due, in batches that are answered independently of each other.
fn renew(shared: &Arc<Shared>, client: Option<&Client>, now: Now, tasks: &mut JoinSet<Done>) {
    let mut cursor = 0;
    loop {
        let start = cursor;
        let (batches, over) = shared.submit_batch(client, now, &mut cursor);
        for hold in over {
            // Ends it with its reason. If a renewal was confirmed this very moment, it lives on.
            let _: Option<LostReason> = hold.check();
        }
        for (batch, submitted) in batches {
            tasks.spawn(boxed(async move {
                match submitted.await {
                    Err(error) if is_migrating(&error) => Done::Apart(batch),
                    answer => Done::Renewed(batch, answer),
                }
            }));
        }
        if cursor == start {
            return;
        }
    }
}

/// Renews a single hold, wherever its key is. That takes more than a submission: an ASK is to be followed, and must not be
/// remembered.
async fn renew_one(client: Client, batch: Batch) -> Done {
    let answer = match batch.renewals.first() {
        Some(Asked { hold, lease, .. }) => {
            let lease = Decimal::new(millis(*lease));
            let (keys, args) = (
                [hold.name.key().as_bytes()],
                [hold.id.as_bytes(), lease.as_bytes()],
            );
            let deadline = Instant::now() + client.command_timeout();
            client
                .eval(&RENEW.call(&keys, &args), deadline)
                .await
                .map(|evaluated| evaluated.value)
        }
        None => return Done::Finished,
    };
    Done::Renewed(batch, answer)
}

/// Whether keys of the slot are at two nodes: these at the other one, or some of them here and some there.
fn is_migrating(error: &resp::Error) -> bool {
    error.as_server().is_some_and(|error| {
        matches!(
            error.kind(),
            ServerErrorKind::Ask { .. } | ServerErrorKind::TryAgain
        )
    })
}

/// Waits for an answer, the bell, the time, or another change of the nodes than those that were seen.
async fn next(
    shared: &Shared,
    client: Option<&Client>,
    seen: u64,
    tasks: &mut JoinSet<Done>,
) -> Option<Done> {
    let mut change = pin!(client.map(|client| client.changed(seen)));
    let mut bell = pin!(shared.bell.notified());
    let until = shared.sleep_until(Instant::now());
    let mut timer = pin!(until.map(|at| tokio::time::sleep_until(at.into())));
    poll_fn(|cx| {
        if let Poll::Ready(Some(done)) = tasks.poll_join_next(cx) {
            // A task that panicked has no answer; what it was to renew stays due when it runs out.
            return Poll::Ready(done.ok());
        }
        let rings = bell.as_mut().poll(cx).is_ready();
        let is_time = timer
            .as_mut()
            .as_pin_mut()
            .is_some_and(|timer| timer.poll(cx).is_ready());
        let changes = change
            .as_mut()
            .as_pin_mut()
            .is_some_and(|change| change.poll(cx).is_ready());
        if rings || is_time || changes {
            Poll::Ready(None)
        } else {
            Poll::Pending
        }
    })
    .await
}

/// For each type of future that is spawned, all of the runtime's task is compiled anew.
fn boxed(
    future: impl Future<Output = Done> + Send + 'static,
) -> Pin<Box<dyn Future<Output = Done> + Send>> {
    Box::pin(future)
}

/// Connects, however long it takes. What waits for it ends when its time is over.
async fn connect(target: Target) -> Done {
    let mut pause = CONNECT_CHECK;
    loop {
        if let Ok(client) = Client::connect(target.clone()).await {
            return Done::Connected(client);
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(MAX_PAUSE);
    }
}

/// Releases a hold, trying until it is over anyway.
async fn finish(client: Client, job: Job) -> Done {
    let (keys, args) = release_of(&client, &job.name, &job.id);
    let mut pause = CONNECT_CHECK;
    while Instant::now() < job.until {
        let deadline = job.until.min(Instant::now() + client.command_timeout());
        match client.eval(&RELEASE.call(&keys, &args), deadline).await {
            Err(error) if Job::is_worth_it(&error) => {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(MAX_PAUSE);
            }
            // Done, or refused for good: then it ends with its lease.
            _ => break,
        }
    }
    Done::Finished
}
