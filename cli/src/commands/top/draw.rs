//! The screen, drawn from the state. Pure.

use std::time::Instant;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row as TableRow, Table, TableState};

use super::state::{Column, Mode, Row, State};
use crate::look::seen::{Kind, Lease};
use crate::look::text::{duration, escaped, shortened};
use crate::look::view::lease;

/// The columns with their titles and widths; the key takes what is left.
const COLUMNS: [(Column, &str, u16); 7] = [
    (Column::Key, "KEY", 0),
    (Column::Kind, "KIND", 9),
    (Column::Holder, "HOLDER", HOLDER),
    (Column::Held, "HELD", 7),
    (Column::Ttl, "TTL", 6),
    (Column::Waiting, "WAIT", 5),
    (Column::Oldest, "OLDEST", 7),
];
/// As wide as `unknown host (01234567)`; on a wide screen it has a half of what is beyond 80 columns.
const HOLDER: u16 = 23;
/// The width that all columns fit into.
const NARROW: u16 = 80;
/// A lease that has less than this left is shown as a warning.
const SHORT: std::time::Duration = std::time::Duration::from_secs(3);

pub(super) fn draw(frame: &mut Frame<'_>, state: &State, now: Instant) {
    let [head, table, foot] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Min(1),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(Paragraph::new(headlines(state, head.width, now)), head);
    rows(frame, state, table, now);
    frame.render_widget(Paragraph::new(footline(state, foot.width)), foot);
}

fn headlines(state: &State, width: u16, now: Instant) -> Vec<Line<'static>> {
    let width = usize::from(width);
    let shown = |rate: Option<f64>| rate.map_or_else(|| "-".into(), |rate| format!("{rate:.1}"));
    let rate = shown(state.hand_offs);
    let counts = format!(
        "{} held  {} waiting  hand-offs ≥ {rate}/s",
        state.held(),
        state.waiting()
    );
    let title = format!("leasehold top  {}", state.place);
    let title = shortened(&title, width.saturating_sub(counts.chars().count() + 1));
    let gap = width.saturating_sub(title.chars().count() + counts.chars().count());
    let first = Line::from(vec![
        Span::styled(
            title,
            style(state, Color::Cyan).add_modifier(Modifier::BOLD),
        ),
        Span::raw(" ".repeat(gap)),
        Span::styled(counts, Style::new().add_modifier(Modifier::BOLD)),
    ]);
    let oldest = state.oldest().map_or_else(
        || "nobody waits".to_owned(),
        |(row, wait)| {
            format!(
                "oldest wait {} ({})",
                duration(wait),
                shortened(&row.key, 16)
            )
        },
    );
    let oldest = format!("{oldest}  renewals ≥ {}/s", shown(state.renewals));
    let look = match (state.paused, state.looked) {
        (true, _) => "stopped".to_owned(),
        (false, None) => "looking…".to_owned(),
        (false, Some((at, took))) => {
            let age = now.saturating_duration_since(at);
            format!("look took {}, {} ago", duration(took), duration(age))
        }
    };
    let gap = width.saturating_sub(oldest.chars().count() + look.chars().count());
    let dim = Style::new().add_modifier(Modifier::DIM);
    let second = Line::from(vec![
        Span::raw(oldest),
        Span::raw(" ".repeat(gap)),
        Span::styled(look, dim),
    ]);
    vec![first, second]
}

