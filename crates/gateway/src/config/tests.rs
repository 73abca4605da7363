use std::net::IpAddr;

use super::*;

/// A configuration that must be refused: the text, what the message must say, and the lines shown.
struct Refused {
    text: &'static str,
    says: &'static [&'static str],
    lines: &'static [usize],
}

const GOOD_STREAM: &str = "\n[[stream]]\nname = \"good\"\nlisten = \"127.0.0.1:5004\"\ndestination = \"127.0.0.1:6004\"\n";

const REFUSED: &[Refused] = &[
    Refused {
        text: "[contexts]\nwiat = 20",
        says: &["`wiat` is no key of [contexts]", "did you mean `wait`?"],
        lines: &[2],
    },
    Refused {
        text: "colour = 1",
        says: &[
            "`colour` is no key of this file",
            "contexts, restart, defaults, stream, alarms, history, cluster, ng, http, interfaces, limits, timeouts, calls",
        ],
        lines: &[1],
    },
    Refused {
        text: "[alarms.noise]\nhold = 1",
        says: &["`noise` is no key of [alarms]", "silence"],
        lines: &[1],
    },
    Refused {
        text: "[alarms.loss]\nthreshold = 101",
        says: &[
            "`threshold` cannot be 101",
            "0 to 100 (percent of the packets",
        ],
        lines: &[2],
    },
    Refused {
        text: "[alarms.silence]\nthreshold = \"-60\"",
        says: &["`threshold` cannot be \"-60\"", "-120 to 0 (LUFS"],
        lines: &[2],
    },
    Refused {
        text: "[alarms.drift]\nhold = 301",
        says: &["`hold` cannot be 301", "1 to 300"],
        lines: &[2],
    },
    Refused {
        text: "[alarms.no-packets]\nthreshold = 3",
        says: &[
            "`threshold = 3` does not go with [alarms.no-packets]",
            "`hold` is the time",
        ],
        lines: &[2],
    },
    Refused {
        text: "[alarms]\nwebhook = \"https://example.com/\"",
        says: &["`webhook` cannot be", "begins with http://"],
        lines: &[2],
    },
    Refused {
        text: "[[stream]]\nname = \"a\"\nlisten = \"127.0.0.1:5000\"\nloudness-reset = [\"06:00\", \"6:00\"]",
        says: &["`loudness-reset` cannot be", "\"00:00\" to \"23:59\""],
        lines: &[4],
    },
    Refused {
        text: "[[stream]]\nname = \"a\"\nlisten = \"127.0.0.1:5000\"\ndestination = \"127.0.0.1:7000\"\nloudness-reset = [\"24:00\"]",
        says: &["`loudness-reset` cannot be"],
        lines: &[5],
    },
    Refused {
        text: "[[stream]]\nname = \"a\"\nlisten = \"127.0.0.1:5000\"\ndestination = \"127.0.0.1:7000\"\nloudness-reset = [\"06:00\"]",
        says: &[
            "`loudness-reset = [\"06:00\"]` does not go with",
            "remove `loudness-reset`",
        ],
        lines: &[5],
    },
    Refused {
        text: "[history]\ndir = true",
        says: &["`dir` cannot be true", "the name of a folder, or false"],
        lines: &[2],
    },
    Refused {
        text: "[cluster]\nendpoints = [\"http://10.0.0.1:2379\"]",
        says: &["[cluster] without", "the name of this node"],
        lines: &[1],
    },
    Refused {
        text: "[cluster]\nendpoints = [\"10.0.0.1:2379\"]\nnode = \"a\"",
        says: &["`endpoints` cannot be \"10.0.0.1:2379\"", "1 to 16 URLs"],
        lines: &[2],
    },
    Refused {
        text: "[cluster]\nendpoints = []\nnode = \"a\"",
        says: &["`endpoints` cannot be \"\"", "1 to 16 URLs"],
        lines: &[2],
    },
    Refused {
        text: "[cluster]\nendpoints = [\"http://etcd:2379\"]\nnode = \"rack 1\"",
        says: &["`node` cannot be \"rack 1\"", "1 to 63 letters, digits"],
        lines: &[3],
    },
    Refused {
        text: "[cluster]\nendpoints = [\"http://etcd:2379\"]\nnode = \"a\"\nweight = 0",
        says: &["`weight` cannot be \"0\"", "0.001 to 1000"],
        lines: &[4],
    },
    Refused {
        text: "[cluster]\nendpoints = [\"http://etcd:2379\"]\nnode = \"a\"\nlabels = [\"rack-1\", \"\"]",
        says: &["`labels` cannot be \"\"", "1 to 63 letters, digits"],
        lines: &[4],
    },
    Refused {
        text: "[cluster]\nendpoints = [\"http://etcd:2379\"]\nnode = \"a\"\nlisten = \"0.0.0.0:2400\"",
        says: &[
            "`listen` cannot be \"0.0.0.0:2400\"",
            "that the other nodes reach",
        ],
        lines: &[4],
    },
    Refused {
        text: "[cluster]\nendpoints = [\"http://etcd:2379\"]\nnode = \"a\"\nlisten = \"10.0.0.3\"",
        says: &["`listen` cannot be \"10.0.0.3\"", "with a port"],
        lines: &[4],
    },
    Refused {
        text: "[cluster]\nendpoints = [\"http://etcd:2379\"]\nnode = \"a\"\nuser = \"u\"",
        says: &["`user` without `password-file`", "add `password-file`"],
        lines: &[4],
    },
    Refused {
        text: "[cluster]\nendpoints = [\"https://etcd:2379\"]\nnode = \"a\"\nkey = \"k\"",
        says: &["`key` without `cert`", "add `cert`"],
        lines: &[4],
    },
    Refused {
        text: "[cluster]\nendpoints = [\"http://etcd:2379\"]\nnode = \"a\"\nca = \"/ca.pem\"",
        says: &["`ca` cannot be \"/ca.pem\"", "begin with https://"],
        lines: &[4],
    },
    Refused {
        text: "[cluster]\nendpoints = [\"http://etcd:2379\"]\nnode = \"a\"\non-isolation = \"wait\"",
        says: &[
            "`on-isolation` cannot be \"wait\"",
            "\"stop\" or \"continue\"",
        ],
        lines: &[4],
    },
    Refused {
        text: "[[stream]]\nname = \"a\"\nlisten = \"127.0.0.1:5000\"\nprefer = [\"rack-1\"]",
        says: &[
            "does not go with a file that has no [cluster]",
            "add [cluster]",
        ],
        lines: &[4],
    },
    Refused {
        text: "[ng]\nlisten = \"192.0.2.1:2223\"",
        says: &[
            "`listen` cannot be \"192.0.2.1:2223\"",
            "could redirect all calls",
            "`allow` is missing",
        ],
        lines: &[2],
    },
    Refused {
        text: "[ng]\ntcp = \"192.0.2.1:2223\"",
        says: &[
            "`tcp` cannot be \"192.0.2.1:2223\"",
            "could redirect all calls",
            "`allow` is missing",
        ],
        lines: &[2],
    },
    Refused {
        text: "[ng]\ntcp = \"2223\"",
        says: &["`tcp` cannot be \"2223\"", "127.0.0.1:2223"],
        lines: &[2],
    },
    Refused {
        text: "[ng]\nallow = [\"10.0.0.0/33\"]",
        says: &["`allow` cannot be", "10.0.0.0/33"],
        lines: &[2],
    },
    Refused {
        text: "[http]\nlisten = \"192.0.2.1:8080\"",
        says: &[
            "`listen` cannot be \"192.0.2.1:8080\"",
            "the token file is missing",
        ],
        lines: &[2],
    },
    Refused {
        text: "[http]\ntoken-file = \"t\"",
        says: &["[http] without `listen`"],
        lines: &[1],
    },
    Refused {
        text: "[ng]\nlisten = 2223",
        says: &["`listen` cannot be 2223"],
        lines: &[2],
    },
    Refused {
        text: "[interfaces.outside]\nadvertised = \"203.0.113.7\"",
        says: &["[interfaces.outside] without `address`"],
        lines: &[1],
    },
    Refused {
        text: "[interfaces]\noutside = \"10.0.0.1\"",
        says: &["`outside` cannot be \"10.0.0.1\"", "[interfaces.outside]"],
        lines: &[2],
    },
    Refused {
        text: "[interfaces.a]\naddress = \"10.0.0.1\"\nports = \"40000-30000\"",
        says: &["`ports` cannot be \"40000-30000\"", "FIRST-LAST"],
        lines: &[3],
    },
    Refused {
        text: "[interfaces.a]\naddress = \"0.0.0.0\"",
        says: &["`address` cannot be \"0.0.0.0\"", "a party can be told"],
        lines: &[2],
    },
    Refused {
        text: "[interfaces.a]\naddress = \"10.0.0.1\"\nadvertised = \"2001:db8::1\"",
        says: &["`advertised` cannot be \"2001:db8::1\"", "an IPv4 address"],
        lines: &[3],
    },
    Refused {
        text: "[interfaces.a]\naddress = \"10.0.0.1\"\naddress-v6 = \"10.0.0.2\"",
        says: &["`address-v6` cannot be \"10.0.0.2\"", "an IPv6 address"],
        lines: &[3],
    },
    Refused {
        text: "[interfaces.a]\naddress = \"10.0.0.1\"\nadvertised-v6 = \"2001:db8::1\"",
        says: &["`advertised-v6` without `address-v6`"],
        lines: &[3],
    },
    Refused {
        text: "[limits]\nmax-sessions = 0",
        says: &["`max-sessions` cannot be 0", "1 to 1000000"],
        lines: &[2],
    },
    Refused {
        text: "[limits]\ncpu-limit = 101",
        says: &["`cpu-limit` cannot be 101", "0 to 100"],
        lines: &[2],
    },
    Refused {
        text: "[limits]\ntimeout = 60",
        says: &["`timeout` is no key of [limits]"],
        lines: &[2],
    },
    Refused {
        text: "[timeouts]\noffer-timeout = -1",
        says: &["`offer-timeout` cannot be -1", "0 to"],
        lines: &[2],
    },
    Refused {
        text: "[calls]\nlatency = 10001",
        says: &["`latency` cannot be 10001", "0 to 10000"],
        lines: &[2],
    },
    Refused {
        text: "[calls]\nrecording-format = \"mp3\"",
        says: &["`recording-format` cannot be \"mp3\"", "\"pcap\""],
        lines: &[2],
    },
    Refused {
        text: "[calls]\nstate = true",
        says: &["`state` cannot be true", "the name of a file, or false"],
        lines: &[2],
    },
    Refused {
        text: "[contexts]\nwait = 1001",
        says: &["`wait` cannot be 1001", "0 to 1000"],
        lines: &[2],
    },
    Refused {
        text: "[contexts]\nwait = \"x\"",
        says: &["`wait` cannot be \"x\"", "a whole number"],
        lines: &[2],
    },
    Refused {
        text: "[contexts]\nwait = ",
        says: &[""],
        lines: &[2],
    },
    Refused {
        text: "[contexts]\n\ncount = 0",
        says: &["`count` cannot be 0", "\"auto\"", "1 to 256"],
        lines: &[3],
    },
    Refused {
        text: "[contexts]\ncount = \"all\"",
        says: &["`count` cannot be \"all\"", "\"auto\""],
        lines: &[2],
    },
    Refused {
        text: "[contexts]\nprefix = \"\"",
        says: &["`prefix` cannot be \"\""],
        lines: &[2],
    },
    Refused {
        text: "[restart]\nfirst = 0",
        says: &["`first` cannot be 0", "1 to 3600000"],
        lines: &[2],
    },
    Refused {
        text: "[restart]\nfirst = 50\nmax = 40",
        says: &["`max = 40` does not go with `first = 50`", "raise `max`"],
        lines: &[3],
    },
    Refused {
        text: "[defaults]\ncodec = \"G729\"",
        says: &["`codec` cannot be \"G729\"", "PCMU", "auto"],
        lines: &[2],
    },
    Refused {
        text: "[defaults]\ncodec-out = \"auto\"",
        says: &["`codec-out` cannot be \"auto\"", "PCMA"],
        lines: &[2],
    },
    Refused {
        text: "[defaults]\nptime = 21",
        says: &["`ptime` cannot be 21", "10, 20, 30"],
        lines: &[2],
    },
    Refused {
        text: "[defaults]\nptime = -20",
        says: &["`ptime` cannot be -20"],
        lines: &[2],
    },
    Refused {
        text: "[defaults]\ncodec-out = \"Opus\"\nptime = 30",
        says: &["`ptime` cannot be 30", "5, 10, 20, 40, 60", "Opus"],
        lines: &[3],
    },
    Refused {
        text: "[defaults]\ncodec-out = \"L16/44100/2\"\nptime = 20",
        says: &["`ptime` cannot be 20", "1388", "3528"],
        lines: &[3],
    },
    Refused {
        text: "[defaults]\nlatency = 20000",
        says: &["`latency` cannot be 20000", "0 to 5000"],
        lines: &[2],
    },
    Refused {
        text: "[defaults]\npayload-type = 128",
        says: &["`payload-type` cannot be 128", "96 to 127"],
        lines: &[2],
    },
    Refused {
        text: "[defaults]\ncodec-out=\"PCMA\"\npayload-type = 72",
        says: &["`payload-type` cannot be 72", "or 8 for PCMA"],
        lines: &[3],
    },
];

