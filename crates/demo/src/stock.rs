//! Carries the demo's streams with GStreamer's own elements, for comparison. Each one-way stream has a pipeline, without jitter buffer and
//! RTCP.

use std::fmt::Write as _;
use std::time::Duration;

use miette::{IntoDiagnostic, bail};

use super::parties::{PARTIES_PER_SOCKET, other_party};
use super::{DemoArgs, FIRST_SSRC, Ports};
use threadbare_config::Config;
use threadbare_streams::gateway::Gateway;
use threadbare_streams::pipeline::{self, Elements};

/// Creates the gateway's configuration, as a user would write it, with an entry for each stream.
pub(super) fn config(args: &DemoArgs, ports: Ports, party_ports: &[u16]) -> miette::Result<Config> {
    let mut text = "[defaults]\nlatency = 0\nmeter = false\nrtcp = false\n".to_owned();
    for stream in 0..usize::from(args.streams) {
        let (codec, codec_out) = [("PCMU", "PCMA"), ("PCMA", "PCMU")][stream % 2];
        let Some(to) = party_ports.get(other_party(stream) / PARTIES_PER_SOCKET) else {
            bail!("cannot find the socket of party {}", other_party(stream));
        };
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            "[[stream]]\nname = \"stream-{stream}\"\nlisten = \"127.0.0.1:{}\"\n\
             destination = \"127.0.0.1:{to}\"\nssrc = {}\ncodec = \"{codec}\"\ncodec-out = \"{codec_out}\"\n",
            ports.first + stream as u16 * ports.step,
            FIRST_SSRC + stream as u32,
        );
    }
    Config::from_toml("the demo's own configuration", &text).map_err(Into::into)
}

/// Loads the plugins by building one unused pipeline, so that the memory for their code does not count as that of a stream.
pub(super) fn load_plugins(config: &Config) -> miette::Result<()> {
    pipeline::load(&config.streams).into_diagnostic()
}

/// Starts all streams.
pub(super) fn start(args: &DemoArgs, config: Config) -> miette::Result<Gateway> {
    let mut gateway = Gateway::start(config, Elements::Stock).into_diagnostic()?;
    // Streams that fail to start have reported their error by now.
    gateway.handle_for(Some(Duration::ZERO));
    if gateway.streams_running() < usize::from(args.streams) {
        bail!(
            "only {} of {} streams started; the log shows why",
            gateway.streams_running(),
            args.streams
        );
    }
    Ok(gateway)
}