fn rows(frame: &mut Frame<'_>, state: &State, area: Rect, now: Instant) {
    let shown = state.shown();
    let title = |(column, title, _): (Column, &str, u16)| {
        let arrow = match (column == state.sort, state.descends()) {
            (false, _) => "",
            (true, true) => "▼",
            (true, false) => "▲",
        };
        Cell::from(format!("{title}{arrow}"))
    };
    let header =
        TableRow::new(COLUMNS.map(title)).style(Style::new().add_modifier(Modifier::REVERSED));
    let wider = area.width.saturating_sub(NARROW) / 2;
    let columns = COLUMNS.map(|(column, _, width)| match column {
        Column::Holder => width + wider,
        _ => width,
    });
    let widths = columns.map(|width| match width {
        0 => Constraint::Min(8),
        width => Constraint::Length(width),
    });
    let fixed: u16 = columns.iter().map(|width| width + 1).sum();
    let key_width = usize::from(area.width.saturating_sub(fixed - 1).max(8));
    // Only those that fit are laid out: there may be 10,000.
    let height = usize::from(area.height.saturating_sub(1));
    let selected = state.selected(&shown);
    let first = selected.map_or(0, |at| (at + 1).saturating_sub(height));
    let visible = shown.iter().skip(first).take(height);
    let holder_width = usize::from(HOLDER + wider);
    let cells = visible.map(|row| cells(row, state, (key_width, holder_width), now));
    let table = Table::new(cells, widths)
        .header(header)
        .column_spacing(1)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut position = TableState::new().with_selected(selected.map(|at| at - first));
    frame.render_stateful_widget(table, area, &mut position);
}

fn cells(
    row: &Row,
    state: &State,
    (key_width, holder_width): (usize, usize),
    now: Instant,
) -> TableRow<'static> {
    let seen = &row.seen;
    let held = match row.held_for(now) {
        None => "-".to_owned(),
        Some((held, false)) => duration(held),
        Some((held, true)) => format!(">{}", duration(held)),
    };
    let left = match seen.lease {
        _ if seen.never_expires() => style(state, Color::Red),
        Lease::Left(left) if left < SHORT && seen.is_held() => style(state, Color::Yellow),
        _ => Style::new(),
    };
    let (waiting, waits) = match seen.waiting {
        0 => (Style::new().add_modifier(Modifier::DIM), "-".to_owned()),
        waits => (style(state, Color::Yellow), waits.to_string()),
    };
    let holder = match (seen.is_held(), seen.kind) {
        (false, kind) if kind != Kind::Latch => Style::new().add_modifier(Modifier::DIM),
        _ if row.holder.starts_with("unknown") => Style::new().add_modifier(Modifier::DIM),
        _ => style(state, Color::Green),
    };
    TableRow::new([
        Cell::from(shortened(&row.key, key_width)),
        Cell::from(seen.kind_text()),
        Cell::from(shortened(&row.holder, holder_width)).style(holder),
        Cell::from(held),
        Cell::from(lease(seen)).style(left),
        Cell::from(waits).style(waiting),
        Cell::from(seen.oldest_wait.map_or_else(|| "-".into(), duration)),
    ])
}

fn footline(state: &State, width: u16) -> Line<'static> {
    let width = usize::from(width);
    match &state.mode {
        Mode::Filter { .. } => Line::from(format!("/{}_", state.filter)),
        Mode::Confirm(seen) => {
            let key = shortened(&escaped(&seen.key), width.saturating_sub(52).max(8));
            let question = format!(
                "break {key} ({})? its holder may still write [y/N]",
                seen.kind_text()
            );
            Line::styled(
                question,
                style(state, Color::Red).add_modifier(Modifier::BOLD),
            )
        }
        Mode::Browse => {
            if let Some(message) = &state.message {
                return Line::styled(shortened(message, width), style(state, Color::Yellow));
            }
            if let Some(failure) = state.failures.first() {
                return Line::styled(shortened(failure, width), style(state, Color::Red));
            }
            let filter = match state.filter.as_str() {
                "" => String::new(),
                filter => format!("  filter: {}", escaped(filter.as_bytes())),
            };
            let keys = format!(
                "q quit  ↑↓ select  s sort  r reverse  / filter  space stop  b break{filter}"
            );
            Line::styled(
                shortened(&keys, width),
                Style::new().add_modifier(Modifier::DIM),
            )
        }
    }
}

/// A colour, where colours are wanted.
fn style(state: &State, colour: Color) -> Style {
    match state.coloured {
        true => Style::new().fg(colour),
        false => Style::new(),
    }
}