/// The same for the keys of a stream: here the text is the whole table.
const REFUSED_STREAMS: &[Refused] = &[
    Refused {
        text: "listen = \"127.0.0.1:1\"\ndestination = \"a:1\"",
        says: &["a stream without `name`", "`listen`"],
        lines: &[1],
    },
    Refused {
        text: "name = \"a\"\ndestination = \"a:1\"",
        says: &["a stream without `listen`"],
        lines: &[1],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:70000\"\ndestination = \"a:1\"",
        says: &["`listen` cannot be \"127.0.0.1:70000\"", "1 to 65535"],
        lines: &[3],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:0\"\ndestination = \"a:1\"",
        says: &["`listen` cannot be \"127.0.0.1:0\""],
        lines: &[3],
    },
    Refused {
        text: "name = \"a\"\nlisten = 5004\ndestination = \"a:1\"",
        says: &["`listen` cannot be 5004", "text in double quotes"],
        lines: &[3],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:1\"\ndestination = \"host\"",
        says: &["`destination` cannot be \"host\"", "HOST:PORT"],
        lines: &[4],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:1\"\ndestination = \"a:1,b:2\"",
        says: &["`destination` cannot be \"a:1,b:2\""],
        lines: &[4],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:1\"\ndestination = \"2001:db8::7:5004\"",
        says: &["`destination` cannot be", "[2001:db8::7]:6000"],
        lines: &[4],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:1\"\nsources = [\"10.0.0.0/8\", \"nonsense\"]",
        says: &[
            "`sources` cannot be",
            "\"nonsense\" is no network",
            "192.0.2.0/24",
        ],
        lines: &[4],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:1\"\nsources = []",
        says: &["`sources` cannot be []", "anybody may send"],
        lines: &[4],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:1\"\nsources = \"10.0.0.0/8\"",
        says: &["`sources` cannot be \"10.0.0.0/8\"", "in brackets"],
        lines: &[4],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:1\"\nlatch-window = 0",
        says: &["`latch-window` cannot be 0", "1 to 3600"],
        lines: &[4],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:1\"\nlatch = false\nlatch-window = 3",
        says: &["`latch-window = 3` does not go with `latch = false`"],
        lines: &[5],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:1\"\ndestination = \"a:1\"\ncodec = \"mp3\"",
        says: &["`codec` cannot be \"mp3\"", "L16/RATE/CHANNELS"],
        lines: &[5],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:1\"\ndestination = \"a:1\"\nssrc = -1",
        says: &["`ssrc` cannot be -1", "0 to 4294967295"],
        lines: &[5],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:1\"\ndestination = \"a:1\"\nstep = 2",
        says: &["`step` without `count`"],
        lines: &[5],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:1\"\ndestination = \"a:1\"\ncount = 0",
        says: &["`count` cannot be 0", "1 to 65535"],
        lines: &[5],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:65000\"\ndestination = \"a:1\"\ncount = 1000",
        says: &["1000 streams runs past port 65535"],
        lines: &[5],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:6000\"\ndestination = \"a:1\"\n\n[[stream]]\nname = \"b\"\nlisten = \"0.0.0.0:6000\"\ndestination = \"a:1\"",
        says: &["`listen` port 6000 is taken", "\"b\""],
        lines: &[3, 8],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:6000\"\ndestination = \"a:1\"\ncount = 50\nstep = 4\n[[stream]]\nname = \"b\"\nlisten = \"127.0.0.1:6002\"\ndestination = \"a:1\"\ncount = 3\nstep = 1\nrtcp = false",
        says: &["`listen` port 6004 is taken", "\"b-2\""],
        lines: &[3, 9],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:6000\"\ndestination = \"a:1\"\n[[stream]]\nname = \"a\"\nlisten = \"127.0.0.1:6002\"\ndestination = \"a:1\"",
        says: &["`name` \"a\" is taken"],
        lines: &[2, 6],
    },
    // Where it goes.
    Refused {
        text: "name = \"a\"\nlisten = \"0.0.0.0:6000\"\ndestination = \"[2001:db8::7]:7000\"\ncodec = \"PCMU\"\ncodec-out = \"PCMA\"",
        says: &["`destination` cannot be", "family", "[::]:6000"],
        lines: &[4],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"[2001:db8::1]:6000\"\ndestination = \"192.0.2.7:7000\"\ncodec = \"PCMU\"\ncodec-out = \"PCMA\"",
        says: &["`destination` cannot be \"192.0.2.7:7000\"", "family"],
        lines: &[4],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"0.0.0.0:6000\"\ndestination = \"127.0.0.1:6000\"",
        says: &["`destination` cannot be", "the stream's own"],
        lines: &[4],
    },
    // In a range, the second one is its own.
    Refused {
        text: "name = \"a\"\nlisten = \"192.0.2.1:6000\"\ndestination = \"192.0.2.1:5998\"\ncount = 2\nstep = 2\ndestination-step = 4",
        says: &["`destination` cannot be", "192.0.2.1:6002"],
        lines: &[4],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:6000\"\ndestination = \"a:1\"\npayload-type-in = 96",
        says: &["`payload-type-in = 96` does not go with", "set a `codec`"],
        lines: &[5],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:6000\"\ndestination = \"a:1\"\ncodec = \"Opus\"\npayload-type-in = 128",
        says: &["`payload-type-in` cannot be 128", "0 to 127"],
        lines: &[6],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:6000\"\ndestination = \"a:1\"\ncodec = \"Opus\"\npayload-type-in = 72",
        says: &["`payload-type-in` cannot be 72", "RFC 5761"],
        lines: &[6],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:6000\"\ndestination = \"a:1\"\ncodec = \"Opus\"\npayload-type-in = 101",
        says: &["`payload-type-in = 101` does not go with `dtmf-payload-type = 101`"],
        lines: &[6],
    },
    // RTCP and its ports.
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:6000\"\ndestination = \"a:1\"\ncount = 3\nstep = 1",
        says: &["`step` cannot be 1", "`step = 2`", "rtcp = \"mux\""],
        lines: &[6],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:6000\"\ndestination = \"a:1\"\n[[stream]]\nname = \"b\"\nlisten = \"127.0.0.1:6001\"\ndestination = \"a:1\"",
        says: &["`listen` port 6001 is taken", "`rtcp-port`"],
        lines: &[3, 7],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:6000\"\ndestination = \"a:1\"\nrtcp-port = 6000",
        says: &["`rtcp-port` port 6000 is taken", "for its RTCP"],
        lines: &[3, 5],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:65535\"\ndestination = \"a:1\"",
        says: &["RTCP would need port 65536"],
        lines: &[1],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:6000\"\ndestination = \"a:1\"\nrtcp = \"yes\"",
        says: &["`rtcp` cannot be \"yes\"", "\"mux\"", "false"],
        lines: &[5],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:6000\"\ndestination = \"a:1\"\nrtcp = \"mux\"\nrtcp-port = 7000",
        says: &[
            "`rtcp-port = 7000` does not go with `rtcp = \"mux\"`",
            "remove `rtcp-port`",
        ],
        lines: &[6],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:6000\"\ndestination = \"latched\"\ndestination-rtcp-port = 7000",
        says: &["`destination-rtcp-port = 7000` does not go with `destination = \"latched\"`"],
        lines: &[5],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:6000\"\ndestination = \"latched\"\nlatch = false",
        says: &["`latch = false` does not go with `destination = \"latched\"`"],
        lines: &[5],
    },
    // The jitter buffer and telephone events.
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:6000\"\ndestination = \"a:1\"\nadaptive = true\nlatency = 0",
        says: &[
            "`adaptive = true` does not go with `latency = 0`",
            "`latency` above 0",
        ],
        lines: &[5],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:6000\"\ndestination = \"a:1\"\nclock-skew = \"fast\"",
        says: &["`clock-skew` cannot be \"fast\"", "\"window\"", "\"none\""],
        lines: &[5],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:6000\"\ndestination = \"a:1\"\ncname = \"\"",
        says: &["`cname` cannot be \"\"", "1 to 255 bytes"],
        lines: &[5],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:6000\"\ndestination = \"a:1\"\ndtmf-payload-type = 8",
        says: &["`dtmf-payload-type` cannot be 8", "96 to 127"],
        lines: &[5],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:6000\"\ndestination = \"a:1\"\npayload-type = 101",
        says: &["`payload-type = 101` does not go with `dtmf-payload-type = 101`, the default"],
        lines: &[5],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:6000\"\ndestination = \"a:1\"\nclock-rate = 0",
        says: &["`clock-rate` cannot be 0", "1 to"],
        lines: &[5],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:6000\"\ndestination = \"a:1\"\ncodec = \"Opus\"\nclock-rate = 48000",
        says: &[
            "`clock-rate = 48000` does not go with a `codec`",
            "`codec = \"auto\"`",
        ],
        lines: &[6],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:6000\"\ndestination = \"a:1\"\ncodec-out = \"PCMA\"\nclock-rate = 8000",
        says: &[
            "`clock-rate = 8000` does not go with a stream that is changed",
            "remove `codec-out`",
        ],
        lines: &[6],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:6000\"\ndestination = \"a:1\"\npayload-type-in = 97",
        says: &[
            "`payload-type-in = 97` does not go with `codec = \"auto\"`",
            "set a `codec`",
        ],
        lines: &[5],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:6000\"\ndestination = \"a:1\"\ncodec = \"Opus\"\npayload-type-in = 101",
        says: &["`payload-type-in = 101` does not go with `dtmf-payload-type = 101`"],
        lines: &[6],
    },
    // Loudness.
    Refused {
        text: "name = \"loud\"\nlisten = \"127.0.0.1:6000\"\ndestination = \"a:1\"\ncodec-out = \"PCMA\"\nloudness-target = -4.9",
        says: &[
            "`loudness-target` cannot be -4.9",
            "-70 to -5",
            "stream \"loud\"",
        ],
        lines: &[6],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:6000\"\ndestination = \"a:1\"\ncodec-out = \"PCMA\"\nloudness-target = \"-23\"",
        says: &["`loudness-target` cannot be \"-23\"", "a number of LUFS"],
        lines: &[6],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:6000\"\ndestination = \"a:1\"\ncodec-out = \"PCMA\"\nloudness-target = true",
        says: &["`loudness-target` cannot be true", "or false"],
        lines: &[6],
    },
    Refused {
        text: "name = \"raw\"\nlisten = \"127.0.0.1:6000\"\ndestination = \"a:1\"\nloudness-target = -23",
        says: &[
            "`loudness-target = -23` does not go with `codec = \"auto\"` and no `codec-out`",
            "stream \"raw\" is sent on as it comes, without decoding",
            "set a `codec-out` other than `codec`",
        ],
        lines: &[5],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:6000\"\ndestination = \"a:1\"\nmeter = 1",
        says: &["`meter` cannot be 1", "true or false"],
        lines: &[5],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:6000\"\ndestination = \"a:1\"\ncodec = \"PCMU\"\ncodec-out = \"PCMU\"\nmeter = true",
        says: &[
            "`meter = true` does not go with `codec = \"PCMU\"` and `codec-out = \"PCMU\"`",
            "without decoding",
            "remove `meter`",
        ],
        lines: &[7],
    },
    // Keys and types.
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:6000\"\ndestination = \"a:1\"\ncodec_out = \"PCMA\"",
        says: &[
            "`codec_out` is no key of [[stream]]",
            "did you mean `codec-out`?",
        ],
        lines: &[5],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:6000\"\ndestination = \"a:1\"\nwait = 20",
        says: &["`wait` is no key of [[stream]]", "belongs into [contexts]"],
        lines: &[5],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:6000\"\ndestination = \"a:1\"\nlatency = \"40\"",
        says: &[
            "`latency` cannot be \"40\"",
            "a whole number, without quotes",
        ],
        lines: &[5],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:6000\"\ndestination = \"a:1\"\nlatency = 40.5",
        says: &["`latency` cannot be 40.5", "a whole number"],
        lines: &[5],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:6000\"\ndestination = \"a:1\"\nlatency = 99999999999999999999",
        says: &["`latency` cannot be 99999999999999999999"],
        lines: &[5],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:6000\"\ndestination = \"a:1\"\nrtcp = [1]",
        says: &["`rtcp` cannot be [1]"],
        lines: &[5],
    },
];

