//! The pictures of the README: what a terminal shows of made-up locks, drawn by the code that draws the screen.
//!
//! The test compares them with the files under `docs/`; with `LEASEHOLD_PICTURES=write` it writes them.

use std::fmt::Write;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ratatui::backend::CrosstermBackend;
use ratatui::layout::Rect;
use ratatui::{Terminal, TerminalOptions, Viewport};

use super::feed::Snapshot;
use super::{draw, state::State};
use crate::commands::doctor::finding::{Finding, Level, Report};
use crate::look::processes::{Process, Processes};
use crate::look::seen::{Held, Kind, Lease, Seen};

const COLUMNS: u16 = 80;
/// Pixels of a character.
const WIDTH: f32 = 8.4;
const HEIGHT: f32 = 18.0;
const MARGIN: f32 = 12.0;

#[test]
fn the_picture_of_top_is_what_it_draws() {
    let before = Instant::now();
    let now = before + Duration::from_secs(5);
    let mut state = State::new("redis.example:6379".into(), true);
    state.look(snapshot(0), before);
    state.look(snapshot(1), now);
    let area = Rect::new(0, 0, COLUMNS, 14);
    let mut bytes = Vec::new();
    let options = TerminalOptions {
        viewport: Viewport::Fixed(area),
    };
    let mut terminal = Terminal::with_options(CrosstermBackend::new(&mut bytes), options).unwrap();
    terminal
        .draw(|frame| draw::draw(frame, &state, now))
        .unwrap();
    drop(terminal);
    check("top.svg", "leasehold top", &bytes, area.height);
}

#[test]
fn the_picture_of_doctor_is_what_it_prints() {
    let text = report().render(usize::from(COLUMNS), true);
    let rows = text.lines().count() as u16 + 1;
    let shown = format!("$ leasehold doctor\r\n{}", text.replace('\n', "\r\n"));
    check("doctor.svg", "leasehold doctor", shown.as_bytes(), rows);
}

/// Compares the picture of what was written to a terminal with the file, or writes that.
fn check(file: &str, title: &str, bytes: &[u8], rows: u16) {
    let mut parser = vt100::Parser::new(rows, COLUMNS, 0);
    parser.process(bytes);
    let picture = picture(title, parser.screen());
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../docs")
        .join(file);
    if std::env::var_os("LEASEHOLD_PICTURES").is_some_and(|value| value == "write") {
        std::fs::write(&path, &picture).unwrap();
    }
    let known = std::fs::read_to_string(&path).or_else(|error| match error.kind() {
        io::ErrorKind::NotFound => Ok(String::new()),
        _ => Err(error),
    });
    let same = known.unwrap() == picture;
    assert!(
        same,
        "docs/{file} is not what is shown now: run the tests with LEASEHOLD_PICTURES=write"
    );
}

fn picture(title: &str, screen: &vt100::Screen) -> String {
    let (rows, columns) = screen.size();
    let (width, height) = (
        f32::from(columns) * WIDTH + 2.0 * MARGIN,
        f32::from(rows) * HEIGHT + 2.0 * MARGIN,
    );
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" viewBox=\"0 0 {width:.0} {height:.0}\" \
         role=\"img\">\n<title>{title}</title>\n<rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#1b1f27\"/>\n\
         <g font-family=\"ui-monospace, SFMono-Regular, Menlo, Consolas, monospace\" font-size=\"14\" xml:space=\"preserve\" style=\"white-space:pre\">\n"
    );
    for row in 0..rows {
        let mut column = 0;
        while column < columns {
            column += run(&mut svg, screen, row, column);
        }
    }
    svg.push_str("</g>\n</svg>\n");
    svg
}

/// Draws the characters from this one on that look alike. Returns how many columns they take.
fn run(svg: &mut String, screen: &vt100::Screen, row: u16, first: u16) -> u16 {
    let (_, columns) = screen.size();
    let style = |column| screen.cell(row, column).map(style);
    let alike = (first..columns).take_while(|column| style(*column) == style(first));
    let cells: Vec<_> = alike
        .filter_map(|column| screen.cell(row, column))
        .collect();
    let text: String = cells
        .iter()
        .map(|cell| match cell.contents() {
            "" => " ",
            text => text,
        })
        .collect();
    let Some((fill, back, weight)) = style(first) else {
        return 1;
    };
    let x = MARGIN + f32::from(first) * WIDTH;
    let y = MARGIN + f32::from(row) * HEIGHT;
    if let Some(back) = back {
        let width = cells.len() as f32 * WIDTH;
        let _ = writeln!(
            svg,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{HEIGHT}\" fill=\"{back}\"/>"
        );
    }
    if !text.trim().is_empty() {
        let length = text.trim_end().chars().count() as f32 * WIDTH;
        let text = text
            .trim_end()
            .replace('&', "&amp;")
            .replace('<', "&lt;")
            .replace('>', "&gt;");
        let _ = writeln!(
            svg,
            "<text x=\"{x:.1}\" y=\"{:.1}\" textLength=\"{length:.1}\" fill=\"{fill}\"{weight}>{text}</text>",
            y + 13.5
        );
    }
    cells.len().max(1) as u16
}

