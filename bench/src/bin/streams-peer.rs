//! Measures streams of the elements of the published crate gst-plugin-threadshare. These elements have the same names as our elements, so
//! they need a separate program.

#![forbid(unsafe_code)]

fn main() -> anyhow::Result<()> {
    threadbare_bench::streams::main(gstthreadshare::plugin_register_static)
}
