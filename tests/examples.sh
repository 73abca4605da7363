#!/usr/bin/env bash
# The programs in examples/ that an application begins with. Each checks itself.
. "$(dirname "$0")/common.bash"

use_build
export GST_PLUGIN_PATH=$target_dir
seconds_max=300

# The system's, which has the system's packages.
timeout "$seconds_max" /usr/bin/python3 examples/many-streams.py --streams 500 --seconds 1 ||
    die "examples/many-streams.py: status $?"

"${CARGO:-cargo}" build -q -p gst-plugin-threadbare --example app
timeout "$seconds_max" "$target_dir/examples/app" 300 1 || die "crates/gst/examples/app.rs: status $?"
