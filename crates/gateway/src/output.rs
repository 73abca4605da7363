//! Standard output and standard error with a reader that may leave: `threadbare ... | head` ends quietly.
//!
//! The macros here replace the standard library's of the same names in this whole crate. Those panic when a write
//! fails.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write};

macro_rules! print {
    ($($text:tt)*) => { $crate::output::write(format_args!($($text)*)) };
}

macro_rules! println {
    ($($text:tt)*) => { $crate::output::write_line(format_args!($($text)*)) };
}

macro_rules! eprintln {
    ($($text:tt)*) => { $crate::output::complain(format_args!($($text)*)) };
}

pub(crate) fn write(text: Arguments<'_>) {
    let mut output = std::io::stdout().lock();
    let written = output.write_fmt(text).and_then(|()| output.flush());
    match written {
        Ok(()) => {}
        // The reader has closed the pipe.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
        Err(error) => {
            complain(format_args!("cannot write to standard output: {error}"));
            std::process::exit(1);
        }
    }
}

pub(crate) fn write_line(text: Arguments<'_>) {
    write(format_args!("{text}\n"));
}

/// On standard error; a failure there cannot be reported.
pub(crate) fn complain(text: Arguments<'_>) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}
