//! Streams of the published crate's elements. They have the names of ours, hence a program of their own.

#![forbid(unsafe_code)]

fn main() -> anyhow::Result<()> {
    threadbare_bench::streams::main(gstthreadshare::plugin_register_static)
}