fn assert_refused(text: &str, refused: &Refused) {
    let error = Config::from_toml("gateway.toml", text).expect_err(text);
    let problem = &error.problems[0];
    let shown = format!(
        "{}\n{}",
        problem.message,
        problem.help.as_deref().unwrap_or_default()
    );
    for words in refused.says {
        assert!(
            shown.contains(words),
            "{words:?} is not in {shown:?} of\n{text}"
        );
    }
    assert_eq!(problem.lines(), refused.lines, "{shown} of\n{text}");
    // What a person sees has the line itself in it.
    let mut rendered = String::new();
    miette::GraphicalReportHandler::new_themed(miette::GraphicalTheme::none())
        .with_width(200)
        .render_report(&mut rendered, &error)
        .expect("renders");
    for line in refused.lines {
        let line = text.lines().nth(line - 1).expect("a line of the file");
        assert!(
            rendered.contains(line.trim_end()),
            "{line:?} is not in\n{rendered}"
        );
    }
}

#[test]
fn bad_tables_are_refused_with_their_line() {
    for refused in REFUSED {
        assert_refused(&format!("{}{GOOD_STREAM}", refused.text), refused);
    }
}

#[test]
fn bad_streams_are_refused_with_their_line() {
    for refused in REFUSED_STREAMS {
        assert_refused(&format!("[[stream]]\n{}\n", refused.text), refused);
    }
}

