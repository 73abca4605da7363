#!/usr/bin/env bash
# The relay behind Kamailio, with independent programs: sipp and baresip call each other, Kamailio's rtpengine module controls the
# relay, and dumpcap captures every packet. sip/check.py has the expectations for the packets. Needs root, or user namespaces.
#
#   RELAY=rtpengine tests/sip.sh    the same with Debian's relay, to check the calls themselves
. "$(dirname "$0")/common.bash"

relay=${RELAY:-threadbare}

[ "$relay" != threadbare ] || use_build
enter_namespace

here=$PWD/tests/sip
export PYTHONDONTWRITEBYTECODE=1
proxy=127.0.0.1:5060
caller=127.0.1.1
callee=127.0.2.1
ng_port=2223
# Enough for short calls whose ports stay unused for a while, and below the kernel's automatic ports.
ports_min=20000 ports_max=29999
# Only ends a test that hangs: all waits end with an event.
seconds_max=60
# Memory after 600 calls have ended. Each takes 20 KiB or more while it is running; the rest is kept for a while (replies, unused
# ports), or is the allocator's.
grown_kib_max=3072
# The folder differs by architecture.
baresip_modules=$(dirname "$(dpkg -L baresip-core | grep '/g711\.so$')")
# A call without media ends after this many seconds.
timeout_s=3
logs=$work/logs
mkdir "$logs"

