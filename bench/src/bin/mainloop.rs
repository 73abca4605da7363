//! Compares `threadbare-mainloop` with the usual alternatives. One run measures all of them.
//!
//! `mainloop [--tasks N] [--messages N] [--rounds N] [--json]`
//!
//! **Wake-ups**: the CPU time of a wake-up if there are many tasks. In glib's executor, each task has a source. In our executor, one source
//! serves all tasks. Each task waits for a flag. In each iteration of the main context, a source of this program sets some flags at random
//! and wakes the tasks of these flags. Both executors do the same work, without other threads. The figure is the CPU time of the process
//! divided by the number of tasks that ran because of a wake-up.
//!
//! **Messages** from another thread to a main context: our channel is compared with an async-channel that a future on glib's
//! executor reads. A thread sends numbers as fast as it can, and the context adds them up. The figure is the wall-clock time
//! divided by the number of messages.
//!
//! The designs take turns. Figures are medians of the rounds, with the lowest and the highest value. Ratios are taken within a
//! round.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::thread;
use std::time::Instant;

use clap::Parser;
use glib::{ControlFlow, MainContext};
use threadbare_bench::stats::Spread;
use threadbare_mainloop::{Executor, channel, sync_channel};

#[derive(Parser)]
struct Options {
    /// Number of waiting tasks.
    #[arg(long, default_value_t = 10_000)]
    tasks: usize,
    /// Number of messages for each figure.
    #[arg(long, default_value_t = 2_000_000)]
    messages: u64,
    /// Number of figures for each median.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Prints each row as a JSON object.
    #[arg(long)]
    json: bool,
}

fn main() {
    let options = Options::parse();
    let mut rows = Vec::new();
    for woken in [1, 10, 100] {
        let measure = |is_ours| measure(is_ours, options.tasks, woken);
        rows.push(Row::measure(
            format!("wake-up, {woken} of {} tasks per iteration", options.tasks),
            "glib",
            options.rounds,
            || measure(false),
            || measure(true),
        ));
    }
    let cases: [(&str, Design, Design); 2] = [
        ("message, unbounded", async_unbounded, ours_unbounded),
        ("message, bound 1000", async_bounded, ours_bounded),
    ];
    for (name, theirs, ours) in cases {
        let timed = |design: Design| {
            let begin = Instant::now();
            design(options.messages);
            begin.elapsed().as_nanos() as f64 / options.messages as f64
        };
        rows.push(Row::measure(
            name.to_owned(),
            "async-channel",
            options.rounds,
            || timed(theirs),
            || timed(ours),
        ));
    }
    if !options.json {
        println!("{} messages, {} rounds", options.messages, options.rounds);
        println!("| what | beside | ns | ours, ns | ratio |\n|---|---|---|---|---|");
    }
    for row in rows {
        row.print(options.json);
    }
}

struct Row {
    what: String,
    peer: &'static str,
    theirs: Vec<f64>,
    ours: Vec<f64>,
    ratios: Vec<f64>,
}

impl Row {
    fn measure(
        what: String,
        peer: &'static str,
        rounds: usize,
        theirs: impl Fn() -> f64,
        ours: impl Fn() -> f64,
    ) -> Self {
        let mut row = Row {
            what,
            peer,
            theirs: Vec::new(),
            ours: Vec::new(),
            ratios: Vec::new(),
        };
        for _ in 0..rounds.max(1) {
            let (their_ns, our_ns) = (theirs(), ours());
            row.theirs.push(their_ns);
            row.ours.push(our_ns);
            row.ratios.push(our_ns / their_ns);
        }
        row
    }

    fn print(&self, as_json: bool) {
        let Row { what, peer, .. } = self;
        let spread = |figures: &[f64]| Spread::of(figures).expect("there is a round");
        let (theirs, ours, ratio) = (
            spread(&self.theirs),
            spread(&self.ours),
            spread(&self.ratios),
        );
        if as_json {
            let row = serde_json::json!({
                "what": what, "peer": peer, "rounds": self.ratios.len(),
                "peer_ns": theirs.median, "peer_ns_min": theirs.min, "peer_ns_max": theirs.max,
                "ours_ns": ours.median, "ours_ns_min": ours.min, "ours_ns_max": ours.max,
                "ratio": ratio.median, "ratio_min": ratio.min, "ratio_max": ratio.max,
            });
            return println!("{row}");
        }
        let ns = |Spread { median, min, max }| format!("{median:.0} ({min:.0} to {max:.0})");
        let (theirs, ours, ratio) = (ns(theirs), ns(ours), ratio.median);
        println!("| {what} | {peer} | {theirs} | {ours} | {ratio:.3} |");
    }
}