#[test]
fn a_file_without_streams_is_refused() {
    let error = Config::from_toml("empty.toml", "[contexts]\nwait = 10\n").expect_err("no streams");
    assert!(error.problems[0].message.contains("no [[stream]]"));
}

#[test]
fn all_problems_are_found_at_once() {
    let text = format!("[contexts]\nwait = -1\ncount = -1\n[defaults]\ncodec = \"x\"{GOOD_STREAM}");
    let error = Config::from_toml("gateway.toml", &text).expect_err("three mistakes");
    assert_eq!(error.problems.len(), 3);
}

/// Mistakes of all kinds, none of which hides another: the messages in the order of the tables.
#[test]
fn a_typo_hides_no_other_mistake() {
    let text = "[contexts]\nwiat = 20\nwait = \"soon\"\n[restrat]\n\
                [[stream]]\nlisten = 5004\ndestination = \"nowhere\"\ncodec-uot = \"PCMA\"\nloudness-target = -23\n\
                [[stream]]\nname = \"b\"\nlisten = \"x\"\ndestination = \"a:1\"\nlatency = -1\n";
    let error = Config::from_toml("gateway.toml", text).expect_err("many mistakes");
    let mut messages: Vec<_> = error.problems.iter().map(|p| p.message.as_str()).collect();
    messages.sort_unstable();
    // No word on `loudness-target`: with `codec-out` it would be right.
    let expected = [
        "`codec-uot` is no key of [[stream]]",
        "`destination` cannot be \"nowhere\"",
        "`latency` cannot be -1",
        "`listen` cannot be \"x\"",
        "`listen` cannot be 5004",
        "`restrat` is no key of this file",
        "`wait` cannot be \"soon\"",
        "`wiat` is no key of [contexts]",
        "a stream without `name`",
    ];
    assert_eq!(messages, expected);
}

