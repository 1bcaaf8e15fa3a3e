//! The renewal worker: a thread with a runtime and connections of its own, so that a user's runtime that is blocked or busy
//! loses no locks.
//!
//! It starts with the first lock that needs renewing, or the first release that failed.

use std::future::{Future, poll_fn};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use leasehold_cluster::{Client, Monitor, Target};
use leasehold_resp as resp;
use tokio::task::JoinSet;

use super::super::registry::{Registry, SpawnWorker};
use super::super::release::{is_retryable, leaves_work};
use super::super::work_queue::PendingEnd;
use super::rounds::{self, Ran, Rounds};
use super::{Batch, Worth, cut, is_migrating, settle, submit_due};
use crate::process::name_for_renewals;

/// While there is no connection, what is due is looked at again after this long.
const CONNECT_CHECK: Duration = Duration::from_millis(20);
/// Ends that failed are repeated together: those that come within this time after others, up to [`ENDS`].
const GATHER: Duration = Duration::from_millis(5);
/// Ends that are repeated by one task.
const ENDS: usize = 128;
/// Pauses between attempts to connect, and to finish an end, grow up to this.
const MAX_PAUSE: Duration = Duration::from_millis(500);

/// Pause between releases of a hold that a late request may take again.
const OUTLIVE_PAUSE: Duration = Duration::from_millis(500);

/// The worker's client, which is made for the first work that takes one. Once made it reconnects by itself.
enum Connected {
    No,
    Connecting,
    Yes(Client),
}

/// The result of a task of the worker.
enum Done {
    Connected(Client),
    Renewed(Batch, Result<resp::Value, resp::Error>, Worth),
    Round(Ran),
    /// Not renewed: their slot is migrating, and each may be at another node.
    Apart(Batch),
    Finished,
}

/// A function that starts the worker, which connects to `target` by itself; `lease` is the usual one.
pub(crate) fn spawner(mut target: Target, lease: Duration) -> SpawnWorker {
    name_for_renewals(&mut target);
    // Several attempts must fit between the first renewal and the end of a lease.
    let timeout = (lease / 6).max(Duration::from_millis(100));
    for endpoint in target.endpoints_mut() {
        endpoint.command_timeout = endpoint.command_timeout.min(timeout);
        endpoint.connect_timeout = endpoint.connect_timeout.min(timeout);
    }
    Box::new(move |registry| spawn(registry, target.clone()))
}

fn spawn(registry: Arc<Registry>, target: Target) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let runtime = Arc::new(runtime);
    let ours = Arc::clone(&runtime);
    let spawned = std::thread::Builder::new()
        .name("leasehold-keeper".into())
        .spawn(move || {
            let mut worker = Worker::new(target);
            // A waker or a callback of the user may panic. What was under way goes on.
            while catch_unwind(AssertUnwindSafe(|| runtime.block_on(worker.run(&registry))))
                .is_err()
            {
                // The answer that was being settled is lost: its holds are renewed again.
                registry.work.look_at_all(false);
            }
        });
    // Without a thread it ends here, in a task of the user, where a runtime that is dropped panics.
    if let Some(runtime) = Arc::into_inner(ours) {
        runtime.shutdown_background();
    }
    spawned.map(drop)
}

/// The state that survives a panic in a part of the work.
struct Worker {
    target: Target,
    connected: Connected,
    /// The changes of the nodes that were acted upon.
    changes: u64,
    /// Renewals that replicas confirm.
    rounds: Rounds,
    tasks: JoinSet<Done>,
    /// When ends that failed were taken up last.
    gathered: Option<Instant>,
}

impl Worker {
    fn new(target: Target) -> Self {
        Self {
            target,
            connected: Connected::No,
            changes: 0,
            rounds: Rounds::default(),
            tasks: JoinSet::new(),
            gathered: None,
        }
    }

    /// Works until it is closed and has nothing left to do.
    async fn run(&mut self, registry: &Arc<Registry>) {
        loop {
            if let Connected::Yes(client) = &self.connected
                && client.changes() != self.changes
            {
                self.changes = client.changes();
                registry.work.look_at_all(true);
                registry.presence.doubt();
            }
            // Not only when something is due: a node that goes away is noticed by the connections that end.
            if matches!(self.connected, Connected::No)
                && (registry.work.needs_connection()
                    || registry.presence.is_due(registry.clock.now()))
            {
                let monitor = registry.telemetry.renewing_monitor();
                self.tasks
                    .spawn(boxed(connect(self.target.clone(), monitor)));
                self.connected = Connected::Connecting;
            }
            let look_again = self.work(registry);
            // A connect under way is for work that may be gone: nothing waits for it.
            let idle = self.tasks.is_empty()
                || matches!(self.connected, Connected::Connecting) && self.tasks.len() == 1;
            if idle && registry.work.may_end() {
                return;
            }
            let mut done = self.next(registry, look_again).await;
            // Whatever else is known already, before the schedule is looked through again.
            while let Some(outcome) = done {
                self.settle(registry, outcome);
                done = self.tasks.try_join_next().and_then(Result::ok);
            }
        }
    }

