//! The Java half: a process of `interop/`, with its clients and threads.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use leasehold_testkit::Scratch;
use leasehold_testkit::process::{Watched, freeze, thaw};
use tokio::sync::oneshot;

use crate::support::{until, within};

/// Upper bound on the start of a JVM and a client, on a busy machine.
const STARTS: Duration = Duration::from_secs(60);

/// The program of the Java half.
const MAIN: &str = "leasehold.interop.Main";

/// A process that plays Redisson's part.
pub(crate) struct Jvm {
    process: Mutex<Watched>,
    commands: Mutex<File>,
    waiting: Arc<Mutex<Waiting>>,
    next: AtomicU64,
    dir: Scratch,
}

/// Calls without an answer; nobody answers any more if it is `None`.
type Waiting = Option<HashMap<u64, oneshot::Sender<Answer>>>;

/// A client of Redisson's, which has a connection and an id of its own.
#[derive(Clone)]
pub(crate) struct Client {
    jvm: Arc<Jvm>,
    name: String,
    id: String,
}

/// A thread of such a client: an owner of locks.
pub(crate) struct Thread {
    client: Client,
    name: String,
}

/// A call that was begun.
pub(crate) struct Pending {
    call: String,
    answer: oneshot::Receiver<Answer>,
}

/// What a call gave, and when it began and ended on the clock of histories.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) begin: u64,
    pub(crate) end: u64,
    pub(crate) result: String,
}

/// The process that most tests share; `None` without a JDK, which is said on a line.
pub(crate) fn shared() -> Option<Arc<Jvm>> {
    static SHARED: OnceLock<Option<Arc<Jvm>>> = OnceLock::new();
    let shared = SHARED.get_or_init(|| is_there().then(|| Jvm::start(MAIN)));
    if shared.is_none() {
        println!("skipped: no JDK");
    }
    shared.clone()
}

/// Another process, to be killed or frozen; `None` as with [`shared`].
pub(crate) fn another() -> Option<Arc<Jvm>> {
    shared().map(|_| Jvm::start(MAIN))
}

/// One on a host whose clock is this much ahead: by it Redisson decides what is over. `None` as with [`shared`].
pub(crate) fn ahead(time: Duration) -> Option<Arc<Jvm>> {
    let program = format!("leasehold.interop.Ahead {}", time.as_millis());
    shared().map(|_| Jvm::start(&program))
}

fn is_there() -> bool {
    let java = Command::new("java").arg("-version").output();
    java.is_ok_and(|java| java.status.success())
}

/// The folder of the Java half.
pub(crate) fn home() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../interop")
}

impl Jvm {
    fn start(program: &str) -> Arc<Self> {
        let target = home().join("target");
        assert!(
            target.join("lib").is_dir(),
            "the Java half is not built: run `make interop`"
        );
        let dir = Scratch::new();
        let pipe = |name| {
            let path = dir.join(name);
            let made = Command::new("mkfifo").arg(&path).status();
            assert!(made.is_ok_and(|made| made.success()), "cannot make a pipe");
            path
        };
        let (input, output) = (pipe("in"), pipe("out"));
        let target = target.display();
        let script = format!(
            "exec java -Xmx128m -Xss512k -XX:+UseSerialGC -XX:TieredStopAtLevel=1 \
             -cp '{target}/classes:{target}/lib/*' {program} <in >out"
        );
        let log = dir.join("log");
        let shell = Path::new("sh");
        let process = Watched::spawn(shell, &["-c".into(), script], dir.path(), &log);
        let open = |options: &mut OpenOptions, path| options.open(path).expect("the pipe opens");
        let commands = open(OpenOptions::new().write(true), &input);
        let answers = open(OpenOptions::new().read(true), &output);
        let waiting = Arc::new(Mutex::new(Some(HashMap::new())));
        let receivers = Arc::clone(&waiting);
        std::thread::spawn(move || deliver(answers, &receivers));
        Arc::new(Self {
            process: Mutex::new(process),
            commands: Mutex::new(commands),
            waiting,
            next: AtomicU64::new(0),
            dir,
        })
    }

    /// A client of the server or cluster at `url`.
    pub(crate) async fn client(self: &Arc<Self>, url: &str, options: &[&str]) -> Client {
        let name = format!("C{}", self.next.fetch_add(1, Ordering::Relaxed));
        let command = format!("new {name} {url} {}", options.join(" "));
        let answer = self.send(command.trim_end()).answer_within(STARTS).await;
        let id =
            answer.unwrap_or_else(|call| panic!("{call}: not within {STARTS:?}; {}", self.log()));
        Client {
            jvm: Arc::clone(self),
            name,
            id,
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        lock(&self.process).pid()
    }

    pub(crate) fn kill(&self) {
        lock(&self.process).kill();
    }

    pub(crate) fn freeze(&self) {
        freeze(self.pid());
    }

    pub(crate) fn thaw(&self) {
        thaw(self.pid());
    }

    fn send(&self, command: &str) -> Pending {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, answer) = oneshot::channel();
        if let Some(waiting) = lock(&self.waiting).as_mut() {
            waiting.insert(id, sender);
        }
        // An error is the end of the process, of which the receiver hears.
        let _ = lock(&self.commands).write_all(format!("{id} {command}\n").as_bytes());
        Pending {
            call: command.into(),
            answer,
        }
    }

