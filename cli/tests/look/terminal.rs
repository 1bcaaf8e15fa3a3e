//! A terminal emulator with the program in it.

use std::io::{Read, Write};
use std::process::Child;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pty_process::Size;
use pty_process::blocking::{Command, Pty};
use rustix::termios::{LocalModes, tcgetattr};

/// Upper bound on each wait for the screen. It ends hangs and promises no speed.
const BOUND: Duration = Duration::from_secs(30);

/// The program on a screen.
pub(crate) struct Terminal {
    pty: Arc<Pty>,
    child: Child,
    parser: Arc<Mutex<vt100::Parser>>,
}

impl Terminal {
    pub(crate) fn start(url: &str, args: &[&str], (columns, rows): (u16, u16)) -> Self {
        let (pty, pts) = pty_process::blocking::open().unwrap();
        pty.resize(Size::new(rows, columns)).unwrap();
        let command = Command::new(env!("CARGO_BIN_EXE_leasehold"))
            .args(args)
            .env("LEASEHOLD_URL", url)
            .env("TERM", "xterm-256color")
            .env_remove("NO_COLOR");
        let child = command.spawn(pts).unwrap();
        let pty = Arc::new(pty);
        let parser = Arc::new(Mutex::new(vt100::Parser::new(rows, columns, 0)));
        let (written, seen) = (Arc::clone(&pty), Arc::clone(&parser));
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(n @ 1..) = (&*written).read(&mut bytes) {
                seen.lock().unwrap().process(&bytes[..n]);
            }
        });
        Self { pty, child, parser }
    }

    pub(crate) fn press(&mut self, keys: &str) {
        (&*self.pty).write_all(keys.as_bytes()).unwrap();
    }

    pub(crate) fn resize(&self, (columns, rows): (u16, u16)) {
        self.parser
            .lock()
            .unwrap()
            .screen_mut()
            .set_size(rows, columns);
        self.pty.resize(Size::new(rows, columns)).unwrap();
    }

    /// What the screen shows.
    pub(crate) fn text(&self) -> String {
        self.parser.lock().unwrap().screen().contents()
    }

    /// Whether the program has the screen to itself.
    pub(crate) fn is_full_screen(&self) -> bool {
        self.parser.lock().unwrap().screen().alternate_screen()
    }

    pub(crate) fn has_colours(&self) -> bool {
        let parser = self.parser.lock().unwrap();
        let (rows, columns) = parser.screen().size();
        let mut cells = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
        cells.any(|(row, column)| {
            let cell = parser.screen().cell(row, column);
            cell.is_some_and(|cell| cell.fgcolor() != vt100::Color::Default)
        })
    }

    /// Waits until the screen is as wanted.
    pub(crate) fn until(&self, what: &str, wanted: impl Fn(&str) -> bool) -> String {
        let give_up = Instant::now() + BOUND;
        loop {
            let text = self.text();
            if wanted(&text) {
                return text;
            }
            assert!(
                Instant::now() < give_up,
                "{what}: not on the screen\n{text}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until it has ended.
    pub(crate) fn ended(&mut self) -> i32 {
        let give_up = Instant::now() + BOUND;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                // The rest of its output.
                std::thread::sleep(Duration::from_millis(100));
                return status.code().expect("an exit code");
            }
            assert!(Instant::now() < give_up, "it did not end\n{}", self.text());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether lines are edited and shown as they are typed, as the shell left it.
    pub(crate) fn is_cooked(&self) -> bool {
        let modes = tcgetattr(&*self.pty).expect("the modes of the terminal");
        modes
            .local_modes
            .contains(LocalModes::ICANON | LocalModes::ECHO)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
