//! What clients send to a server, and what its scripts run, as its `MONITOR` tells it.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

/// The lines of a server's monitor.
pub(crate) struct Monitor {
    lines: Arc<Mutex<Vec<Line>>>,
    task: JoinHandle<()>,
}

/// A line: who sent the command, or `lua` for a script, and its words. Spaces within words are underscores.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) from: String,
    pub(crate) words: Vec<String>,
}

impl Monitor {
    /// Keeps the lines that are `wanted`, from now on.
    pub(crate) async fn start(
        addr: SocketAddr,
        wanted: impl Fn(&Line) -> bool + Send + 'static,
    ) -> Self {
        let mut stream = TcpStream::connect(addr).await.expect("the server is up");
        stream.write_all(b"MONITOR\r\n").await.expect("it reads");
        let mut reader = BufReader::new(stream);
        let mut ok = String::new();
        reader.read_line(&mut ok).await.expect("it answers");
        assert_eq!(ok.trim(), "+OK");
        let lines = Arc::<Mutex<Vec<Line>>>::default();
        let seen = Arc::clone(&lines);
        let task = tokio::spawn(async move {
            let mut stream = reader.lines();
            while let Ok(Some(line)) = stream.next_line().await {
                let line = Line::parse(&line).filter(&wanted);
                let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                seen.extend(line);
            }
        });
        Self { lines, task }
    }

    /// The lines so far. No more come in while they are read.
    pub(crate) fn lines(&self) -> MutexGuard<'_, Vec<Line>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many lines so far are of this kind.
    pub(crate) fn count(&self, is_it: impl Fn(&Line) -> bool) -> usize {
        self.lines().iter().filter(|line| is_it(line)).count()
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Line {
    /// Whether it is this command.
    pub(crate) fn is(&self, command: &str) -> bool {
        self.words[0].eq_ignore_ascii_case(command)
    }

    /// Whether this is one of its words.
    pub(crate) fn has(&self, word: &str) -> bool {
        self.words.iter().any(|one| one == word)
    }

    /// Whether it calls a script.
    pub(crate) fn is_script(&self) -> bool {
        self.is("EVALSHA") || self.is("EVAL")
    }

    /// From `+1795336255.577101 [0 127.0.0.1:55422] "GET" "c"`.
    fn parse(line: &str) -> Option<Self> {
        let (head, mut rest) = line.split_once("] ")?;
        let from = head.split_once('[')?.1.split_once(' ')?.1.to_owned();
        let mut words = Vec::new();
        while let Some(open) = rest.find('"') {
            let text = &rest[open + 1..];
            let mut close = 0;
            while text.as_bytes().get(close)? != &b'"' {
                close += if text.as_bytes()[close] == b'\\' {
                    2
                } else {
                    1
                };
            }
            words.push(text[..close].replace(' ', "_"));
            rest = &text[close + 1..];
        }
        (!words.is_empty()).then_some(Self { from, words })
    }
}
