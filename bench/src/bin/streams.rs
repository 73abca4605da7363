//! Measures streams of any elements that GStreamer finds. These are the stock elements, and also our elements if `GST_PLUGIN_PATH` names
//! the folder of our plugin.

#![forbid(unsafe_code)]

fn main() -> anyhow::Result<()> {
    threadbare_bench::streams::main(|| Ok(()))
}
