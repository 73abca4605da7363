// One stream: its values, and its last minutes.
import { ask, get } from "./feed.js";
import { chart } from "./charts.js";
import { hex, number, report, showLines } from "./words.js";
import { Player } from "./listen.js";

const element = (id) => document.getElementById(id);
// With `codec = "auto"`: the codec of the last packets.
const codec = ({ codec_in, codec_heard, codec_out }) => {
  const learned = codec_heard ?? "auto: no packets yet";
  const [comes, leaves] = [codec_in, codec_out].map((one) => (one === "auto" ? learned : one));
  return leaves === undefined || leaves === comes ? comes : `${comes} in, ${leaves} out`;
};
const LEVELS = { low: -60, high: 0, step: 12 };
// Seconds shown, and seconds per value.
const SPANS = { 600: 1, 3600: 5, 21600: 30, 86400: 120 };
// Longest time between two requests for the history, s.
const UPDATE_MAX = 10;
const SLACK_MS = 100;

export class StreamPanel {
  constructor(onProblem) {
    this.onProblem = onProblem;
    [this.name, this.node] = [null, ""];
    // Whether there are several nodes: a cluster.
    this.isOfMany = false;
    this.timer = null;
    this.alarms = [];
    this.span = 600;
    this.history = null;
    this.historyDue = 0;
    this.player = new Player(() => this.showListening(), onProblem);
    element("listen").addEventListener("click", () => this.toggleListening());
    for (const button of this.spans()) {
      button.addEventListener("click", () => this.setSpan(Number(button.value)));
    }
    element("loudness-reset").addEventListener("click", () => this.resetLoudness());
  }

  // The path of the stream; in a cluster, at its node.
  path(rest = "", query = "") {
    const asked = [query, this.node && `node=${encodeURIComponent(this.node)}`].filter(Boolean).join("&");
    return `v1/streams/${encodeURIComponent(this.name)}${rest}${asked && `?${asked}`}`;
  }

  resetLoudness() {
    ask(this.path("/loudness/reset"), { method: "POST" }).catch(this.onProblem);
  }

  toggleListening() {
    if (this.player.isOn) this.player.stop();
    else if (this.name) this.player.start(this.path("/listen"));
  }

  showListening() {
    const { isOn, context } = this.player;
    element("listen").setAttribute("aria-pressed", isOn);
    element("listen").textContent = isOn ? (context ? "Listening" : "Listening …") : "Listen";
  }

  spans() {
    return element("stream-spans").querySelectorAll("button");
  }

  setSpan(span) {
    this.span = span;
    for (const button of this.spans()) {
      button.setAttribute("aria-pressed", Number(button.value) === span);
    }
    clearTimeout(this.timer);
    this.historyDue = 0;
    if (this.name) this.update();
  }

  // Selects the next longer span, or the shortest again.
  nextSpan() {
    const spans = Object.keys(SPANS).map(Number);
    this.setSpan(spans[(spans.indexOf(this.span) + 1) % spans.length]);
  }

  async open(name, node = "") {
    this.close();
    [this.name, this.node] = [name, node];
    this.historyDue = 0;
    element("stream").hidden = false;
    element("stream").scrollTop = 0;
    element("stream-name").textContent = name;
    this.showAlarms(this.alarms);
    await this.update();
  }

  // All raised alarms of all streams.
  showAlarms(alarms) {
    this.alarms = alarms;
    const own = alarms.filter((alarm) => alarm.stream === this.name && (alarm.node ?? "") === this.node);
    const lines = own.map((alarm) => {
      const line = document.createElement("li");
      const worst = alarm.worst === undefined || alarm.unit === "" ? "" : `, at worst ${alarm.worst.toFixed(1)} ${alarm.unit}`;
      line.append(`${alarm.alarm} since ${new Date(alarm.since_unix_s * 1000).toTimeString().slice(0, 8)}${worst} `);
      if (alarm.is_acknowledged) {
        line.append("✓ acknowledged");
      } else {
        const button = Object.assign(document.createElement("button"), { textContent: "Acknowledge" });
        button.addEventListener("click", () => {
          ask(this.path(`/alarms/${alarm.alarm}/acknowledge`), { method: "POST" }).catch(this.onProblem);
        });
        line.append(button);
      }
      return line;
    });
    element("stream-alarms").replaceChildren(...lines);
  }