    /// What the process said on its error output.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }
}

impl Client {
    /// A thread that does nothing else.
    pub(crate) fn thread(&self) -> Thread {
        let number = self.jvm.next.fetch_add(1, Ordering::Relaxed);
        self.thread_named(&format!("T{number}"))
    }

    pub(crate) fn thread_named(&self, name: &str) -> Thread {
        Thread {
            client: self.clone(),
            name: name.into(),
        }
    }

    /// Ends it.
    pub(crate) fn end(&self) {
        drop(self.jvm.send(&format!("end {}", self.name)));
    }

    /// Its name for the parts of multi-locks.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The first part of the ids of its holds.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }
}

impl Thread {
    /// Calls `kind(name).method(arguments)` and waits for the result.
    pub(crate) async fn call(&self, call: impl AsRef<str>) -> Answer {
        self.begin(call).answer().await
    }

    /// The same, for a call that must not fail.
    pub(crate) async fn ok(&self, call: impl AsRef<str>) -> String {
        self.call(call).await.ok().to_owned()
    }

    /// The same, for a call that says yes or no.
    pub(crate) async fn says(&self, call: impl AsRef<str>) -> bool {
        let said = self.ok(call).await;
        said.parse()
            .unwrap_or_else(|_| panic!("neither true nor false: {said}"))
    }

    /// Calls without waiting for the result.
    pub(crate) fn begin(&self, call: impl AsRef<str>) -> Pending {
        let (client, call) = (&self.client, call.as_ref());
        let command = format!("{}/{} {call}", client.name, self.name);
        client.jvm.send(&command)
    }

    /// Waits until it sleeps until a message comes: a waiter of Redisson's has asked, subscribed, and asked again by then, all in
    /// vain.
    pub(crate) async fn sleeps(&self) {
        until("Redisson's thread sleeps", async || {
            self.says("sleeps").await
        })
        .await;
    }

    /// The id of its holds.
    pub(crate) async fn id(&self) -> String {
        self.ok("thread").await
    }
}

impl Pending {
    pub(crate) async fn answer(self) -> Answer {
        let call = self.call;
        within(&call, self.answer)
            .await
            .unwrap_or_else(|_| panic!("{call}: the JVM has ended"))
    }

    /// Waits for so long for a result; an error with the call if there is none.
    pub(crate) async fn answer_within(self, time: Duration) -> Result<String, String> {
        match tokio::time::timeout(time, self.answer).await {
            Ok(Ok(answer)) => Ok(answer.ok().to_owned()),
            Ok(Err(_)) => Err(format!("{}: the JVM has ended", self.call)),
            Err(_) => Err(self.call),
        }
    }

    /// Whether there is no answer so far.
    pub(crate) fn is_blocked(&self) -> bool {
        self.answer.is_empty()
    }

    /// Fails if there is an answer within this time.
    pub(crate) async fn is_blocked_for(&mut self, time: Duration) {
        let answer = tokio::time::timeout(time, &mut self.answer).await;
        assert!(answer.is_err(), "{}: {answer:?}", self.call);
    }
}

impl Answer {
    /// The result, unless the call threw something.
    #[track_caller]
    pub(crate) fn ok(&self) -> &str {
        assert!(!self.result.starts_with("throws "), "{self:?}");
        &self.result
    }

    /// Whether the call threw something of this class.
    pub(crate) fn threw(&self, class: &str) -> bool {
        self.result.starts_with(&format!("throws {class}:"))
    }
}

/// Hands answers to those who wait for them, until the process ends.
fn deliver(answers: File, waiting: &Mutex<Waiting>) {
    for line in BufReader::new(answers).lines().map_while(Result::ok) {
        let Some((id, answer)) = parse(&line) else {
            continue;
        };
        let receiver = lock(waiting).as_mut().and_then(|all| all.remove(&id));
        if let Some(receiver) = receiver {
            // It may have been given up.
            let _ = receiver.send(answer);
        }
    }
    *lock(waiting) = None;
}

fn parse(line: &str) -> Option<(u64, Answer)> {
    let mut words = line.splitn(4, ' ');
    let mut number = || words.next()?.parse().ok();
    let (id, begin, end) = (number()?, number()?, number()?);
    let result = words.next()?.to_owned();
    Some((id, Answer { begin, end, result }))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
