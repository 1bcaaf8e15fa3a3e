//! At a terminal, under a shell with job control.

use std::io::{Read, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use leasehold_testkit::{Server, ms};
use pty_process::blocking::{Command, Pty, open};

use super::support::{BOUND, ENV};

/// Sent by ^C and ^Z.
const INTERRUPT: &str = "\u{3}";
const SUSPEND: &str = "\u{1a}";

/// A shell in a terminal, and what it has shown.
struct Terminal {
    pty: Arc<Pty>,
    shown: Arc<Mutex<String>>,
    /// Up to here, what was shown was expected.
    seen: usize,
    shell: std::process::Child,
}

impl Terminal {
    fn open(server: &Server) -> Self {
        let (pty, pts) = open().expect("a terminal");
        let folder = std::path::Path::new(env!("CARGO_BIN_EXE_leasehold"))
            .parent()
            .expect("a folder");
        let path = std::env::var("PATH").unwrap_or_default();
        let shell = Command::new(ENV[0])
            .args([ENV[1], "sh", "-i"])
            .env("PS1", "prompt> ")
            .env("PATH", format!("{}:{path}", folder.display()))
            .env("LEASEHOLD_URL", server.url())
            .env_remove("ENV")
            .spawn(pts)
            .expect("a shell");
        let (pty, shown) = (Arc::new(pty), Arc::new(Mutex::new(String::new())));
        let (reads, shows) = (Arc::clone(&pty), Arc::clone(&shown));
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = (&*reads).read(&mut bytes) {
                let text = String::from_utf8_lossy(&bytes[..count]);
                shows
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push_str(&text);
            }
        });
        Self {
            pty,
            shown,
            seen: 0,
            shell,
        }
    }

    fn keys(&self, keys: &str) {
        (&*self.pty).write_all(keys.as_bytes()).expect("written");
    }

    /// Types a line. What is to be expected must not stand in it: the terminal shows it too.
    fn line(&self, line: &str) {
        self.keys(&format!("{line}\n"));
    }

    /// Waits until `text` is shown behind what was expected before.
    fn expect(&mut self, text: &str) {
        let give_up = Instant::now() + BOUND;
        loop {
            let shown = self
                .shown
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone();
            if let Some(at) = shown[self.seen..].find(text) {
                self.seen += at + text.len();
                return;
            }
            assert!(
                Instant::now() < give_up,
                "no {text:?} in {:?}",
                &shown[self.seen..]
            );
            std::thread::sleep(ms(5));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_at_a_terminal_has_it_and_is_a_job_of_the_shell() {
    let server = Server::start().await;
    let mut terminal = Terminal::open(&server);
    terminal.expect("prompt> ");

    // It reads from the terminal.
    terminal.line("leasehold run k -- sh -c 'echo as\"\"ks; read x; echo got\"\"$x'");
    terminal.expect("asks");
    terminal.line("line");
    terminal.expect("gotline");
    terminal.expect("prompt> ");

    // ^C reaches it, and nothing else.
    terminal.line("leasehold run k -- sh -c 'trap \"echo in\"\"\"\"t; exit 4\" INT; echo rea\"\"dy; sleep 20'");
    terminal.expect("ready");
    terminal.keys(INTERRUPT);
    terminal.expect("int");
    terminal.expect("prompt> ");
    terminal.line("echo co\"\"de$?");
    terminal.expect("code4");

    // ^Z stops the job, and the shell continues it with the terminal.
    terminal.line("leasehold run --lease 25s k -- sh -c 'echo u\"\"p; read x; echo after\"\"$x'");
    terminal.expect("up");
    terminal.keys(SUSPEND);
    terminal.expect("the lock is not renewed meanwhile");
    terminal.expect("prompt> ");
    assert_eq!(server.raw().await.cmd(&["EXISTS", "k"]).await.int(), 1);
    terminal.line("fg");
    tokio::time::sleep(ms(300)).await;
    terminal.line("stop");
    terminal.expect("afterstop");
    terminal.expect("prompt> ");

    // In a pipeline, the terminal stays with the others.
    terminal.line("echo pi\"\"pe | leasehold run k -- cat | cat");
    terminal.expect("pipe");
    terminal.expect("prompt> ");
    // A command whose input is no terminal may ask there all the same.
    terminal.line(
        "leasehold run k -- sh -c 'echo as\"\"ks; read x </dev/tty; echo got\"\"$x' </dev/null",
    );
    terminal.expect("asks");
    tokio::time::sleep(ms(100)).await;
    terminal.line("again");
    terminal.expect("gotagain");
    terminal.expect("prompt> ");
    assert_eq!(server.raw().await.cmd(&["EXISTS", "k"]).await.int(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_stays_stopped_loses_its_lock_and_its_command() {
    let server = Server::start().await;
    let mut terminal = Terminal::open(&server);
    terminal.expect("prompt> ");
    terminal.line("leasehold run --lease 4s k -- sh -c 'echo u\"\"p; sleep 30'");
    terminal.expect("up");
    // A shell between `vfork` and `exec` does not stop.
    tokio::time::sleep(ms(200)).await;
    terminal.keys(SUSPEND);
    terminal.expect("prompt> ");
    let mut raw = server.raw().await;
    while raw.cmd(&["EXISTS", "k"]).await.int() == 1 {
        tokio::time::sleep(ms(5)).await;
    }
    terminal.line("fg");
    terminal.expect("was ended for its lock");
    terminal.expect("prompt> ");
    terminal.line("echo co\"\"de$?");
    terminal.expect("code76");
}