#[test]
fn text_that_is_no_toml_hides_no_other_mistake() {
    let text = format!(
        "[contexts]\nwait = = 20\ncount = -1\n[restart]\nfirst = 20 ms\n{GOOD_STREAM}latency = -1\n"
    );
    let error = Config::from_toml("gateway.toml", &text).expect_err("four mistakes");
    let mut lines: Vec<_> = error.problems.iter().flat_map(Problem::lines).collect();
    lines.sort_unstable();
    assert_eq!(lines, [2, 3, 5, 11], "{error:?}");
}

#[test]
fn a_meter_for_all_is_refused_where_nothing_is_decoded() {
    let text = format!("[defaults]\nmeter = true{GOOD_STREAM}");
    let error = Config::from_toml("gateway.toml", &text).expect_err("nothing to measure");
    let message = &error.problems[0].message;
    assert!(
        message.starts_with("`meter = true` does not go with these streams"),
        "{message}"
    );
    let other = "[[stream]]\nname = \"b\"\nlisten = \"127.0.0.1:5010\"\ndestination = \"a:1\"\ncodec-out = \"PCMA\"\n";
    Config::from_toml("gateway.toml", &format!("{text}{other}")).expect("one is measured");
}

#[test]
fn the_shortest_configuration_has_the_documented_defaults() {
    let config = Config::from_toml("gateway.toml", GOOD_STREAM).expect("good");
    assert_eq!(
        config.contexts,
        Contexts {
            prefix: "gateway".to_owned(),
            count: 1,
            wait_ms: 20
        }
    );
    assert_eq!(config.restart, Restart::default());
    let stream = &config.streams[0];
    assert_eq!(stream.codec_in, CodecIn::Auto);
    assert!(stream.is_passthrough());
    assert_eq!(stream.destination.to_string(), "127.0.0.1:6004");
}

