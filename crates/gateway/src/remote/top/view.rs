//! Draws the screen of `threadbare top`.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Paragraph, Row, Sparkline, Table};
use serde_json::Value;

use super::model::{Model, Opened};
use threadbare_watch::{AlarmKind, Level, TileState, TileValues};

pub(super) fn draw(frame: &mut Frame<'_>, model: &Model, base: &str) {
    let threads = model.threads.len().max(1) as u16 + 2;
    let areas = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(threads.min(frame.area().height / 3)),
        Constraint::Min(3),
        Constraint::Length(1),
    ]);
    let [head, top, main, foot] = areas.areas(frame.area());
    frame.render_widget(Paragraph::new(summary(model, base)), head);
    frame.render_widget(threads_table(model), top);
    match &model.opened {
        Some(opened) => draw_stream(frame, main, opened),
        None => draw_streams(frame, main, model),
    }
    let keys = match model.opened {
        Some(_) => "Esc back   q quit",
        None => "↑ ↓ choose   Enter open   s sort   q quit",
    };
    let foot_line = match &model.problem {
        Some(problem) => Span::styled(problem.clone(), Style::new().fg(Color::Red)),
        None => Span::styled(keys, Style::new().fg(Color::DarkGray)),
    };
    frame.render_widget(Paragraph::new(foot_line), foot);
}

fn summary<'a>(model: &Model, base: &'a str) -> Line<'a> {
    let counts = model.counts();
    let counts = counts.iter().filter(|(_, count)| *count > 0);
    let counts: Vec<String> = counts
        .map(|(state, count)| format!("{count} {}", state.name()))
        .collect();
    let mut spans = vec![
        Span::styled("Threadbare ", Style::new().add_modifier(Modifier::BOLD)),
        Span::raw(format!("{base}   ")),
    ];
    if model.alarms > 0 {
        let alarms = if model.alarms == 1 { "alarm" } else { "alarms" };
        let text = format!("{} {alarms}   ", model.alarms);
        spans.push(Span::styled(text, Style::new().fg(Color::Red)));
    }
    spans.push(Span::raw(counts.join(", ")));
    Line::from(spans)
}

fn threads_table(model: &Model) -> Table<'_> {
    let rows = model.threads.iter().map(|(name, thread)| {
        let bar = bar(thread.busy_percent / 100.0, 20);
        Row::new([
            Cell::from(name.as_str()),
            Cell::from(bar).style(Style::new().fg(load_colour(thread.busy_percent))),
            Cell::from(format!("{:5.1} %", thread.busy_percent)),
            Cell::from(format!("{:6.1} ms late", thread.lateness_ms)),
            Cell::from(format!("{:7} packets/s", thread.packets)),
            Cell::from(thread.blocked.clone().unwrap_or_default()),
        ])
    });
    let widths = [16, 20, 8, 14, 18, 40].map(Constraint::Length);
    Table::new(rows, widths).block(Block::bordered().title("Threads"))
}

fn draw_streams(frame: &mut Frame<'_>, area: Rect, model: &Model) {
    let visible = area.height.saturating_sub(3) as usize;
    let first = (model.selected + 1).saturating_sub(visible.max(1));
    let tiles = model.tiles.as_ref().map(|tiles| &tiles.0);
    let rows = model.order.iter().enumerate().skip(first).take(visible);
    let rows = rows.filter_map(|(place, n)| {
        let (stream, tile) = (&model.streams[*n], tiles?.get(*n)?);
        let style = if place == model.selected {
            Style::new().add_modifier(Modifier::REVERSED)
        } else {
            Style::new()
        };
        Some(row(&stream.name, stream.target_lufs, tile).style(style))
    });
    let head = [
        "stream",
        "state",
        "momentary",
        "",
        "short-term",
        "target",
        "peak",
        "loss",
        "alarms",
    ];
    let widths = [
        Constraint::Min(16),
        Constraint::Length(9),
        Constraint::Length(24),
        Constraint::Length(6),
        Constraint::Length(11),
        Constraint::Length(7),
        Constraint::Length(6),
        Constraint::Length(7),
        Constraint::Min(12),
    ];
    let title = format!("Streams, {}", model.sort.name());
    let table = Table::new(rows, widths)
        .header(Row::new(head).style(Style::new().fg(Color::DarkGray)))
        .block(Block::bordered().title(title));
    frame.render_widget(table, area);
}

