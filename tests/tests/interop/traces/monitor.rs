//! What clients of a server send, by its `MONITOR`, in the form of the recording.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

/// Commands that clients send at any time, those of the start, and of who starts the servers.
const LEFT_OUT: [&str; 10] = [
    "PING", "INFO", "CLUSTER", "CLIENT", "HELLO", "SELECT", "SCRIPT", "PUBSUB", "WAIT", "KEYS",
];

/// The names that clients and their threads have in the recording.
#[derive(Default)]
pub(super) struct Names {
    clients: Vec<(String, String)>,
    threads: Vec<(String, String)>,
}

/// The lines of a server's monitor.
pub(super) struct Monitor {
    lines: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

/// A line: who sent the command, and its words.
struct Line {
    from: String,
    words: Vec<String>,
}

impl Names {
    pub(super) fn client(&mut self, id: &str, name: &str) {
        self.clients.push((id.into(), name.into()));
    }

    /// `id` is `client:thread`. The number of a thread is one for all clients.
    pub(super) fn thread(&mut self, id: &str, name: &str) {
        let number = id.split(':').nth(1).unwrap_or_default();
        self.threads.push((number.into(), name.into()));
    }

    /// The word as the recording has it.
    fn applied(&self, word: &str) -> String {
        let mut word = word.to_owned();
        for (id, client) in &self.clients {
            while let Some(at) = word.find(&format!("{id}:")) {
                let behind = &word[at + id.len() + 1..];
                let digits = behind.bytes().take_while(u8::is_ascii_digit).count();
                let (number, rest) = behind.split_at(digits);
                let known = self.threads.iter().find(|(thread, _)| thread == number);
                let thread = known.map_or(number, |(_, name)| name);
                word = format!("{}{client}:{thread}{rest}", &word[..at]);
            }
        }
        if let Some((latch, _)) = word
            .rsplit_once(':')
            .filter(|_| word.contains("_unlock_latch:"))
        {
            word = format!("{latch}:R");
        }
        word
    }
}

impl Monitor {
    pub(super) async fn start(addr: SocketAddr) -> Self {
        let mut stream = TcpStream::connect(addr).await.expect("the server is up");
        stream.write_all(b"MONITOR\r\n").await.expect("it reads");
        let mut reader = BufReader::new(stream);
        let mut ok = String::new();
        reader.read_line(&mut ok).await.expect("it answers");
        assert_eq!(ok.trim(), "+OK");
        let lines = Arc::<Mutex<Vec<String>>>::default();
        let seen = Arc::clone(&lines);
        let task = tokio::spawn(async move {
            let mut stream = reader.lines();
            while let Ok(Some(line)) = stream.next_line().await {
                let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                seen.push(line);
            }
        });
        Self { lines, task }
    }

    /// All commands so far. `scripts` are hashes by name.
    pub(super) fn commands(&self, names: &Names, scripts: &HashMap<String, String>) -> Vec<String> {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let lines: Vec<_> = lines.iter().filter_map(|line| Line::parse(line)).collect();
        let mut commands: Vec<String> = Vec::new();
        let mut is_left_out = true;
        for (at, line) in lines.iter().enumerate() {
            let words: Vec<_> = line.words.iter().map(|word| names.applied(word)).collect();
            if line.from == "lua" {
                if let Some(script) = commands.last_mut().filter(|_| !is_left_out) {
                    let sign = if script.contains(" > ") { " ; " } else { " > " };
                    script.push_str(sign);
                    script.push_str(&words.join(" "));
                }
                continue;
            }
            let command = words[0].to_ascii_uppercase();
            // A script that the server does not know runs nothing. It is loaded and sent again.
            let is_unknown = lines.get(at + 1).is_none_or(|next| next.from != "lua");
            is_left_out = LEFT_OUT.contains(&command.as_str())
                || command == "EVAL"
                || command == "EVALSHA" && is_unknown;
            if is_left_out {
                continue;
            }
            commands.push(if command == "EVALSHA" {
                script(&words, scripts)
            } else {
                words.join(" ")
            });
        }
        commands
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Line {
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

/// `name keys | arguments`.
fn script(words: &[String], scripts: &HashMap<String, String>) -> String {
    let known = scripts.iter().find(|(_, hash)| **hash == words[1]);
    let name = known.map_or_else(|| format!("unknown-{}", words[1]), |(name, _)| name.clone());
    let count: usize = words[2].parse().unwrap_or_default();
    let (keys, arguments) = words[3..].split_at(count);
    let text = format!("{name} {} | {}", keys.join(" "), arguments.join(" "));
    text.trim_end().to_owned()
}
