//! Records the lines of tickets at a server: who joined, who was granted the lock, who left.
//!
//! The server itself tells, by `MONITOR`: every command in the order of its execution, those of
//! scripts too. A model of the locks and their lines follows these commands, and is compared with
//! the server's state now and then. Where the record has a gap (the server was restarted, the watch
//! was cut off, a slot moved) the state becomes known anew, and nothing is concluded across that.

mod monitor;
mod replay;

use std::io::{Error, ErrorKind, Result};
use std::net::SocketAddr;
use std::time::SystemTime;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::{Duration, Instant, MissedTickBehavior, interval, sleep, timeout};

use crate::history::{Recorder, What, micros, now};
use crate::raw::{Raw, RawValue};
use crate::wait::PROBE;
use monitor::Command;
use replay::{Replay, State};

/// Interval between two comparisons with the server's state.
const COMPARE: Duration = Duration::from_millis(200);

/// Pause before a connection is opened again.
const RECONNECT: Duration = Duration::from_millis(20);

/// A delay of this process above this is recorded: others may not have run either.
const STALL: Duration = Duration::from_millis(200);

/// State of a lock and of its line; the last argument finds it in the record.
const LOOK: &str = "return {redis.call('HKEYS', KEYS[1]), redis.call('PTTL', KEYS[1]), \
    redis.call('ZRANGE', KEYS[2], 0, -1, 'WITHSCORES')}";

/// Watches until dropped.
#[derive(Debug)]
pub struct LineWatch {
    task: JoinHandle<()>,
}

impl LineWatch {
    /// Watches the locks `keys` at the server at `addr`, whatever becomes of it.
    #[must_use]
    pub fn start(addr: SocketAddr, keys: Vec<String>, recorder: Recorder) -> Self {
        let task = tokio::spawn(async move {
            loop {
                let mut watched = Watched {
                    replay: Replay::new(&keys),
                    server: addr.to_string(),
                    recorder: recorder.clone(),
                    comparisons: 0,
                };
                // It ends with the connection: the next one begins anew.
                let _ = watched.follow(addr).await;
                watched.replay.forget();
                watched.record();
                sleep(RECONNECT).await;
            }
        });
        Self { task }
    }
}

impl Drop for LineWatch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The record of one connection.
struct Watched {
    replay: Replay,
    server: String,
    recorder: Recorder,
    comparisons: u64,
}

impl Watched {
    async fn follow(&mut self, addr: SocketAddr) -> Result<()> {
        let mut asking = Raw::connect(addr).await?;
        let mut monitor = monitored(addr).await?;
        let mut compare = interval(COMPARE);
        compare.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                line = monitor.next_line() => {
                    let line = line?.ok_or(ErrorKind::UnexpectedEof)?;
                    if let Some(command) = Command::parse(&line) {
                        self.replay.apply(&command);
                        self.record();
                    }
                }
                due = compare.tick() => {
                    self.note_stall(due);
                    self.compare(&mut asking).await?;
                }
            }
        }
    }

    /// Asks for the state of each lock. It holds at the point of the record at which the question
    /// stands.
    async fn compare(&mut self, asking: &mut Raw) -> Result<()> {
        let role = ask(asking, &["ROLE"]).await?;
        let is_master = role.error().is_none()
            && role
                .array()
                .first()
                .is_some_and(|role| role.str() == "master");
        for key in self.replay.keys() {
            if !is_master {
                self.replay.unknown(&key);
                continue;
            }
            self.comparisons += 1;
            let (line, marker) = (replay::line_of(&key), format!("#{}", self.comparisons));
            let state = ask(asking, &["EVAL", LOOK, "2", &key, &line, &marker]).await?;
            match state.error() {
                // It is at another node, or on its way there.
                Some(_) => self.replay.unknown(&key),
                None => self.replay.expect(marker, key, read_state(&state)),
            }
        }
        self.record();
        Ok(())
    }

    fn record(&mut self) {
        let offset = wall_clock().saturating_sub(now());
        for (key, at, change) in self.replay.take() {
            self.recorder.record(What::Line {
                server: self.server.clone(),
                key,
                when: at.saturating_sub(offset),
                change,
            });
        }
    }

    fn note_stall(&self, due: Instant) {
        if due.elapsed() > STALL {
            let since = now().saturating_sub(micros(due.elapsed()));
            self.recorder.record(What::Stalled { since });
        }
    }
}

/// A connection on which the server tells all that it executes.
async fn monitored(addr: SocketAddr) -> Result<Lines<BufReader<TcpStream>>> {
    let mut stream = timeout(PROBE, TcpStream::connect(addr)).await??;
    stream.write_all(b"MONITOR\r\n").await?;
    Ok(BufReader::new(stream).lines())
}

async fn ask(raw: &mut Raw, command: &[&str]) -> Result<RawValue> {
    timeout(PROBE, raw.try_cmd(command))
        .await
        .map_err(|_| Error::from(ErrorKind::TimedOut))?
}

fn read_state(reply: &RawValue) -> State {
    let [holders, pttl, line] = reply.array() else {
        panic!("three values were asked for: {reply:?}")
    };
    State {
        holder: holders.array().first().map(|id| id.str().to_owned()),
        left: Duration::from_millis(u64::try_from(pttl.int()).unwrap_or(0)),
        tickets: line
            .array()
            .chunks_exact(2)
            .map(|pair| (pair[0].str().to_owned(), replay::score(pair[1].str())))
            .collect(),
    }
}

/// Microseconds since 1970, which is what servers tell.
fn wall_clock() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().map_or(0, micros)
}