fn row<'a>(name: &'a str, target_lufs: Option<f64>, tile: &TileValues) -> Row<'a> {
    let alarms: Vec<&str> = AlarmKind::of_bits(tile.alarms)
        .map(AlarmKind::name)
        .collect();
    let known = if AlarmKind::is_acknowledged(tile.alarms) {
        " (known)"
    } else {
        ""
    };
    let colour = match (alarms.is_empty(), tile.state) {
        (false, _) | (_, TileState::Stopped) => Color::Red,
        (true, TileState::Heard) => Color::Green,
        (true, _) => Color::Yellow,
    };
    let part = tile.momentary_lufs.db().map_or(0.0, |db| 1.0 + db / 60.0);
    let loss = match tile.lost_permille {
        0 => String::new(),
        lost => format!("{:.1} %", f64::from(lost) / 10.0),
    };
    Row::new([
        Cell::from(name),
        Cell::from(tile.state.name()).style(Style::new().fg(colour)),
        Cell::from(bar(part, 24)).style(Style::new().fg(Color::Blue)),
        Cell::from(level(tile.momentary_lufs)),
        Cell::from(level(tile.short_term_lufs)),
        Cell::from(
            target_lufs
                .map(|lufs| format!("{lufs:.1}"))
                .unwrap_or_default(),
        ),
        Cell::from(level(tile.true_peak_dbtp)),
        Cell::from(loss).style(Style::new().fg(Color::Red)),
        Cell::from(format!("{}{known}", alarms.join(" "))).style(Style::new().fg(Color::Red)),
    ])
}

fn draw_stream(frame: &mut Frame<'_>, area: Rect, opened: &Opened) {
    let areas = Layout::vertical([
        Constraint::Length(7),
        Constraint::Length(5),
        Constraint::Min(3),
    ]);
    let [loudness, loss, values] = areas.areas(area);
    let column = |name: &str| {
        let column = opened.history[name].as_array().into_iter().flatten();
        let width = area.width.saturating_sub(2) as usize;
        let values: Vec<&Value> = column.collect();
        values[values.len().saturating_sub(width)..].to_vec()
    };
    // The chart begins at -60 LUFS.
    let levels: Vec<u64> = column("short_term_lufs")
        .iter()
        .map(|level| level.as_f64().map_or(0, |db| (db + 60.0).max(0.0) as u64))
        .collect();
    let losses: Vec<u64> = column("packets_lost")
        .iter()
        .filter_map(|one| one.as_u64())
        .collect();
    let titled = |title: String| Block::bordered().title(title);
    let chart = Sparkline::default()
        .data(&levels)
        .max(60)
        .style(Style::new().fg(Color::Blue));
    let title = format!("{}: short-term loudness, -60 to 0 LUFS", opened.name);
    frame.render_widget(chart.block(titled(title)), loudness);
    let chart = Sparkline::default()
        .data(&losses)
        .style(Style::new().fg(Color::Red));
    let most = losses.iter().max().copied().unwrap_or_default();
    frame.render_widget(
        chart.block(titled(format!("packets lost each second, up to {most}"))),
        loss,
    );
    let mut lines = Vec::new();
    if let Value::Object(members) = &opened.now {
        for (name, value) in members {
            match value {
                Value::Object(inner) => {
                    lines.extend(inner.iter().map(|(name, value)| entry(name, value)))
                }
                value => lines.push(entry(name, value)),
            }
        }
    }
    frame.render_widget(
        Paragraph::new(lines).block(titled("Now".to_owned())),
        values,
    );
}

fn entry<'a>(name: &str, value: &Value) -> Line<'a> {
    let value = match value {
        Value::String(text) => text.clone(),
        Value::Null => "silence".to_owned(),
        other => other.to_string(),
    };
    Line::from(vec![
        Span::styled(format!("{name:20}"), Style::new().fg(Color::DarkGray)),
        Span::raw(value),
    ])
}

fn level(level: Level) -> String {
    level.db().map_or_else(String::new, |db| format!("{db:.1}"))
}

/// Returns a bar of up to `cells` cells, with a resolution of an eighth of a cell.
fn bar(part: f64, cells: usize) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = (part.clamp(0.0, 1.0) * cells as f64 * 8.0).round() as usize;
    format!("{}{}", "█".repeat(eighths / 8), EIGHTHS[eighths % 8])
}

fn load_colour(percent: f64) -> Color {
    match percent {
        0.0..50.0 => Color::Green,
        50.0..80.0 => Color::Yellow,
        _ => Color::Red,
    }
}