/// The colour of the text, that behind it, and the weight.
fn style(cell: &vt100::Cell) -> (&'static str, Option<&'static str>, &'static str) {
    let colour = match cell.fgcolor() {
        vt100::Color::Idx(1 | 9) => "#ff6b6b",
        vt100::Color::Idx(2 | 10) => "#7bd88f",
        vt100::Color::Idx(3 | 11) => "#f2c55c",
        vt100::Color::Idx(6 | 14) => "#6fc3df",
        _ if cell.dim() => "#8a919e",
        _ => "#e6e8ec",
    };
    let weight = if cell.bold() {
        " font-weight=\"bold\""
    } else {
        ""
    };
    match cell.inverse() {
        true => ("#1b1f27", Some(colour), weight),
        false => (colour, None, weight),
    }
}

/// A look at a shop's locks; in the later one an order was handed on.
fn snapshot(look: u64) -> Snapshot {
    let mut processes = Processes::default();
    for (number, host, pid, app) in [
        (1, "web-1", 4711, "shop"),
        (2, "web-2", 990, "shop"),
        (3, "batch-1", 31337, "nightly"),
        (4, "ci-7", 212, "deploy"),
    ] {
        processes.insert(Process {
            client: client(number),
            host: host.into(),
            pid: Some(pid),
            app: Some(app.into()),
            ..Process::default()
        });
    }
    Snapshot {
        locks: locks(look),
        processes,
        is_blind: false,
        failures: Vec::new(),
        took: Duration::from_millis(4),
    }
}

fn locks(look: u64) -> Vec<Seen> {
    let seconds = Duration::from_secs;
    vec![
        lock(
            "order:4711",
            Kind::Mutex,
            1 + look,
            (seconds(2), seconds(29)),
            Some((14, seconds(9))),
        ),
        lock(
            "nightly-report",
            Kind::Mutex,
            3,
            (seconds(754), seconds(24)),
            Some((2, seconds(740))),
        ),
        Seen {
            mode: Some("write".into()),
            ..lock(
                "catalog",
                Kind::ReadWrite,
                2,
                (seconds(1), seconds(28)),
                Some((3, seconds(1))),
            )
        },
        Seen {
            holding: 8,
            left: Some(0),
            all: Some(8),
            held_for: None,
            ..lock(
                "payment-gateway",
                Kind::Semaphore,
                1,
                (seconds(0), seconds(21)),
                Some((5, seconds(4))),
            )
        },
        lock(
            "deploy:production",
            Kind::Mutex,
            4,
            (seconds(67), seconds(27)),
            None,
        ),
        Seen {
            lease: Lease::Endless,
            held_for: None,
            ..lock(
                "invoice:{2026}:import",
                Kind::Mutex,
                9,
                (seconds(0), seconds(0)),
                None,
            )
        },
        Seen {
            holders: Vec::new(),
            holding: 0,
            left: Some(3),
            held_for: None,
            ..lock("warm-up", Kind::Latch, 1, (seconds(0), seconds(3541)), None)
        },
        lock("cron:mail", Kind::Plain, 3, (seconds(4), seconds(2)), None),
    ]
}

fn lock(
    key: &str,
    kind: Kind,
    holder: u64,
    (held, left): (Duration, Duration),
    waits: Option<(u64, Duration)>,
) -> Seen {
    Seen {
        key: key.into(),
        node: "redis.example:6379".into(),
        kind,
        mode: None,
        lease: Lease::Left(left),
        holders: vec![Held {
            id: format!("{}:1", client(holder)),
            count: 1,
            remaining: Some(left),
        }],
        holding: 1,
        token: None,
        held_for: Some(held),
        waiting: waits.map_or(0, |(waiting, _)| waiting),
        oldest_wait: waits.map(|(_, oldest)| oldest),
        left: None,
        all: None,
        tickets: Vec::new(),
    }
}

fn client(number: u64) -> String {
    format!("5f0c6d{number:02x}-0000-4000-8000-000000000000")
}

/// Findings of `doctor` at a server that serves a cache as well.
fn report() -> Report {
    let node = "redis.example:6379";
    let mut report = Report::default();
    let eviction = "`maxmemory-policy allkeys-lru` evicts locks when memory is full: the next one gets the lock";
    for finding in [
        Finding::new(Level::Fault, "eviction", eviction).at(node).fix(
            "CONFIG SET maxmemory-policy noeviction, or keep locks on a server without a cache",
        ),
        Finding::new(Level::Ok, "persistence", "appendonly: a restart forgets at most the last second").at(node),
        Finding::new(Level::Note, "replicas", "1, asynchronous: one that becomes master may not know the last grants")
            .at(node)
            .fix("take the locks with replicated(Replicas::All), and check fencing tokens where you write"),
        Finding::new(Level::Ok, "clock", "+2 ms to the clock here, no step within a second").at(node),
        Finding::new(Level::Ok, "locks", "8 held, 24 waiting"),
        Finding::new(
            Level::Fault,
            "expiry",
            "`invoice:{2026}:import` is held without an expiry: nobody frees it if its holder is dead",
        )
        .at(node)
        .fix("find out whose it is (`leasehold inspect 'invoice:{2026}:import'`), then `leasehold break 'invoice:{2026}:import'`"),
        Finding::new(Level::Ok, "lines", "every client that waits listens"),
        Finding::new(Level::Fault, "rights", "user `shop` lacks 1 of the rights that a mutex takes").fix("ACL SETUSER shop +zpopmin"),
    ] {
        report.add(finding);
    }
    report
}
