//! The drawings of the README. They show the purpose of the project and the path of a packet.

use super::svg::{Anchor, Frame, Svg};

/// Returns all drawings, as (path of the file, text of the file).
pub(super) fn all() -> [(&'static str, String); 2] {
    [
        ("docs/images/threads.svg", threads()),
        ("docs/images/how-it-works.svg", how_it_works()),
    ]
}

/// Returns the drawing of the purpose, with a thousand threads on the left and one thread on the right.
fn threads() -> String {
    let mut svg = Svg::new(
        840,
        330,
        "1000 streams: a thread for each, or one thread for all",
    );
    many_threads(&mut svg);
    one_thread(&mut svg);
    svg.finish()
}

/// Times during which one of the threads runs: row, start and width. Start and width are in steps.
const RUNS: &[(usize, usize, usize)] = &[
    (0, 0, 2),
    (5, 2, 1),
    (2, 3, 2),
    (7, 5, 1),
    (1, 6, 1),
    (4, 7, 2),
    (8, 9, 1),
    (3, 10, 1),
    (6, 11, 2),
    (0, 13, 1),
    (9, 14, 1),
    (2, 15, 1),
    (5, 16, 2),
    (7, 18, 1),
    (1, 19, 2),
    (8, 21, 1),
    (4, 22, 1),
    (6, 23, 1),
    (9, 24, 2),
    (3, 26, 1),
    (0, 27, 1),
];
const ROWS: usize = 10;
const ROW_HEIGHT: f64 = 19.0;
const STEP: f64 = 9.4;

fn many_threads(svg: &mut Svg) {
    let (left, top) = (122.0, 80.0);
    svg.rect(Frame::new(20.0, 20.0, 390.0, 290.0), 12.0, "panel");
    svg.bold(
        (40.0, 50.0),
        Anchor::Start,
        17.0,
        "ink",
        "Today: a thread for each stream",
    );
    for row in 0..ROWS {
        let y = top + ROW_HEIGHT * row as f64;
        let name = match row {
            ROWS_CUT => "…".to_owned(),
            row if row > ROWS_CUT => format!("stream {}", 1000 - (ROWS - 1 - row)),
            row => format!("stream {}", row + 1),
        };
        svg.text((left - 12.0, y + 10.0), Anchor::End, 11.0, "soft", &name);
        let line = format!("M{left:.1} {:.1}H{:.1}", y + 6.0, left + 28.0 * STEP);
        svg.path(&line, "grid", 1.5);
    }
    let x = |step: usize| left + STEP * step as f64;
    let y = |row: usize| top + ROW_HEIGHT * row as f64;
    for pair in RUNS.windows(2) {
        let ((from, start, width), (to, ..)) = (pair[0], pair[1]);
        let line = format!(
            "M{:.1} {:.1}V{:.1}",
            x(start + width),
            y(from) + 6.0,
            y(to) + 6.0
        );
        svg.dashed(&line, "a", 1.0);
    }
    for (row, start, width) in RUNS {
        let frame = Frame::new(x(*start), y(*row), STEP * *width as f64, 12.0);
        svg.rect(frame, 2.0, "a");
    }
    let text = "The machine switches between threads for every packet.";
    svg.text((40.0, 296.0), Anchor::Start, 12.0, "soft", text);
}

/// Index of the row that stands for all threads that are not drawn.
const ROWS_CUT: usize = 6;

fn one_thread(svg: &mut Svg) {
    svg.rect(Frame::new(430.0, 20.0, 390.0, 290.0), 12.0, "panel");
    svg.bold(
        (450.0, 50.0),
        Anchor::Start,
        17.0,
        "ink",
        "Threadbare: one thread for all",
    );
    let (left, batch_top, slice) = (450.0, 178.0, 114.0);
    let line_y = batch_top + 40.0;
    for n in 0..3 {
        let x = left + slice * f64::from(n);
        fan_in(svg, x, batch_top);
        svg.outlined(Frame::new(x, batch_top, 66.0, 28.0), 5.0, "ours", "ours");
        svg.bold(
            (x + 33.0, batch_top + 18.5),
            Anchor::Middle,
            12.0,
            "paper",
            "batch",
        );
        let rest = x + 66.0 + (slice - 66.0) / 2.0;
        svg.text(
            (rest, batch_top + 18.0),
            Anchor::Middle,
            11.0,
            "soft",
            "sleeps",
        );
        let tick = format!("M{x:.1} {:.1}v10", line_y - 5.0);
        svg.path(&tick, "soft", 1.5);
        let time = format!("{} ms", 20 * n);
        svg.text((x, line_y + 20.0), Anchor::Start, 11.0, "soft", &time);
    }
    let end = left + 3.0 * slice;
    svg.path(&format!("M{left:.1} {line_y:.1}H{end:.1}"), "soft", 1.5);
    svg.arrow_head(end + 8.0, line_y, "soft");
    let text = "Each 20 ms it handles all that has arrived, in one batch:";
    svg.text((450.0, 276.0), Anchor::Start, 12.0, "soft", text);
    let text = "few switches, warm caches, a fixed number of threads.";
    svg.text((450.0, 296.0), Anchor::Start, 12.0, "soft", text);
}

/// Draws how the packets of many streams join in a batch.
fn fan_in(svg: &mut Svg, left: f64, bottom: f64) {
    let top = 92.0;
    let target = left + 33.0;
    for n in 0..9 {
        let x = left - 4.0 + 9.2 * f64::from(n);
        let lift = [0.0, 9.0, 3.0, 14.0, 6.0, 12.0, 1.0, 8.0, 4.0][n as usize];
        let y = top + lift;
        let path = format!(
            "M{x:.1} {:.1}C{x:.1} {:.1} {target:.1} {:.1} {target:.1} {:.1}",
            y + 8.0,
            bottom - 36.0,
            bottom - 44.0,
            bottom - 4.0
        );
        svg.path(&path, "grid", 1.2);
        svg.rect(Frame::new(x - 3.0, y, 6.0, 8.0), 1.5, "ours");
    }
}

/// Returns the drawing of a packet's path through one context.
fn how_it_works() -> String {
    let mut svg = Svg::new(840, 400, "The way of a packet through one context");
    sockets(&mut svg, 24.0, "Sockets", "of all streams", "RTP in");
    context(&mut svg);
    sockets(&mut svg, 724.0, "Sockets", "of all streams", "RTP out");
    for y in [196.0, 208.0, 220.0] {
        svg.path(&format!("M120 {y:.1}H146"), "ours", 2.0);
        svg.arrow_head(154.0, y, "ours");
        svg.path(&format!("M688 {y:.1}H712"), "ours", 2.0);
        svg.arrow_head(720.0, y, "ours");
    }
    let text = "Elements call each other: no queue between them. Receiving and sending allocate nothing per packet.";
    svg.text((420.0, 362.0), Anchor::Middle, 12.5, "soft", text);
    let text = "A second context is a second thread. A stream stays on its context for life.";
    svg.text((420.0, 382.0), Anchor::Middle, 12.5, "soft", text);
    svg.finish()
}

fn sockets(svg: &mut Svg, x: f64, title: &str, detail: &str, label: &str) {
    svg.bold((x + 46.0, 60.0), Anchor::Middle, 14.0, "ink", title);
    svg.text((x + 46.0, 78.0), Anchor::Middle, 11.0, "soft", detail);
    for n in 0..7 {
        let y = 96.0 + 33.0 * f64::from(n);
        if n == 5 {
            svg.bold((x + 46.0, y + 15.0), Anchor::Middle, 14.0, "soft", "⋮");
            continue;
        }
        svg.outlined(Frame::new(x, y, 92.0, 24.0), 12.0, "panel", "grid");
        let port = match n {
            6 => "stream 1000".to_owned(),
            n => format!("stream {}", n + 1),
        };
        svg.text((x + 46.0, y + 16.0), Anchor::Middle, 11.0, "soft", &port);
    }
    svg.text((x + 46.0, 338.0), Anchor::Middle, 12.0, "soft", label);
}

/// Name and work of each stage. One thread does all of them, one after the other.
const STAGES: &[(&str, &[&str])] = &[
    (
        "1  Wake up",
        &["one epoll call for", "all that arrived", "in 20 ms"],
    ),
    (
        "2  Receive",
        &["ts-rtpsrc", "into a pool buffer;", "jitter buffer, RTCP"],
    ),
    (
        "3  Convert",
        &["ts-rtpg711, codecs", "ordinary calls from", "pad to pad"],
    ),
    (
        "4  Send",
        &["ts-rtpsink", "from the socket;", "buffer back to pool"],
    ),
];

fn context(svg: &mut Svg) {
    let frame = Frame::new(160.0, 24.0, 524.0, 312.0);
    svg.outlined(frame, 14.0, "wash", "ours");
    svg.bold(
        (184.0, 56.0),
        Anchor::Start,
        16.0,
        "ink",
        "Context: one thread, whatever the number of streams",
    );
    for (n, (name, lines)) in STAGES.iter().enumerate() {
        let x = 180.0 + 123.0 * n as f64;
        svg.outlined(Frame::new(x, 140.0, 115.0, 136.0), 10.0, "paper", "ours");
        svg.bold((x + 57.5, 168.0), Anchor::Middle, 14.0, "ours", name);
        for (line, text) in lines.iter().enumerate() {
            let y = 196.0 + 22.0 * line as f64;
            svg.text((x + 57.5, y), Anchor::Middle, 11.0, "ink", text);
        }
        if n + 1 < STAGES.len() {
            svg.arrow_head(x + 123.5, 208.0, "ours");
        }
    }
    slices(svg);
    svg.text(
        (422.0, 306.0),
        Anchor::Middle,
        12.0,
        "soft",
        "Steps 2 to 4 for each packet in turn; then the thread sleeps until the next slice",
    );
}

/// Draws when the thread works and when it sleeps.
fn slices(svg: &mut Svg) {
    let (left, width, y) = (184.0, 96.0, 80.0);
    for n in 0..5 {
        let x = left + width * f64::from(n);
        svg.rect(Frame::new(x, y, width - 4.0, 20.0), 4.0, "paper");
        svg.rect(Frame::new(x, y, 34.0, 20.0), 4.0, "ours");
        svg.text((x + 62.0, y + 14.0), Anchor::Middle, 10.5, "soft", "sleeps");
    }
    svg.text(
        (left, y + 38.0),
        Anchor::Start,
        11.0,
        "soft",
        "a slice of 20 ms",
    );
    svg.path(
        &format!("M{:.1} {:.1}V{:.1}", left + 17.0, y + 44.0, y + 56.0),
        "ours",
        1.5,
    );
}