/// The defaults are those of `threadbare serve` without arguments; what is written in one table leaves the others as they are.
#[test]
fn calls_need_one_table_only() {
    let serving = |text: &str| {
        let config = Config::from_toml("calls.toml", text).expect(text);
        assert_eq!(config.streams, []);
        config.serving.expect("calls")
    };
    assert_eq!(serving("[ng]\n"), Serving::default());
    // Its comments say that the values are the defaults.
    let example = include_str!("../../../../examples/calls.toml");
    assert_eq!(serving(example), Serving::default());
    let text = "[interfaces.outside]\naddress = \"10.0.0.1\"\nadvertised = \"203.0.113.7\"\nports = \"20000-20100\"\n\
                [interfaces.inside]\naddress = \"10.1.0.1\"\naddress-v6 = \"2001:db8::1\"\n\
                [timeouts]\nfinal-timeout = 0\n";
    let serving = serving(text);
    let told = |at: usize| {
        let one: &InterfaceSpec = &serving.interfaces[at];
        format!(
            "{}/{}!{}:{}",
            one.name, one.address, one.advertised, one.ports
        )
    };
    // In the order of the file, not of the names: the first one is the default.
    assert_eq!(told(0), "outside/10.0.0.1!203.0.113.7:20000-20100");
    assert_eq!(told(1), "inside/10.1.0.1!10.1.0.1:30000-40000");
    assert_eq!(told(2), "inside/2001:db8::1!2001:db8::1:30000-40000");
    assert_eq!(serving.timeouts.final_s, 0);
    assert_eq!(serving.timeouts.media_s, 60);
}

#[test]
fn calls_are_refused_what_the_machine_has_not() {
    let text =
        "[interfaces.a]\naddress = \"198.51.100.9\"\n[calls]\nrecording-dir = \"not-there\"\n";
    let error = Config::from_toml_for("calls.toml", text, &ThisMachine).expect_err("elsewhere");
    let said: Vec<&str> = error
        .problems
        .iter()
        .map(|one| one.message.as_str())
        .collect();
    assert!(
        said[0].contains("\"198.51.100.9\": this machine cannot"),
        "{said:?}"
    );
    assert!(said[1].contains("\"not-there\": no folder"), "{said:?}");
}

#[test]
fn ranges_count_out_names_ports_and_ssrcs() {
    let text = "
        [contexts]
        prefix = \"t\"
        count = 2
        [defaults]
        codec = \"PCMU\"
        codec-out = \"Opus\"
        ptime = 40
        [[stream]]
        name = \"call\"
        listen = \"[::1]:5000\"
        destination = \"[::1]:7000\"
        count = 3
        step = 10
        destination-step = 0
        ssrc = 4294967295
        [[stream]]
        name = \"single\"
        listen = \"127.0.0.1:5000\"
        destination = \"media.example:7000\"
        codec-out = \"PCMU\"
        ptime = 20
        payload-type = 97
    ";
    let config = Config::from_toml("gateway.toml", text).expect("good");
    let brief = config
        .streams
        .iter()
        .map(|s| {
            format!(
                "{} {} {} {:?} {}",
                s.name,
                s.listen,
                s.destination,
                s.ssrc,
                s.ptime_ms.unwrap_or(0)
            )
        })
        .collect::<Vec<_>>();
    assert_eq!(
        brief,
        [
            "call-0 [::1]:5000 [::1]:7000 Some(4294967295) 40",
            "call-1 [::1]:5010 [::1]:7000 Some(0) 40",
            "call-2 [::1]:5020 [::1]:7000 Some(1) 40",
            "single 127.0.0.1:5000 media.example:7000 None 20",
        ]
    );
    assert_eq!(config.streams[3].payload_type, Some(97));
    assert!(!config.streams[3].is_passthrough());
    assert_eq!(
        [0, 1, 2].map(|n| config.contexts.name_for(n)),
        ["t-0", "t-1", "t-0"]
    );
}

#[test]
fn auto_means_one_context_per_core() {
    let config = Config::from_toml("g", &format!("[contexts]\ncount = \"auto\"{GOOD_STREAM}"))
        .expect("good");
    assert!(config.contexts.count >= 1);
}

