//! A terminal emulator with the program in it.

use std::io::{Read, Write};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use portable_pty::{Child, CommandBuilder, MasterPty, PtySize, native_pty_system};

/// Upper bound on each wait for the screen. It ends hangs and promises no speed.
const BOUND: Duration = Duration::from_secs(30);

/// The program on a screen.
pub(crate) struct Terminal {
    master: Box<dyn MasterPty + Send>,
    keys: Box<dyn Write + Send>,
    child: Box<dyn Child + Send + Sync>,
    parser: Arc<Mutex<vt100::Parser>>,
}

impl Terminal {
    pub(crate) fn start(url: &str, args: &[&str], (columns, rows): (u16, u16)) -> Self {
        let pty = native_pty_system().openpty(size(columns, rows)).unwrap();
        let mut command = CommandBuilder::new(env!("CARGO_BIN_EXE_leasehold"));
        command.args(args);
        command.env("LEASEHOLD_URL", url);
        command.env("TERM", "xterm-256color");
        command.env_remove("NO_COLOR");
        let child = pty.slave.spawn_command(command).unwrap();
        drop(pty.slave);
        let parser = Arc::new(Mutex::new(vt100::Parser::new(rows, columns, 0)));
        let (mut reader, seen) = (pty.master.try_clone_reader().unwrap(), Arc::clone(&parser));
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(n @ 1..) = reader.read(&mut bytes) {
                seen.lock().unwrap().process(&bytes[..n]);
            }
        });
        let keys = pty.master.take_writer().unwrap();
        Self {
            master: pty.master,
            keys,
            child,
            parser,
        }
    }

    pub(crate) fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
        self.keys.flush().unwrap();
    }

    pub(crate) fn resize(&self, (columns, rows): (u16, u16)) {
        self.parser
            .lock()
            .unwrap()
            .screen_mut()
            .set_size(rows, columns);
        self.master.resize(size(columns, rows)).unwrap();
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
    pub(crate) fn ended(&mut self) -> u32 {
        let give_up = Instant::now() + BOUND;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                // The rest of its output.
                std::thread::sleep(Duration::from_millis(100));
                return status.exit_code();
            }
            assert!(Instant::now() < give_up, "it did not end\n{}", self.text());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.process_id().unwrap()
    }

    /// Whether lines are edited and shown as they are typed, as the shell left it.
    pub(crate) fn is_cooked(&self) -> bool {
        let modes = self
            .master
            .get_termios()
            .expect("the modes of the terminal");
        let modes = format!("{:?}", modes.local_flags);
        modes.contains("ICANON") && modes.contains("ECHO")
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
    }
}

fn size(columns: u16, rows: u16) -> PtySize {
    PtySize {
        rows,
        cols: columns,
        pixel_width: 0,
        pixel_height: 0,
    }
}
