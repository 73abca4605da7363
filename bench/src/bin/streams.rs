//! Measures streams of any elements that GStreamer finds: stock elements, and ours if `GST_PLUGIN_PATH` leads to them.

#![forbid(unsafe_code)]

fn main() -> anyhow::Result<()> {
    threadbare_bench::streams::main(|| Ok(()))
}