#[test]
fn loudness_is_a_default_that_streams_may_leave() {
    let text = "
        [defaults]
        codec = \"PCMU\"
        codec-out = \"PCMA\"
        loudness-target = -23
        meter = false
        [[stream]]
        name = \"a\"
        listen = \"127.0.0.1:5000\"
        destination = \"127.0.0.1:7000\"
        [[stream]]
        name = \"b\"
        listen = \"127.0.0.1:5002\"
        destination = \"127.0.0.1:7002\"
        loudness-target = -16.5
        meter = true
        loudness-reset = [\"00:00\", \"23:59\"]
        [[stream]]
        name = \"c\"
        listen = \"127.0.0.1:5004\"
        destination = \"127.0.0.1:7004\"
        codec-out = \"PCMU\"
        loudness-target = false
    ";
    let config = Config::from_toml("gateway.toml", text).expect("good");
    let loudness = |stream: &StreamSpec| (stream.loudness_target_lufs, stream.meter);
    let all: Vec<_> = config.streams.iter().map(loudness).collect();
    let resets = config.streams.iter().map(|one| one.loudness_resets.len());
    assert_eq!(resets.collect::<Vec<_>>(), [0, 2, 0]);
    assert_eq!(config.streams[1].loudness_resets, [0, 24 * 60 - 1]);
    let expected = [(Some(-23.0), false), (Some(-16.5), true), (None, false)];
    assert_eq!(all, expected);
    let config = Config::from_toml("gateway.toml", GOOD_STREAM).expect("good");
    assert_eq!(loudness(&config.streams[0]), (None, true));
}

const EXAMPLE: &str = include_str!("../../../../examples/gateway.toml");

#[test]
fn a_configuration_survives_being_printed_and_read_again() {
    let more = "
        [contexts]
        count = 7
        prefix = \"a \\\"b\\\" \u{e9}\"
        [[stream]]
        name = \"x = 1\"
        listen = \"[::1]:1\"
        destination = \"[::1]:2\"
        codec = \"L16/16000/2\"
        ptime = 10
        payload-type = 127
        ssrc = 4294967295
        adaptive = true
        latency = 200
        drop-on-latency = true
        clock-skew = \"none\"
        rtcp-port = 7001
        destination-rtcp-port = 7003
        cname = \"a@b\"
        dtmf-payload-type = 99
        latch = false
        loudness-target = -24.5
        meter = false
        [[stream]]
        name = \"back\"
        listen = \"[::1]:9\"
        destination = \"latched\"
        rtcp = \"mux\"
        [[stream]]
        name = \"silent\"
        listen = \"[::1]:11\"
        destination = \"[::1]:12\"
        rtcp = false
        latency = 0
        clock-rate = 48000
    ";
    let calls = "
        [ng]
        listen = \"192.0.2.1:2223\"
        tcp = \"192.0.2.1:2224\"
        allow = [\"192.0.2.0/24\", \"2001:db8::1\"]
        [http]
        listen = \"192.0.2.1:80\"
        token-file = \"a b\"
        [interfaces.b]
        address = \"192.0.2.1\"
        advertised = \"203.0.113.7\"
        ports = \"1024-2048\"
        [interfaces.a]
        address-v6 = \"2001:db8::1\"
        [interfaces.d]
        address = \"192.0.2.2\"
        address-v6 = \"2001:db8::2\"
        [limits]
        max-sessions = 7
        lateness-limit = 8
        cpu-limit = 90
        [timeouts]
        timeout = 1
        silent-timeout = 2
        final-timeout = 0
        offer-timeout = 3
        delete-delay = 4
        [calls]
        threads = 5
        latency = 6
        recording-dir = \"/a b\"
        recording-format = \"pcap\"
        state = \"/c d\"
        records = \"/e\"
    ";
    let alarms = &format!(
        "{GOOD_STREAM}
        [alarms]
        webhook = \"http://127.0.0.1:1/a?b=c\"
        [alarms.loss]
        threshold = 2.5
        hold = 30
        [alarms.no-packets]
        clear = 300
        [alarms.drift]
        enabled = false
        hysteresis = 1
        [history]
        dir = \"/f g\"
    "
    );
    let cluster = "
        [cluster]
        endpoints = [\"https://a.example.net:2379\", \"https://[2001:db8::1]:2379\"]
        node = \"relay-3\"
        weight = 2
        labels = [\"rack-2\", \"site.a\"]
        listen = \"[2001:db8::3]:2400\"
        user = \"u\"
        password-file = \"/p w\"
        ca = \"/ca.pem\"
        cert = \"/cert.pem\"
        key = \"/key.pem\"
        on-isolation = \"continue\"
        [[stream]]
        name = \"a\"
        listen = \"239.0.0.1:5000\"
        prefer = [\"rack-2\"]
        avoid = [\"rack-3\"]
        on-isolation = \"stop\"
        [[stream]]
        name = \"b\"
        listen = \"239.0.0.1:5002\"
    ";
    // Its `pipeline` needs GStreamer.
    let example = match cfg!(feature = "gstreamer") {
        true => EXAMPLE,
        false => GOOD_STREAM,
    };
    let example_of_calls = include_str!("../../../../examples/calls.toml");
    let mut texts = vec![example, GOOD_STREAM, more, calls, alarms, example_of_calls];
    if cfg!(feature = "cluster") {
        texts.push(cluster);
    }
    for text in texts {
        let config = Config::from_toml("first", text).expect("good");
        let printed = config.to_toml();
        assert_eq!(
            Config::from_toml("second", &printed).expect(&printed),
            config
        );
    }
}

/// As it is in the store, for whatever node carries it.
#[test]
fn a_stream_is_read_from_what_another_node_has_written() {
    for text in [EXAMPLE, GOOD_STREAM]
        .into_iter()
        .skip(usize::from(!cfg!(feature = "gstreamer")))
    {
        let config = Config::from_toml("first", text).expect("good");
        for spec in config.streams {
            let written = spec.to_toml();
            assert_eq!(
                StreamSpec::from_toml(&spec.name, &written),
                Ok(spec.clone())
            );
            StreamSpec::from_toml("another", &written).expect_err("another stream");
        }
    }
    let several = "[[stream]]\nname = \"a\"\nlisten = \"239.0.0.1:5000\"\ncount = 2";
    for odd in [
        "",
        "[",
        several,
        "[ng]\n",
        "[[stream]]\nname = \"a\"\nlater = 1",
    ] {
        StreamSpec::from_toml("a", odd).expect_err(odd);
    }
}

proptest::proptest! {
    /// A file that was cut, pasted and misspelt is refused or not, but always with a message.
    #[test]
    fn no_text_is_too_broken_for_a_message(
        cut in 0..EXAMPLE.len(),
        length in 0..200_usize,
        paste in "[\\PC\\n\"=\\[\\]#]{0,20}",
    ) {
        let mut bytes = EXAMPLE.as_bytes().to_vec();
        let end = (cut + length).min(bytes.len());
        bytes.splice(cut..end, paste.bytes());
        let text = String::from_utf8_lossy(&bytes);
        if let Err(error) = Config::from_toml("gateway.toml", &text) {
            let mut rendered = String::new();
            let shown = miette::GraphicalReportHandler::new().render_report(&mut rendered, &error);
            proptest::prop_assert!(shown.is_ok() && rendered.contains("gateway.toml"), "{rendered}");
        }
    }
}

/// Has 192.0.2.1 and 2001:db8::1, and knows two hosts.
struct Elsewhere;

impl Machine for Elsewhere {
    fn has_address(&self, ip: IpAddr) -> bool {
        let own = ["192.0.2.1", "2001:db8::1", "0.0.0.0", "::"];
        own.contains(&ip.to_string().as_str())
    }

    fn resolve(&self, host: &str) -> Result<Vec<IpAddr>, String> {
        let ip = |text: &str| text.parse().expect("an address");
        match host {
            "four" => Ok(vec![ip("192.0.2.9")]),
            "six" => Ok(vec![ip("2001:db8::9")]),
            "here" => Ok(vec![ip("192.0.2.1")]),
            "both" => Ok(vec![ip("2001:db8::9"), ip("192.0.2.9")]),
            _ => Err("no such host".to_owned()),
        }
    }

    fn check_pipeline(&self, _text: &str) -> Result<(), String> {
        Ok(())
    }

    fn read_audio(&self, _path: &std::path::Path) -> Result<(), String> {
        Ok(())
    }

    fn has_folder(&self, _path: &std::path::Path) -> bool {
        true
    }
}

#[test]
fn the_machine_is_asked_for_its_addresses_and_for_names() {
    for (listen, destination, says) in [
        ("192.0.2.1:6000", "four:7000", None),
        ("[2001:db8::1]:6000", "six:7000", None),
        ("[::]:6000", "four:7000", None),
        ("239.1.2.3:6000", "four:7000", None),
        (
            "192.0.2.2:6000",
            "four:7000",
            Some("`listen` cannot be \"192.0.2.2:6000\""),
        ),
        ("0.0.0.0:6000", "six:7000", Some("family")),
        ("[2001:db8::1]:6000", "four:7000", Some("family")),
        ("0.0.0.0:6000", "nobody:7000", Some("nobody: no such host")),
        ("192.0.2.1:6000", "here:6000", Some("the stream's own")),
        ("0.0.0.0:6000", "here:6000", Some("the stream's own")),
        ("0.0.0.0:6000", "192.0.2.1:6000", Some("the stream's own")),
        ("0.0.0.0:6000", "192.0.2.2:6000", None),
        // The stream sends to the first address that its socket reaches.
        ("0.0.0.0:6000", "both:7000", None),
        ("[2001:db8::1]:6000", "both:7000", None),
    ] {
        let text = format!(
            "[[stream]]\nname = \"a\"\nlisten = \"{listen}\"\ndestination = \"{destination}\"\n\
             codec = \"PCMU\"\ncodec-out = \"PCMA\"\n"
        );
        let checked = Config::from_toml_for("test", &text, &Elsewhere);
        match (checked, says) {
            (Ok(_), None) => {}
            (Err(error), Some(says)) => {
                let said = format!("{:?}", miette::Report::new(error));
                let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
                assert!(said.contains(says), "{listen} {destination}: {said}");
            }
            (result, _) => panic!("{listen} {destination}: {result:?}"),
        }
        // Wherever it is checked, it may run elsewhere.
        if says.is_some_and(|says| says.contains("no such host")) {
            assert!(Config::from_toml("test", &text).is_ok());
        }
    }
}

/// Also where packets go out as they came: they leave from the port that receives.
#[test]
fn unchanged_packets_keep_the_address_family() {
    let text = "[[stream]]\nname = \"a\"\nlisten = \"0.0.0.0:6000\"\ndestination = \"[2001:db8::7]:7000\"\n";
    for checked in [
        Config::from_toml("test", text),
        Config::from_toml_for("test", text, &Elsewhere),
    ] {
        let said = format!("{:?}", miette::Report::new(checked.expect_err("no way")));
        assert!(said.contains("family"), "{said}");
    }
}

/// A stream may feed another one, but packets must not come round.
#[test]
fn a_circle_of_streams_is_refused() {
    let stream = |name: &str, listen: &str, destination: &str| {
        format!(
            "[[stream]]\nname = \"{name}\"\nlisten = \"{listen}\"\ndestination = \"{destination}\"\n"
        )
    };
    let a_to_b = stream("a", "0.0.0.0:6000", "127.0.0.1:6100");
    let chain = a_to_b.clone() + &stream("b", "127.0.0.1:6100", "192.0.2.7:6000");
    assert!(Config::from_toml("test", &chain).is_ok());
    // 192.0.2.1 is this machine's, and 0.0.0.0 is all of its addresses.
    for (back, needs_machine) in [("127.0.0.1:6000", false), ("192.0.2.1:6000", true)] {
        let back = if needs_machine { "here:6000" } else { back };
        let text = a_to_b.clone()
            + &stream("b", "0.0.0.0:6100", "127.0.0.1:6200")
            + &stream("c", "0.0.0.0:6200", back);
        assert_eq!(Config::from_toml("test", &text).is_ok(), needs_machine);
        let refused = Config::from_toml_for("test", &text, &Loopback).expect_err("a circle");
        let said = format!("{:?}", miette::Report::new(refused));
        let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
        for words in ["`destination` cannot be", "circle", "\"a\", \"b\", \"c\""] {
            assert!(said.contains(words), "no {words} in {said}");
        }
    }
}

/// Has every address, and "here" is 192.0.2.1.
struct Loopback;

impl Machine for Loopback {
    fn has_address(&self, _ip: IpAddr) -> bool {
        true
    }

    fn resolve(&self, _host: &str) -> Result<Vec<IpAddr>, String> {
        Ok(vec!["192.0.2.1".parse().expect("an address")])
    }

    fn check_pipeline(&self, _text: &str) -> Result<(), String> {
        Ok(())
    }

    fn read_audio(&self, _path: &std::path::Path) -> Result<(), String> {
        Ok(())
    }

    fn has_folder(&self, _path: &std::path::Path) -> bool {
        true
    }
}
