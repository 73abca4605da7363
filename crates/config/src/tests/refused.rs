//! Configurations that must be refused, with their messages.

/// A configuration that must be refused: its text, required parts of the message, and the lines that the message shows.
pub(super) struct Refused {
    pub(super) text: &'static str,
    pub(super) says: &'static [&'static str],
    pub(super) lines: &'static [usize],
}

pub(super) const REFUSED: &[Refused] = &[
    Refused {
        text: "[[stream]]\nname = \"s\"\nlisten = \"127.0.0.1:5004\"\ndestination = \"127.0.0.1:6004\"\nsrtp-in-key-file = \"a\"\nsrtp-in-key-env = \"B\"",
        says: &[
            "`srtp-in-key-env = \"B\"` cannot be combined with `srtp-in-key-file`",
            "remove one of the two",
        ],
        lines: &[6],
    },
    Refused {
        text: "[[stream]]\nname = \"s\"\nlisten = \"127.0.0.1:5004\"\nsrtp-out-key-env = \"B\"",
        says: &["cannot be combined with a stream without `destination`"],
        lines: &[4],
    },
    Refused {
        text: "[[stream]]\nname = \"s\"\nlisten = \"127.0.0.1:5004\"\ndestination = \"latched\"\nsrtp-out-key-file = \"a\"",
        says: &["`destination = \"latched\"` and no other key", "both keys"],
        lines: &[5],
    },
    Refused {
        text: "[[stream]]\nname = \"s\"\nlisten = \"127.0.0.1:5004\"\ndestination = \"latched\"\nsrtp-in-key-file = \"a\"",
        says: &["`srtp-in-key-file = \"a\"` cannot be combined", "both keys"],
        lines: &[5],
    },
    Refused {
        text: "[[stream]]\nname = \"s\"\nlisten = \"127.0.0.1:5004\"\ndestination = \"127.0.0.1:6004\"\nsrtp-out-key-file = \"a\"\nssrc = 7",
        says: &[
            "`ssrc = 7` cannot be combined with `srtp-out-key-file`",
            "same key stream",
        ],
        lines: &[6],
    },
    Refused {
        text: "[[stream]]\nname = \"s\"\nlisten = \"127.0.0.1:5004\"\ndestination = \"127.0.0.1:6004\"\nsrtp-out-key-file = \"a\"\ncount = 2",
        says: &[
            "`srtp-out-key-file = \"a\"` cannot be combined with `count`",
            "its own key",
        ],
        lines: &[5],
    },
    Refused {
        text: "[[stream]]\nname = \"s\"\nlisten = \"127.0.0.1:5004\"\ndestination = \"127.0.0.1:6004\"\ncodec = \"PCMU\"\n[[stream.fallback]]\nsilence = true\nsrtp-in-key-env = \"B\"",
        says: &[
            "`silence`, which is not RTP",
            "only a fallback with `listen` has a key",
        ],
        lines: &[8],
    },
    Refused {
        text: "[contexts]\nwiat = 20",
        says: &["`wiat` is not a key of [contexts]", "did you mean `wait`?"],
        lines: &[2],
    },
    Refused {
        text: "colour = 1",
        says: &[
            "`colour` is not a key of this file",
            "contexts, restart, defaults, stream, alarms, history, s3, cluster, ng, http, interfaces, limits, timeouts, calls",
        ],
        lines: &[1],
    },
    Refused {
        text: "[alarms.noise]\nhold = 1",
        says: &["`noise` is not a key of [alarms]", "silence"],
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
            "`threshold = 3` cannot be combined with [alarms.no-packets]",
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
            "`loudness-reset = [\"06:00\"]` cannot be combined with",
            "remove `loudness-reset`",
        ],
        lines: &[5],
    },
    Refused {
        text: "[calls]\nfallback = \"x.wav\"",
        says: &["`fallback` cannot be", "{ file = "],
        lines: &[2],
    },
    Refused {
        text: "[calls]\nfallback = { timeout = 1000 }",
        says: &["a fallback without a sound", "tone = 440"],
        lines: &[2],
    },
    Refused {
        text: "[calls]\nfallback = { file = \"x.wav\", tone = 440 }",
        says: &["`file` and `tone` in one fallback"],
        lines: &[2],
    },
    Refused {
        text: "[calls]\nfallback = { tone = 440, after = 3 }",
        says: &["`after` is not a key of `fallback`", "file, tone, timeout"],
        lines: &[2],
    },
    Refused {
        text: "[calls]\nfallback = { tone = 440, timeout = 199 }",
        says: &["`timeout` cannot be 199", "200 to 3600000"],
        lines: &[2],
    },
    Refused {
        text: "[calls]\nfallback = { tone = 10 }",
        says: &["`tone` cannot be 10"],
        lines: &[2],
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
        says: &["`ca` cannot be \"/ca.pem\"", "start with https://"],
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
        text: "[s3]\npath-style = true\n[ng]",
        says: &["[s3] without `spool`", "add the folder"],
        lines: &[1],
    },
    Refused {
        text: "[s3]\nspool = \"spool\"\n[ng]",
        says: &["`spool` cannot be \"spool\"", "a path that begins with /"],
        lines: &[2],
    },
    Refused {
        text: "[s3]\nspool = \"/spool\"\nendpoint = \"ftp://host\"\n[ng]",
        says: &["`endpoint` cannot be \"ftp://host\"", "https://"],
        lines: &[3],
    },
    Refused {
        text: "[s3]\nspool = \"/spool\"\n[ng]\n[calls]\nrecord = { to = \"s3://eu/a bucket/{call}.wav\" }",
        says: &["`to` cannot be", "s3://REGION/BUCKET/NAME"],
        lines: &[5],
    },
    Refused {
        text: "[s3]\nspool = \"/spool\"\n[ng]\n[calls]\nrecord = { to = \"s3://eu/bucket/../{call}.wav\" }",
        says: &["`to` cannot be", "must not contain the folders . and .."],
        lines: &[5],
    },
    Refused {
        text: "[cluster]\nendpoints = [\"http://etcd:2379\"]\nnode = \"a\"\nservice-addresses = [\"192.0.2.1/24@e\"]\nservice-program = \"p\"",
        says: &[
            "`service-addresses` cannot be \"192.0.2.1/24@e\"",
            "service-addresses need key-file",
        ],
        lines: &[4],
    },
    Refused {
        text: "[cluster]\nendpoints = [\"http://etcd:2379\"]\nnode = \"a\"\nservice-addresses = [\"192.0.2.1\"]",
        says: &["`service-addresses` cannot be", "10.0.0.10/24@eth0"],
        lines: &[4],
    },
    Refused {
        text: "[cluster]\nendpoints = [\"http://etcd:2379\"]\nnode = \"a\"\nservice-program = \"p\"",
        says: &[
            "`service-program` cannot be \"p\"",
            "service-program needs service-addresses",
        ],
        lines: &[4],
    },
    Refused {
        text: "[ng]\n[interfaces.a]\naddress = \"127.0.0.1\"\n[cluster]\nendpoints = [\"http://etcd:2379\"]\nnode = \"a\"\nlisten = \"10.0.0.1:1\"\nkey-file = \"k\"\nservice-addresses = [\"192.0.2.1/24@e\"]",
        says: &["127.0.0.1", "would not move with the calls"],
        lines: &[2],
    },
    Refused {
        text: "[cluster]\nendpoints = [\"http://etcd:2379\"]\nnode = \"a\"\nkey-file = \"k\"",
        says: &["`key-file` cannot be \"k\"", "key-file needs listen"],
        lines: &[4],
    },
    Refused {
        text: "[cluster]\nendpoints = [\"http://etcd:2379\"]\nnode = \"a\"\ncalls-on-isolation = \"stop\"",
        says: &[
            "`calls-on-isolation` cannot be \"stop\"",
            "\"refuse\" or \"take\"",
        ],
        lines: &[4],
    },
    Refused {
        text: "[[stream]]\nname = \"a\"\nlisten = \"127.0.0.1:5000\"\nprefer = [\"rack-1\"]",
        says: &[
            "cannot be combined with a file without [cluster]",
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
        says: &["`address` cannot be \"0.0.0.0\"", "advertised to a party"],
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
        says: &["`timeout` is not a key of [limits]"],
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
        text: "[calls]\nmedia = { deny = [\"10.0.0.0/33\"] }",
        says: &["`media` cannot be used", "10.0.0.0/33", "192.0.2.0/24"],
        lines: &[2],
    },
    Refused {
        text: "[calls]\nmedia = { forbid = [\"10.0.0.0/8\"] }",
        says: &["`media` cannot be", "deny", "allow"],
        lines: &[2],
    },
    Refused {
        text: "[calls]\nxdp = [\"eth0\"]\nxdp-mode = \"fast\"",
        says: &["`xdp-mode` cannot be \"fast\"", "\"generic\", \"native\""],
        lines: &[3],
    },
    Refused {
        text: "[calls]\nxdp = [\"eth0\"]\nxdp-frames = 1000",
        says: &[
            "`xdp-frames` cannot be 1000",
            "powers of two from 64 to 65536",
        ],
        lines: &[3],
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
        text: "[contexts]\nrebalance = 1",
        says: &["`rebalance` cannot be 1", "true or false"],
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
        says: &[
            "`max = 40` cannot be combined with `first = 50`",
            "raise `max`",
        ],
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

/// Streams that must be refused. The text is the whole table of the stream.
pub(super) const REFUSED_STREAMS: &[Refused] = &[
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
            "\"nonsense\" is not a network",
            "192.0.2.0/24",
        ],
        lines: &[4],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:1\"\nsources = []",
        says: &["`sources` cannot be []", "any host may send"],
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
        says: &["`latch-window = 3` cannot be combined with `latch = false`"],
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
    // The destination.
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
    // In this range, the second stream would send to its own port.
    Refused {
        text: "name = \"a\"\nlisten = \"192.0.2.1:6000\"\ndestination = \"192.0.2.1:5998\"\ncount = 2\nstep = 2\ndestination-step = 4",
        says: &["`destination` cannot be", "192.0.2.1:6002"],
        lines: &[4],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:6000\"\ndestination = \"a:1\"\npayload-type-in = 96",
        says: &[
            "`payload-type-in = 96` cannot be combined with",
            "set a `codec`",
        ],
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
        says: &["`payload-type-in = 101` cannot be combined with `dtmf-payload-type = 101`"],
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
            "`rtcp-port = 7000` cannot be combined with `rtcp = \"mux\"`",
            "remove `rtcp-port`",
        ],
        lines: &[6],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:6000\"\ndestination = \"latched\"\ndestination-rtcp-port = 7000",
        says: &[
            "`destination-rtcp-port = 7000` cannot be combined with `destination = \"latched\"`",
        ],
        lines: &[5],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:6000\"\ndestination = \"latched\"\nlatch = false",
        says: &["`latch = false` cannot be combined with `destination = \"latched\"`"],
        lines: &[5],
    },
    // The jitter buffer and telephone events.
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:6000\"\ndestination = \"a:1\"\nadaptive = true\nlatency = 0",
        says: &[
            "`adaptive = true` cannot be combined with `latency = 0`",
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
        says: &[
            "`payload-type = 101` cannot be combined with `dtmf-payload-type = 101`, the default",
        ],
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
            "`clock-rate = 48000` cannot be combined with a `codec`",
            "`codec = \"auto\"`",
        ],
        lines: &[6],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:6000\"\ndestination = \"a:1\"\ncodec-out = \"PCMA\"\nclock-rate = 8000",
        says: &[
            "`clock-rate = 8000` cannot be combined with a stream whose packets are changed",
            "remove `codec-out`",
        ],
        lines: &[6],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:6000\"\ndestination = \"a:1\"\npayload-type-in = 97",
        says: &[
            "`payload-type-in = 97` cannot be combined with `codec = \"auto\"`",
            "set a `codec`",
        ],
        lines: &[5],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:6000\"\ndestination = \"a:1\"\ncodec = \"Opus\"\npayload-type-in = 101",
        says: &["`payload-type-in = 101` cannot be combined with `dtmf-payload-type = 101`"],
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
            "`loudness-target = -23` cannot be combined with `codec = \"auto\"` and no `codec-out`",
            "stream \"raw\" is forwarded without decoding",
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
            "`meter = true` cannot be combined with `codec = \"PCMU\"` and `codec-out = \"PCMU\"`",
            "without decoding",
            "remove `meter`",
        ],
        lines: &[7],
    },
    // Keys and types.
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:6000\"\ndestination = \"a:1\"\ncodec_out = \"PCMA\"",
        says: &[
            "`codec_out` is not a key of [[stream]]",
            "did you mean `codec-out`?",
        ],
        lines: &[5],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:6000\"\ndestination = \"a:1\"\nwait = 20",
        says: &[
            "`wait` is not a key of [[stream]]",
            "belongs in the table [contexts]",
        ],
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
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:6000\"\ncodec = \"PCMU\"\nrecord = {}",
        says: &["`record` without `to`", "to = \"/var/lib"],
        lines: &[5],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:6000\"\ncodec = \"PCMU\"\nrecord = true",
        says: &["`record` cannot be true", "or false"],
        lines: &[5],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:6000\"\ncodec = \"PCMU\"\nrecord = { to = \"rec/{name}.wav\" }",
        says: &["`to` cannot be \"rec/{name}.wav\"", "must begin with /"],
        lines: &[5],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:6000\"\ncodec = \"PCMU\"\nrecord = { to = \"/rec/../{name}.wav\" }",
        says: &[
            "`to` cannot be \"/rec/../{name}.wav\"",
            "must not contain the folders",
        ],
        lines: &[5],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:6000\"\ncodec = \"PCMU\"\nrecord = { to = \"/rec/{who}.wav\" }",
        says: &[
            "`to` cannot be \"/rec/{who}.wav\"",
            "name, call, time, date, id and side",
        ],
        lines: &[5],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:6000\"\ncodec = \"PCMU\"\nrecord = { to = \"/{name}.wav\" }",
        says: &[
            "`to` cannot be \"/{name}.wav\"",
            "must name a folder, and below it",
        ],
        lines: &[5],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:6000\"\ncodec = \"PCMU\"\nrecord = { to = \"s3://eu/bucket/{name}.wav\" }",
        says: &[
            "`to` cannot be \"s3://eu/bucket/{name}.wav\"",
            "needs a table [s3]",
        ],
        lines: &[5],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:6000\"\ncodec = \"PCMU\"\nrecord = { to = \"/r/{id}\", format = \"mp3\" }",
        says: &["`format` cannot be \"mp3\"", "\"wav-g711\""],
        lines: &[5],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:6000\"\ncodec = \"PCMU\"\nrecord = { to = \"/r/{id}.wav\", format = \"mka\" }",
        says: &[
            "`format = \"mka\"` cannot be combined with",
            "extension of the format",
        ],
        lines: &[5],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:6000\"\ncodec = \"PCMU\"\nrecord = { to = \"/r/{id}\", rotate = \"5\" }",
        says: &["`rotate` cannot be \"5\"", "64kB to 4GB"],
        lines: &[5],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:6000\"\ncodec = \"PCMU\"\nrecord = { to = \"/r/{id}\", on = \"off\" }",
        says: &["`on` cannot be \"off\"", "\"always\", \"call\", \"loss\""],
        lines: &[5],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:6000\"\ncodec = \"PCMU\"\nrecord = { to = \"/r/{id}\", tracks = \"3\" }",
        says: &["`tracks` cannot be \"3\"", "\"sides\", \"mixed\""],
        lines: &[5],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:6000\"\ncodec = \"PCMU\"\nrecord = { to = \"/r/{id}\", before = 3 }",
        says: &["`before = 3` cannot be combined with", "loss"],
        lines: &[5],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:6000\"\ncodec = \"PCMU\"\nrecord = { to = \"/r/{id}\", on = \"loss\", after = 61 }",
        says: &["`after` cannot be 61", "1 to 60"],
        lines: &[5],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:6000\"\ncodec = \"PCMU\"\nrecord = { to = \"/r/{id}\", too = 1 }",
        says: &["`too` is not a key of `record`", "to, format, tracks"],
        lines: &[5],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:6000\"\ncodec = \"PCMU\"\nrecord = { to = \"/r/{id}-{side}\", tracks = \"mixed\" }",
        says: &["`tracks = \"mixed\"` cannot be combined with `{side}`"],
        lines: &[5],
    },
    Refused {
        text: "name = \"a\"\nlisten = \"127.0.0.1:6000\"\ndestination = \"a:1\"\nrecord = { to = \"/r/{id}\" }",
        says: &[
            "`record` cannot be combined with `codec = \"auto\"`",
            "name the `codec`",
        ],
        lines: &[5],
    },
];
