//! A server in memory: the keys, the channels and the scripts that the locks use, without a process, a socket or a thread.
//!
//! A connection to it is a stream in the same process. What is written there is executed at once, by the task that writes, and
//! the replies are there when that returns.

mod commands;
mod keyspace;
mod messages;
mod reply;
mod script;
mod session;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;

use messages::Messages;
use script::Scripts;
pub(super) use session::Session;

use self::keyspace::Keyspace;
use self::reply::{Outcome, Reply};
use super::clock::FakeClock;
use crate::engine::sync::lock;

/// A server in memory.
pub(super) struct Server {
    /// Locked for as long as a command or a script runs: one at a time.
    scripts: Mutex<Scripts>,
    data: Arc<Mutex<Data>>,
    /// Among those of its fake.
    number: usize,
    clock: Arc<FakeClock>,
    next_session: AtomicU64,
}

/// The state that commands change, whether a client or a script calls them.
#[derive(Debug, Default)]
struct Data {
    keys: Keyspace,
    messages: Messages,
}

impl Server {
    pub(super) fn new(number: usize, clock: Arc<FakeClock>) -> Arc<Self> {
        let data = Arc::<Mutex<Data>>::default();
        Arc::new(Self {
            scripts: Mutex::new(Scripts::new(&data)),
            data,
            number,
            clock,
            next_session: AtomicU64::new(1),
        })
    }

    /// A new connection.
    pub(super) fn connect(self: &Arc<Self>) -> Session {
        let id = self.next_session.fetch_add(1, Ordering::Relaxed);
        Session::new(Arc::clone(self), id)
    }

    /// Forgets everything.
    pub(super) fn forget(&self) {
        let _turn = lock(&self.scripts);
        lock(&self.data).keys.remove_if(|_| true);
    }

    /// Ends all connections, and answers none that is opened from now on.
    pub(super) fn stop(&self) {
        // What runs at this moment runs to its end.
        let _turn = lock(&self.scripts);
        lock(&self.data).messages.stop();
        self.wake();
    }

    /// Answers again, also those who have connected meanwhile.
    pub(super) fn start(&self) {
        lock(&self.data).messages.start();
        self.wake();
    }

    /// Whether clients have read all that they were sent.
    pub(super) fn is_read(&self) -> bool {
        lock(&self.data).messages.is_read()
    }

    /// Runs a command for the connection with this number.
    fn run(&self, session: u64, args: &[Vec<u8>]) -> Vec<Reply> {
        let mut scripts = lock(&self.scripts);
        lock(&self.data).keys.set_time(self.clock.wall_micros());
        let Some(name) = args.first() else {
            return vec![Reply::Error("ERR an empty command".to_owned())];
        };
        let outcome = match name.to_ascii_uppercase().as_slice() {
            b"EVAL" => scripts.eval(args),
            b"EVALSHA" => scripts.eval_sha(args),
            b"SUBSCRIBE" | b"SSUBSCRIBE" | b"UNSUBSCRIBE" | b"SUNSUBSCRIBE" => {
                return lock(&self.data).messages.subscription(session, args);
            }
            b"HELLO" => {
                if let Some(inbox) = lock(&self.data).messages.inbox(session) {
                    inbox.is_resp3 = args.get(1).is_some_and(|version| version == b"3");
                }
                Ok(hello(session))
            }
            b"SCRIPT" => scripts.load(args),
            b"CLIENT" => client(args),
            b"INFO" => Ok(info(self.number)),
            b"ROLE" => Ok(Reply::Array(vec![
                Reply::text("master"),
                Reply::Int(0),
                Reply::Array(Vec::new()),
            ])),
            b"PING" => Ok(Reply::Status("PONG")),
            b"SELECT" => Ok(Reply::OK),
            b"WAIT" => Ok(Reply::Int(0)),
            _ => lock(&self.data).run(args),
        };
        vec![outcome.unwrap_or_else(Reply::Error)]
    }

    /// Wakes those who have something to read.
    fn wake(&self) {
        let wakers = lock(&self.data).messages.take_wakers();
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Data {
    /// Runs a command that scripts may call too.
    fn run(&mut self, args: &[Vec<u8>]) -> Outcome {
        let Self { keys, messages } = self;
        let name = args.first().map(|name| name.to_ascii_uppercase());
        match (name.as_deref().unwrap_or_default(), args) {
            (name @ (b"PUBLISH" | b"SPUBLISH"), [_, channel, message]) => {
                let is_sharded = name == b"SPUBLISH";
                Ok(Reply::Int(messages.publish(is_sharded, channel, message)))
            }
            (b"PUBSUB", [_, what, channels @ ..]) => {
                let is_sharded = what.eq_ignore_ascii_case(b"SHARDNUMSUB");
                Ok(messages.listeners(is_sharded, channels))
            }
            _ => commands::run(keys, args).unwrap_or_else(|| Err(unknown(args))),
        }
    }
}

fn hello(session: u64) -> Reply {
    let entries = [
        ("server", Reply::text("redis")),
        ("version", Reply::text("7.0.15")),
        ("proto", Reply::Int(3)),
        ("id", Reply::Int(session as i64)),
        ("mode", Reply::text("standalone")),
        ("role", Reply::text("master")),
        ("modules", Reply::Array(Vec::new())),
    ];
    let entry = |(name, value)| [Reply::text(name), value];
    Reply::Map(entries.into_iter().flat_map(entry).collect())
}

fn client(args: &[Vec<u8>]) -> Outcome {
    let what = args.get(1).map(|what| what.to_ascii_uppercase());
    match what.as_deref() {
        Some(b"SETINFO" | b"SETNAME") => Ok(Reply::OK),
        // A command that was written has been executed: there is no connection to be killed.
        Some(b"KILL") => Ok(Reply::Int(0)),
        _ => Err(unknown(args)),
    }
}

/// It was started long ago, and evicts nothing.
fn info(number: usize) -> Reply {
    Reply::text(format!(
        "run_id:{number:040}\r\n\
         uptime_in_seconds:31536000\r\n\
         role:master\r\n\
         maxmemory_policy:noeviction\r\n"
    ))
}

fn unknown(args: &[Vec<u8>]) -> String {
    let name = args.first().map(|name| String::from_utf8_lossy(name));
    format!(
        "ERR unknown command '{}', with args beginning with: ",
        name.unwrap_or_default()
    )
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").finish_non_exhaustive()
    }
}