/// Flag of one task.
#[derive(Default)]
struct Slot {
    is_set: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

/// Measures the CPU time of a wake-up in nanoseconds.
fn measure(is_ours: bool, tasks: usize, woken: usize) -> f64 {
    let context = MainContext::new();
    let executor = Executor::new(&context).expect("this thread's context");
    let slots: Rc<Vec<Slot>> = Rc::new((0..tasks).map(|_| Slot::default()).collect());
    let done = Rc::new(Cell::new(0_usize));
    for number in 0..tasks {
        let (slots, done) = (slots.clone(), done.clone());
        let task = poll_fn(move |cx| -> Poll<()> {
            let slot = &slots[number];
            if slot.is_set.replace(false) {
                done.set(done.get() + 1);
            }
            let mut waker = slot.waker.borrow_mut();
            if !waker
                .as_ref()
                .is_some_and(|known| known.will_wake(cx.waker()))
            {
                *waker = Some(cx.waker().clone());
            }
            Poll::Pending
        });
        if is_ours {
            drop(executor.spawn_local(task));
        } else {
            drop(context.spawn_local(task));
        }
    }
    while context.iteration(false) {}

    let wanted = WAKEUPS.max(woken * TURNS_MIN);
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let waking = slots.clone();
    let wake = glib::thread_guard::ThreadGuard::new(RefCell::new(move || {
        for _ in 0..woken {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let slot = &waking[(random % waking.len() as u64) as usize];
            // Both executors run a task only once if it is woken again before it has run.
            slot.is_set.set(true);
            if let Some(waker) = &*slot.waker.borrow() {
                waker.wake_by_ref();
            }
        }
    }));
    let source = glib::idle_source_new(None, glib::Priority::DEFAULT, move || {
        (wake.get_ref().borrow_mut())();
        ControlFlow::Continue
    });
    source.attach(Some(&context));
    let begin_ns = cpu_ns();
    while done.get() < wanted {
        context.iteration(true);
    }
    let spent_ns = cpu_ns() - begin_ns;
    source.destroy();
    spent_ns as f64 / done.get() as f64
}

fn cpu_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` is a valid timespec for the call to fill. The clock exists on every Linux system.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

type Design = fn(u64);

fn async_unbounded(messages: u64) {
    let (sender, receiver) = async_channel::unbounded();
    receive_async(receiver, messages, move || {
        (0..messages).for_each(|n| sender.try_send(n).expect("a receiver"));
    });
}

fn async_bounded(messages: u64) {
    let (sender, receiver) = async_channel::bounded(BOUND);
    receive_async(receiver, messages, move || {
        (0..messages).for_each(|n| sender.send_blocking(n).expect("a receiver"));
    });
}

fn receive_async(
    receiver: async_channel::Receiver<u64>,
    messages: u64,
    send: impl FnOnce() + Send + 'static,
) {
    let context = MainContext::new();
    let sum = context.block_on(async {
        // Programs usually read a channel in a future on the context.
        let task = context.spawn_local(async move {
            let mut sum = 0;
            while let Ok(n) = receiver.recv().await {
                sum += n;
            }
            sum
        });
        let sending = thread::spawn(send);
        let sum = task.await.expect("a sum");
        sending.join().expect("sent");
        sum
    });
    check(sum, messages);
}

fn ours_unbounded(messages: u64) {
    let (sender, receiver) = channel();
    receive(receiver, messages, move || {
        (0..messages).for_each(|n| sender.send(n).expect("a receiver"));
    });
}

fn ours_bounded(messages: u64) {
    let (sender, receiver) = sync_channel(BOUND);
    receive(receiver, messages, move || {
        (0..messages).for_each(|n| sender.send(n).expect("a receiver"));
    });
}

fn receive(
    receiver: threadbare_mainloop::Receiver<u64>,
    messages: u64,
    send: impl FnOnce() + Send + 'static,
) {
    let context = MainContext::new();
    let (sum, count) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    let (summed, counted) = (sum.clone(), count.clone());
    let attachment = receiver.attach(Some(&context), move |n| {
        summed.set(summed.get() + n);
        counted.set(counted.get() + 1);
        ControlFlow::Continue
    });
    attachment.expect("this thread's context");
    let sending = thread::spawn(send);
    while count.get() < messages {
        context.iteration(true);
    }
    sending.join().expect("sent");
    check(sum.get(), messages);
}

fn check(sum: u64, messages: u64) {
    assert_eq!(sum, messages * (messages - 1) / 2);
}

/// Minimum number of wake-ups for each figure.
const WAKEUPS: usize = 2_000;
const TURNS_MIN: usize = 200;
const BOUND: usize = 1000;