show_logs() {
    local status=$?
    if [ "$status" -ne 0 ]; then
        tail -n 25 "$logs"/* >&2
        # Printed again, because sipp's unexpected message matters, and only the end of a long output may be left.
        for file in "$logs"/errors-*; do head -n 40 "$file" >&2 || true; done
        say "failed with ${reason:-status $status}; see above for each program's log" >&2
        [ -z "${KEEP:-}" ] || cp -r "$work" "$KEEP"
    fi
    clean_up
}
trap show_logs EXIT
die() { reason=$*; exit 1; }

# wait_for WHAT COMMAND...: until the command succeeds.
wait_for() {
    local what=$1 end=$((SECONDS + seconds_max))
    shift
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$end" ] || die "waited $seconds_max s for: $what"
        sleep 0.05
    done
}

gone_or() {
    local pid=$1
    shift
    ! kill -0 "$pid" || "$@"
}

# wait_for_program PID WHAT COMMAND...: the same, but fails if the program has ended.
wait_for_program() {
    local pid=$1 what=$2
    shift 2
    wait_for "$what" gone_or "$pid" "$@"
    kill -0 "$pid" 2>/dev/null || die "the program has ended: $what"
}

# listens ADDRESS PORT
listens() { [ -n "$(ss -Hanu "src = $1:$2")" ]; }

ng() { python3 "$here/ng.py" "$ng_port" "$@"; }

start_relay() {
    case $relay in
        rtpengine)
            # One thread, because several threads change the order of packets.
            rtpengine --config-file=none --table=-1 --foreground --log-stderr --log-level=5 --interface=127.0.0.1 \
                --listen-ng=127.0.0.1:$ng_port --port-min=$ports_min --port-max=$ports_max --timeout=$timeout_s --num-threads=1 \
                --silent-timeout=60 >"$logs/relay" 2>&1 &
            ;;
        threadbare)
            "$target_dir/threadbare" serve --ng 127.0.0.1:$ng_port --address 127.0.0.1 --ports $ports_min-$ports_max \
                --timeout $timeout_s --silent-timeout 60 --state "$work/calls.redb" >>"$logs/relay" 2>&1 &
            ;;
        *) die "RELAY=$relay: expected threadbare or rtpengine" ;;
    esac
    relay_pid=$!
    started+=("$relay_pid")
    wait_for_program "$relay_pid" 'a relay that answers' ng ping
}

start_proxy() {
    sed "s/@NG@/127.0.0.1:$ng_port/" "$here/kamailio.cfg" >"$work/kamailio.cfg"
    # -DD: in the foreground. It keeps each transaction for seconds, and the slower the machine, the more there are: 32 MiB of
    # shared memory ran out.
    kamailio -DD -E -m 256 -Y "$work" -f "$work/kamailio.cfg" >"$logs/kamailio" 2>&1 &
    started+=($!)
    wait_for_program $! 'a proxy that listens' listens 127.0.0.1 5060
}

start_capture() {
    dumpcap -q -i lo -f udp -P -B 64 -w "$work/calls.pcap" >"$logs/dumpcap" 2>&1 &
    capture_pid=$!
    started+=("$capture_pid")
    wait_for_program "$capture_pid" 'a capture that runs' marked begin
}

# Sends a word to a closed port, and checks whether the file has it.
marked() {
    echo "mark: $1" >/dev/udp/127.0.0.1/9 || true
    grep -qa "mark: $1" "$work/calls.pcap"
}

stop_capture() {
    wait_for 'the last packet in the capture' marked end
    kill -INT "$capture_pid"
    wait "$capture_pid" || die 'dumpcap failed'
    grep -q '/0 (pcap:0/dumpcap:0' "$logs/dumpcap" || die "dumpcap lost packets: $(cat "$logs/dumpcap")"
}

# sipp's audio: a tone for each side, in folders by codec, and the same in two halves.
make_speech() {
    local folder side hz codec pt
    for folder in caller/500/mulaw/0 callee/1250/mulaw/0 callee-alaw/1250/alaw/8; do
        IFS=/ read -r side hz codec pt <<<"$folder"
        mkdir "$work/$side"
        ffmpeg -nostdin -v error -f lavfi -i "sine=frequency=$hz:duration=3" -ar 8000 -ac 1 -f "$codec" "$work/$side/speech"
        # A separate SSRC for each source.
        python3 "$here/speech.py" "$work/$side/speech" "$pt" "$hz" "$work/$side/speech.pcap"
        python3 "$here/speech.py" "$work/$side/speech" "$pt" "$hz" "$work/$side/speech-1.pcap" 0 50
        python3 "$here/speech.py" "$work/$side/speech" "$pt" "$hz" "$work/$side/speech-2.pcap" 50 50
    done
}

# hold_ports ADDRESS FIRST COUNT: see ports.py. sipp takes every fourth port.
hold_ports() {
    mkfifo "$work/hold-$1-$2"
    python3 "$here/ports.py" "$1" "$2" 4 "$3" <"$work/hold-$1-$2" >"$logs/ports-$1-$2" 2>&1 &
    started+=($!)
    # Open until this script ends.
    exec {holding}>"$work/hold-$1-$2"
    wait_for "ports $2 and on" grep -q ready "$logs/ports-$1-$2"
}

# become_sipp SCENARIO FOLDER ADDRESS MEDIA_PORT ARGUMENTS...
become_sipp() {
    local scenario=$1 folder=$2 address=$3 media_port=$4
    shift 4
    cd "$work/$folder"
    # It binds the port of -mp for all calls; the scenarios use the ports after it.
    exec sipp -sf "$here/$scenario.xml" -i "$address" -p 5060 -mi "$address" -mp $((media_port - 4)) -nostdin -trace_err \
        -error_file "$logs/errors-$scenario-$media_port" -timeout $seconds_max -timeout_error "$@" \
        >"$logs/sipp-$scenario-$media_port" 2>&1
}

# calls USER CALLS RATE MEDIA_PORT CALLER CALLEE [CALLEE_FOLDER]: sipp calls sipp, and both must succeed. At most 50 calls at
# once: on a slow machine the calls start more slowly, and do not pile up.
calls() {
    local user=$1 calls=$2 rate=$3 port=$4 from=$5 to=$6 folder=${7:-callee} codec=(0 PCMU)
    [ "$folder" != callee-alaw ] || codec=(8 PCMA)
    become_sipp "$to" "$folder" $callee "$port" -m "$calls" -key codec "${codec[0]}" -key encoding "${codec[1]}" &
    local callee_pid=$!
    wait_for_program "$callee_pid" "a callee of $user" listens $callee 5060
    (become_sipp "$from" caller $caller "$port" -m "$calls" -r "$rate" -l 50 -s "$user" -key callee $callee:5060 $proxy) ||
        die "$user: the caller failed"
    if [ "$user" = lost ]; then
        # It is not informed that the call is over.
        { kill -KILL "$callee_pid"; wait "$callee_pid"; } 2>/dev/null || true
    else
        wait "$callee_pid" || die "$user: the callee failed"
    fi
    say "$user: $calls calls"
}

# start_phone NAME INTERFACE ADDRESS TONE_HZ ACCOUNT_PARAMETERS ARGUMENTS...: puts its process in phone_pid.
start_phone() {
    local name=$1 interface=$2 address=$3 hz=$4 parameters=$5 folder=$work/$1
    shift 5
    mkdir "$folder"
    ffmpeg -nostdin -v error -f lavfi -i "sine=frequency=$hz:duration=$seconds_max" -ar 8000 -ac 1 -c:a pcm_s16le "$folder/tone.wav"
    sed -e "s|@ADDRESS@|$address|; s|@INTERFACE@|$interface|; s|@FOLDER@|$folder|; s|@MODULES@|$baresip_modules|" \
        "$here/baresip.config" >"$folder/config"
    echo "<sip:$name@$address>;regint=0;audio_codecs=PCMU/8000/1;$parameters" >"$folder/accounts"
    : >"$folder/contacts"
    baresip -f "$folder" -v "$@" </dev/null >"$logs/$name" 2>&1 &
    phone_pid=$!
    started+=("$phone_pid")
    wait_for_program "$phone_pid" "the phone $name" grep -q 'baresip is ready' "$logs/$name"
}

# end_phone PID: hangs up and ends.
end_phone() {
    kill -INT "$1"
    wait "$1" || die "a phone failed: status $?"
}

# heard NAME SECONDS: whether the phone has recorded that much audio of 16 bits at 8 kHz.
heard() {
    local file
    file=$(echo "$work/$1"/dump-*-dec.wav)
    [ "$(stat -c %s "$file")" -gt $((44 + $2 * 16000)) ]
}

# expect_tone NAME HZ: checks the phone's received tone.
expect_tone() {
    local file
    file=$(echo "$work/$1"/dump-*-dec.wav)
    python3 "$here/tone.py" "$file" "$2" || die "$1: the recording has no tone of $2 Hz"
}

# Whether this many calls are running, each with a second of audio from both sides.
all_talk() {
    # One process for all queries: on a busy machine, the calls would end before a process for each has started.
    python3 -c '
import sys
sys.path.insert(0, sys.argv[1])
from ng import ask
calls = ask(sys.argv[2], "list")["calls"]
def heard(call):
    tags = ask(sys.argv[2], "query", "call-id=" + call)["tags"].values()
    return min(tag["medias"][0]["streams"][0]["stats"]["packets"] for tag in tags)
sys.exit(len(calls) != int(sys.argv[3]) or min(map(heard, calls)) < 50)' "$here" "$ng_port" "$1"
}

# The relay is killed during calls and restarted: the calls continue, and their BYE reaches it.
calls_over_restart() {
    local callers
    calls restart 5 20 9700 caller callee &
    callers=$!
    wait_for 'calls in the middle of their audio' all_talk 5
    kill -KILL "$relay_pid"
    { wait "$relay_pid"; } 2>/dev/null || true
    start_relay
    grep -q 'calls restored.* calls=5' "$logs/relay" || die 'the calls were not restored'
    wait "$callers" || die 'restart: a call has failed'
}

# sipp, which does not support SRTP, calls a phone that accepts only SRTP.
call_srtp() {
    local pid
    start_phone srtp v1 192.0.2.2 1250 'answermode=auto;mediaenc=srtp-mand'
    pid=$phone_pid
    (become_sipp caller caller $caller 9500 -m 1 -s srtp -key callee 192.0.2.2:5060 $proxy) || die 'srtp: the caller failed'
    end_phone "$pid"
    grep -q 'SRTP is Enabled' "$logs/srtp" || die 'srtp: the phone has no SRTP'
    expect_tone srtp 500
    say 'srtp: 1 call'
}

call_tone() {
    local from to
    start_phone tone v1 192.0.2.2 1250 answermode=auto
    to=$phone_pid
    start_phone caller-tone v0 192.0.2.1 700 "outbound=\"sip:$proxy\"" -e '/dial sip:tone@192.0.2.2:5060'
    from=$phone_pid
    wait_for 'three seconds of tone at the callee' heard tone 3
    wait_for 'three seconds of tone at the caller' heard caller-tone 3
    end_phone "$from"
    end_phone "$to"
    expect_tone tone 700
    expect_tone caller-tone 1250
    say 'tone: 1 call'
}

# No call, by `list` and `statistics`, and no reachable port in the relay's range: unused ports are connected to themselves.
nothing_left() {
    ng list | python3 -c 'import json, sys; sys.exit(json.load(sys.stdin)["calls"] != [])' || return 1
    ng statistics | python3 -c '
import json, sys
sys.exit(int(json.load(sys.stdin)["statistics"]["currentstatistics"]["sessionstotal"]) != 0)' || return 1
    [ -z "$(ss -Hanu state unconnected "src = 127.0.0.1 and sport >= :$ports_min and sport <= :$ports_max")" ]
}

no_port_is_open() {
    [ -z "$(ss -Hanu "src = 127.0.0.1 and sport >= :$ports_min and sport <= :$ports_max")" ]
}

resident_kib() { awk '/^VmRSS:/ { print $2 }' "/proc/$relay_pid/status"; }

# The first calls fill the caches; later ones leave nothing behind.
calls_leave_no_memory() {
    local before grown
    calls short 1000 200 50000 caller-short callee-short
    wait_for 'the end of short calls' nothing_left
    before=$(resident_kib)
    calls short 600 200 50000 caller-short callee-short
    wait_for 'the end of more short calls' nothing_left
    grown=$(($(resident_kib) - before))
    say "memory of the relay: $before KiB, after 600 more calls $grown KiB more"
    [ "$grown" -le $grown_kib_max ] || die "the relay has grown by $grown KiB, at most $grown_kib_max are expected"
}

# Phones refuse the loopback interface. Their packets stay on it all the same, because all addresses are this machine's.
ip link add v0 type veth peer name v1
ip address add 192.0.2.1/24 dev v0
ip address add 192.0.2.2/24 dev v1
ip link set v0 up
ip link set v1 up
make_speech
start_relay
start_proxy
start_capture

for address in $caller $callee; do
    hold_ports $address 6000 50
    hold_ports $address 7000 50
    hold_ports $address 8000 5
    hold_ports $address 9000 5
done
hold_ports $caller 9500 1
[ "$relay" != threadbare ] || for address in $caller $callee; do hold_ports $address 9700 5; done
calls plain 50 10 6000 caller callee
calls alaw 50 10 7000 caller callee callee-alaw
calls hold 5 5 8000 caller-hold callee-hold
calls cancel 5 5 12000 caller-cancel callee-cancel
calls lost 5 5 9000 caller-lost callee
call_srtp
call_tone
if [ "$relay" = threadbare ]; then
    calls_over_restart
fi
wait_for 'the end of calls without BYE' nothing_left

stop_capture
python3 "$here/check.py" "$work/calls.pcap" "$relay" || die 'unexpected packets in the capture'
calls_leave_no_memory
wait_for 'the end of ports that no call wants' no_port_is_open
say 'ok'
