//! Measures streams of the elements of the published crate gst-plugin-threadshare. Its elements have the same names as ours, so
//! they need a separate program.

#![forbid(unsafe_code)]

fn main() -> anyhow::Result<()> {
    threadbare_bench::streams::main(gstthreadshare::plugin_register_static)
}
