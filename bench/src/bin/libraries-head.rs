//! Prints the first line of `bench/results/libraries.jsonl`, with date, commit and machine. `make bench-libraries` adds the
//! rows.

use anyhow::Result;
use threadbare_bench::libraries::Head;

fn main() -> Result<()> {
    let head = Head::now(gst::version_string().to_string())?;
    println!("{}", serde_json::to_string(&head)?);
    Ok(())
}