    /// Acts on the result of a task.
    fn settle(&mut self, registry: &Registry, outcome: Done) {
        match outcome {
            Done::Connected(client) => {
                self.changes = client.changes();
                self.connected = Connected::Yes(client);
                // Nodes may have gone away before there was a connection to notice it.
                registry.work.look_at_all(false);
            }
            Done::Renewed(batch, answer, worth) => settle(registry, &batch, answer, worth),
            Done::Round(ran) => {
                for batch in self.rounds.settle(registry, ran) {
                    if let Connected::Yes(client) = &self.connected {
                        for one in batch.apart() {
                            self.tasks.spawn(boxed(confirm_one(client.clone(), one)));
                        }
                    }
                }
            }
            Done::Apart(batch) => {
                if let Connected::Yes(client) = &self.connected {
                    for one in batch.apart() {
                        self.tasks.spawn(boxed(renew_one(client.clone(), one)));
                    }
                }
            }
            Done::Finished => {}
        }
    }

    /// Begins everything that can be done now. Returns when to go on with ends that have failed since the last ones were taken
    /// up, if there are any.
    fn work(&mut self, registry: &Arc<Registry>) -> Option<Instant> {
        let client = self.connected.client();
        let now = registry.clock.read();
        if registry.work.is_time(now.monotonic) {
            let submitted = submit_due(registry, client, &mut self.rounds, now, CONNECT_CHECK);
            for (batch, submitted) in submitted {
                self.tasks.spawn(boxed(async move {
                    match submitted.await {
                        Err(error) if is_migrating(&error) => Done::Apart(batch),
                        answer => Done::Renewed(batch, answer, Worth::Counts),
                    }
                }));
            }
        }
        let client = client?;
        for start in self.rounds.start(registry, client) {
            let client = client.clone();
            self.tasks.spawn(boxed(async move {
                Done::Round(rounds::run(client, start).await)
            }));
        }
        if registry.presence.is_due(now.monotonic)
            && let Some(lasts) = registry
                .presence
                .begin(now.monotonic, || registry.is_busy())
        {
            let (client, registry) = (client.clone(), Arc::clone(registry));
            self.tasks.spawn(boxed(async move {
                registry.presence.refresh(&client, lasts).await;
                Done::Finished
            }));
        }
        let waiting = registry.work.ends();
        if waiting == 0 {
            return None;
        }
        let gathering = self.gathered.map(|at| at + GATHER);
        if waiting < ENDS
            && let Some(until) = gathering.filter(|&until| now.monotonic < until)
        {
            return Some(until);
        }
        self.gathered = Some(now.monotonic);
        // An end whose earlier requests may still arrive takes more than one answer, and must hold up no other end.
        let (together, alone): (Vec<_>, Vec<_>) = registry
            .work
            .take_ends()
            .into_iter()
            .partition(|end| end.unanswered.is_empty());
        for end in alone {
            self.tasks.spawn(boxed(finish(client.clone(), vec![end])));
        }
        for ends in cut(together, ENDS) {
            self.tasks.spawn(boxed(finish(client.clone(), ends)));
        }
        None
    }

