//! One handle over wherever the keys live: today one server.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime};

use leasehold_resp::connection::Event as ConnectionEvent;
use leasehold_resp::pool::Pool;
use leasehold_resp::{Encode, Endpoint, Error, Reply, ServerErrorKind, Value};

use crate::script::{Bit, Known, ScriptCall};
use crate::subscriptions::{Hub, Subscription};

/// Pauses between attempts at a node that is up but not able (LOADING, BUSY and the like): the first and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(200));

/// A client; clones share its connections.
#[derive(Clone)]
pub struct Client(Arc<Inner>);

struct Inner {
    pool: Pool,
    hub: Arc<Hub>,
    known: Arc<Known>,
}

/// What a script replied.
#[derive(Debug)]
pub struct Evaluated {
    /// The reply; never an error.
    pub value: Value,
    /// When the attempt that was answered was submitted, by the monotonic clock.
    pub sent: Instant,
    /// The same instant by the wall clock.
    pub sent_wall: SystemTime,
    /// Whether an earlier attempt of the same call may have run as well.
    pub repeated: bool,
}

impl Client {
    /// Connects to one server.
    ///
    /// # Errors
    ///
    /// The server cannot be reached, refuses us, or is none.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: dropping the future closes what was opened.
    pub async fn connect(endpoint: Endpoint) -> Result<Self, Error> {
        let hub = Arc::new(Hub::default());
        let known = Arc::new(Known::default());
        let (hears, learns) = (Arc::clone(&hub), Arc::clone(&known));
        let observer = Arc::new(move |connection: &_, event| {
            if matches!(event, ConnectionEvent::Down) {
                learns.forget_all();
            }
            hears.observe(connection, event);
        });
        let pool = Pool::connect(endpoint, 1, Some(observer)).await?;
        Ok(Self(Arc::new(Inner { pool, hub, known })))
    }

    /// Runs an idempotent script, and again on transient failures until `deadline`. One round trip when the server
    /// knows the script or is not known to know it (then the source goes along); two after it forgot the script.
    ///
    /// # Errors
    ///
    /// The last failure. [`Error::may_have_executed`] is true if any of the attempts may have run.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not take back what was sent.
    pub async fn eval(&self, call: &ScriptCall<'_>, deadline: Instant) -> Result<Evaluated, Error> {
        let mut attempts = Attempts { deadline, repeated: false, pause: PAUSE.0, forgotten: false };
        loop {
            let (sent, sent_wall) = (Instant::now(), SystemTime::now());
            let submitted = self.submit(call);
            let outcome = if submitted.reply.is_refused() {
                drop(submitted);
                self.0.pool.for_key(call.key()).ready(deadline).await.map_err(|error| attempts.last(error))?;
                continue;
            } else if attempts.repeated {
                // The first attempt has the whole timeout of the connection; later ones only what is left.
                let late = tokio::time::timeout_at(deadline.into(), submitted).await;
                late.unwrap_or_else(|_| Err(Error::unknown(&self.node(), "no reply in time to a repeated script")))
            } else {
                submitted.await
            };
            match outcome {
                Ok(value) => return Ok(Evaluated { value, sent, sent_wall, repeated: attempts.repeated }),
                Err(error) => attempts.failed(error).await?,
            }
        }
    }

    /// One attempt at a script, queued at once behind everything this client has queued for that key: for `Drop`,
    /// which cannot wait, and for whoever depends on the order. A `NOSCRIPT` comes back as the error.
    pub fn submit(&self, call: &ScriptCall<'_>) -> Submitted {
        let connection = self.0.pool.for_key(call.key());
        let known = &self.0.known;
        let script = call.script().bit();
        let reply = if known.has(script) { connection.submit(call) } else { connection.submit(&call.with_source()) };
        Submitted { reply, known: Arc::clone(known), script }
    }

    /// Runs one command at the node of `key`; never sent again once it may have left.
    ///
    /// # Errors
    ///
    /// See [`Error`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not take back what was sent.
    pub async fn call<E: Encode + ?Sized>(&self, key: &[u8], command: &E) -> Result<Value, Error> {
        self.0.pool.for_key(key).send(command).await
    }

    /// Subscribes to `channel`. The confirmation arrives as [`Event::Subscribed`](crate::Event).
    #[must_use]
    pub fn subscribe(&self, channel: &[u8]) -> Subscription {
        self.0.hub.subscribe(self.0.pool.first(), channel)
    }

    /// The server's name in messages.
    #[must_use]
    pub fn node(&self) -> Arc<str> {
        Arc::clone(self.0.pool.first().node())
    }

    /// Refuses further commands; connections end when those under way have been answered.
    pub fn close(&self) {
        self.0.pool.close();
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("node", &self.node()).finish_non_exhaustive()
    }
}

/// A script under way.
///
/// # Cancel safety
///
/// Dropping it abandons the reply and takes nothing back.
#[derive(Debug)]
#[must_use = "the outcome of a script is in its reply"]
pub struct Submitted {
    reply: Reply,
    known: Arc<Known>,
    script: Bit,
}

impl Submitted {
    /// Gives the outcome to a function instead; see [`Reply::detach`].
    pub fn detach(self, callback: impl FnOnce(Result<Value, Error>) + Send + 'static) {
        let Self { reply, known, script } = self;
        reply.detach(move |outcome| {
            note(&known, script, &outcome);
            callback(outcome);
        });
    }
}

impl Future for Submitted {
    type Output = Result<Value, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = std::task::ready!(Pin::new(&mut self.reply).poll(cx));
        note(&self.known, self.script, &outcome);
        Poll::Ready(outcome)
    }
}

/// Remembers what an answer says of the server's script cache.
fn note(known: &Known, script: Bit, outcome: &Result<Value, Error>) {
    match outcome {
        Ok(_) => known.learn(script),
        Err(error) if is_no_script(error) => known.forget(script),
        Err(_) => {}
    }
}

fn is_no_script(error: &Error) -> bool {
    error.as_server().is_some_and(|server| *server.kind() == ServerErrorKind::NoScript)
}

/// What the attempts of one call have come to so far.
struct Attempts {
    deadline: Instant,
    /// An attempt without an answer may have run.
    repeated: bool,
    /// The next pause at a node that is not able.
    pause: Duration,
    /// The server forgot the script once; a script may itself answer `NOSCRIPT`, so not again.
    forgotten: bool,
}

impl Attempts {
    /// Ends the call with `error`, or returns when the next attempt may start.
    async fn failed(&mut self, error: Error) -> Result<(), Error> {
        self.repeated |= error.may_have_executed();
        if is_no_script(&error) && !self.forgotten {
            self.forgotten = true;
            return Ok(());
        }
        if !error.is_transient() || Instant::now() + self.pause >= self.deadline {
            return Err(self.last(error));
        }
        if error.as_server().is_some() {
            tokio::time::sleep(self.pause).await;
            self.pause = (self.pause * 2).min(PAUSE.1);
        }
        Ok(())
    }

    /// `error`, unless it says "not sent" of an attempt while an earlier one may have run.
    fn last(&self, error: Error) -> Error {
        if self.repeated && !error.may_have_executed() {
            let detail = format!("{}; an earlier attempt may have run", error.detail());
            return Error::unknown(&Arc::from(error.node()), detail).with_source(error);
        }
        error
    }
}