  close() {
    clearTimeout(this.timer);
    this.player.stop();
    this.name = null;
    element("stream").hidden = true;
  }

  async update() {
    const { name, node, span } = this;
    const isAsked = () => this.name === name && this.node === node && this.span === span;
    try {
      const step = SPANS[span];
      const isDue = performance.now() >= this.historyDue;
      const asked = isDue ? get(this.path("/history", `seconds=${span}&step=${step}`)) : null;
      const [now, history, log] = await Promise.all([get(this.path()), asked, get(this.path("/log"))]);
      if (!isAsked()) return;
      if (history) {
        this.history = { ...history, span, step };
        this.historyDue = performance.now() + 1000 * Math.min(step, UPDATE_MAX) - SLACK_MS;
      }
      this.show(now, this.history);
      showLines(element("stream-log"), log.lines);
    } catch (error) {
      this.onProblem(error);
    }
    if (isAsked()) this.timer = setTimeout(() => this.update(), 1000);
  }

  show(now, history) {
    const loudness = now.loudness || {};
    const values = {
      ...(this.isOfMany && { "node": this.node }),
      "momentary": number(loudness.momentary_lufs, "LUFS"),
      "short-term": number(loudness.short_term_lufs, "LUFS"),
      "integrated": number(loudness.integrated_lufs, "LUFS"),
      "measured since": loudness.programme_unix_s === undefined ? "the start of the stream" : new Date(loudness.programme_unix_s * 1000).toLocaleTimeString(),
      "range": number(loudness.range_lu, "LU"),
      "true peak": number(loudness.true_peak_dbtp, "dBTP"),
      "target": number(now.target_lufs, "LUFS"),
      "packets": `${now.packets}, ${now.packets_lost} lost, ${now.packets_late} late, ${now.packets_refused} refused`,
      "loss of the last 10 s": number(now.loss_percent, "%"),
      "concealed": `${now.concealed_ms} ms`,
      "MOS": now.mos === undefined ? "" : now.mos.toFixed(2),
      "jitter": number(now.jitter_ms, "ms"),
      "jitter buffer": `${now.packets_held} packets, ${number(now.latency_ms, "ms")}`,
      "offset of the sender's clock": number(now.skew_ms, "ms"),
      "round trip (RTCP)": number(now.round_trip_ms, "ms"),
      "received at": [now.local_address, now.local_rtcp_address && `RTCP ${now.local_rtcp_address}`].filter(Boolean).join(", "),
      "receiving from": now.remote_address === undefined ? "none yet" : `${now.remote_address}, SSRC ${hex(now.ssrc)}`,
      "sent to": now.destination_address === undefined || now.destination_address === now.destination ? now.destination : `${now.destination}: ${now.destination_address}`,
      "codec": codec(now),
      "gateway's report on the sender": report(now.sender_report),
      "the listener's report": report(now.listener_report),
      "last packet": now.since_packet_ms === undefined ? "never" : `${now.since_packet_ms} ms ago`,
    };
    element("stream-state").textContent = [now.state, now.active, now.reason].filter(Boolean).join(": ");
    const rows = Object.entries(values).map(([name, value]) => {
      const [term, text] = [document.createElement("dt"), document.createElement("dd")];
      [term.textContent, text.textContent] = [name, value];
      return [term, text];
    });
    element("stream-values").replaceChildren(...rows.flat());
    const target = now.target_lufs === undefined ? [] : [{ values: history.unix_s.map(() => now.target_lufs), colour: "--target", dash: [4, 4] }];
    chart(element("loudness-chart"), history, [
      { values: history.momentary_lufs, colour: "--momentary" },
      { values: history.short_term_lufs, colour: "--short", width: 2 },
      { values: history.integrated_lufs, colour: "--integrated" },
      ...target,
    ], LEVELS);
    const high = Math.max(10, ...history.packets_lost, ...history.jitter_ms);
    chart(element("loss-chart"), history, [
      { values: history.packets_lost, colour: "--loss", bars: true },
      { values: history.jitter_ms, colour: "--jitter" },
    ], { low: 0, high, step: high / 2 });
    const held = Math.max(4, ...history.packets_held);
    chart(element("held-chart"), history, [{ values: history.packets_held, colour: "--short" }], { low: 0, high: held, step: held / 2 });
  }
}