    /// Waits for an answer, for work, for the time, or for another change of the nodes than those that were seen.
    async fn next(&mut self, registry: &Registry, look_again: Option<Instant>) -> Option<Done> {
        let Self {
            connected,
            changes,
            tasks,
            ..
        } = self;
        let mut change = pin!(connected.client().map(|client| client.changed(*changes)));
        let mut more_work = pin!(registry.work.changed());
        let until = registry.work.sleep_until(registry.clock.now());
        // Until the connection is there, nothing can be done about that.
        let refresh = match connected {
            Connected::Connecting => None,
            Connected::No | Connected::Yes(_) => registry.presence.next_at(),
        };
        let until = until.into_iter().chain(look_again).chain(refresh).min();
        let mut timer = pin!(until.map(|at| registry.clock.sleep_until(at)));
        let activity = &registry.work.activity;
        poll_fn(|cx| {
            let calls = activity.calls();
            if let Poll::Ready(Some(done)) = tasks.poll_join_next(cx) {
                activity.work();
                // A task that panicked has no answer; what it was to renew stays due when it runs out.
                return Poll::Ready(done.ok());
            }
            let has_work = more_work.as_mut().poll(cx).is_ready();
            let is_time = timer
                .as_mut()
                .as_pin_mut()
                .is_some_and(|timer| timer.poll(cx).is_ready());
            let changes = change
                .as_mut()
                .as_pin_mut()
                .is_some_and(|change| change.poll(cx).is_ready());
            if has_work || is_time || changes {
                activity.work();
                return Poll::Ready(None);
            }
            if tasks.is_empty() {
                activity.rest(calls);
            }
            Poll::Pending
        })
        .await
    }
}

impl Connected {
    const fn client(&self) -> Option<&Client> {
        match self {
            Self::Yes(client) => Some(client),
            Self::No | Self::Connecting => None,
        }
    }
}

/// Renews a single hold, wherever its key is. That takes more than a submission: an ASK is to be followed, and must not be
/// remembered.
async fn renew_one(client: Client, batch: Batch) -> Done {
    let mut answer = None;
    for call in batch.calls_apart() {
        let slices = call.slices();
        let deadline = Instant::now() + client.command_timeout();
        let evaluated = client.eval(&slices.call(), deadline).await;
        let reply = evaluated.map(|evaluated| evaluated.value);
        let goes_on = reply.as_ref().is_ok_and(|reply| batch.is_held(reply));
        answer = Some(reply);
        if !goes_on {
            break;
        }
    }
    match answer {
        Some(answer) => Done::Renewed(batch, answer, Worth::Counts),
        None => Done::Finished,
    }
}

/// The same for a hold that replicas confirm.
async fn confirm_one(client: Client, mut batch: Batch) -> Done {
    if let Some(first) = batch.renewals.first() {
        batch.sent = first.hold.clock().read();
    }
    let (answer, worth) = rounds::run_one(&client, &batch).await;
    Done::Renewed(batch, answer, worth)
}

/// For each type of future that is spawned, all of the runtime's task is compiled anew.
fn boxed(
    future: impl Future<Output = Done> + Send + 'static,
) -> Pin<Box<dyn Future<Output = Done> + Send>> {
    Box::pin(future)
}

/// Connects, however long it takes. What waits for it ends when its time is over.
async fn connect(target: Target, monitor: Arc<Monitor>) -> Done {
    let mut pause = CONNECT_CHECK;
    loop {
        let connected = Client::connect_monitored(target.clone(), Arc::clone(&monitor));
        if let Ok(client) = connected.await {
            return Done::Connected(client);
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(MAX_PAUSE);
    }
}

/// Repeats ends until each is done, or over in any case.
async fn finish(client: Client, mut ends: Vec<PendingEnd>) -> Done {
    // The first one waits for the connection; the others, then, are submitted together. A submission follows no redirect.
    while let Some(first) = ends.pop() {
        finish_one(&client, first).await;
        let submit = |end: PendingEnd| {
            let submitted = client.submit(&end.call.as_call());
            (submitted, end)
        };
        let submitted: Vec<_> = ends.drain(..).map(submit).collect();
        for (submitted, end) in submitted {
            match submitted.await {
                Err(error) if !leaves_work(&error) => {}
                Err(error) if error.as_server().is_some() => finish_one(&client, end).await,
                Err(_) => ends.push(end),
                Ok(_) => {}
            }
        }
    }
    Done::Finished
}

/// Repeats the end of a hold until nothing that was sent before can undo it, or it is over in any case.
async fn finish_one(client: &Client, mut end: PendingEnd) {
    let call = end.call.as_call();
    let mut pause = CONNECT_CHECK;
    while Instant::now() < end.until {
        let deadline = end.until.min(Instant::now() + client.command_timeout());
        match client.end(&call, &mut end.unanswered, deadline).await {
            // Refused for good: it ends with its lease.
            Err(error) if !is_retryable(&error) => break,
            Ok(_) if end.unanswered.is_empty() => break,
            // The request that it ends may still arrive over a connection that cannot be killed.
            Ok(_) => tokio::time::sleep(OUTLIVE_PAUSE).await,
            Err(_) => {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(MAX_PAUSE);
            }
        }
    }
}
