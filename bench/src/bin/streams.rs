//! Streams of any elements that GStreamer finds: the stock ones, and ours through `GST_PLUGIN_PATH`.

#![forbid(unsafe_code)]

fn main() -> anyhow::Result<()> {
    threadbare_bench::streams::main(|| Ok(()))
}
