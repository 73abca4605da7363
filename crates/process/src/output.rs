//! Standard output and standard error whose reader may end early, so that `threadbare ... | head` ends quietly.
//!
//! The macros here replace the standard library's macros of the same names in a crate that has
//! `#[macro_use(print, println, eprintln)] extern crate threadbare_process;`. The originals panic when a write fails.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write};

/// Writes to standard output.
#[macro_export]
macro_rules! print {
    ($($text:tt)*) => { $crate::output::write(format_args!($($text)*)) };
}

/// Writes a line to standard output.
#[macro_export]
macro_rules! println {
    ($($text:tt)*) => { $crate::output::write_line(format_args!($($text)*)) };
}

/// Writes a line to standard error.
#[macro_export]
macro_rules! eprintln {
    ($($text:tt)*) => { $crate::output::complain(format_args!($($text)*)) };
}

/// Writes to standard output.
pub fn write(text: Arguments<'_>) {
    let mut output = std::io::stdout().lock();
    let written = output.write_fmt(text).and_then(|()| output.flush());
    match written {
        Ok(()) => {}
        // The reader has closed the pipe, so end quietly.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
        Err(error) => {
            complain(format_args!("cannot write to standard output: {error}"));
            std::process::exit(1);
        }
    }
}

/// Writes a line to standard output.
pub fn write_line(text: Arguments<'_>) {
    write(format_args!("{text}\n"));
}

/// Writes an error message to standard error. If that fails, the failure cannot be reported.
pub fn complain(text: Arguments<'_>) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}
