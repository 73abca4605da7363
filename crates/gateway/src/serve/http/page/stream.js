// One stream: its numbers, and its last minutes.
import { ask, get } from "./feed.js";
import { chart } from "./charts.js";

const element = (id) => document.getElementById(id);
const number = (value, unit, digits = 1) => (value === undefined || value === null ? "none" : `${value.toFixed(digits)} ${unit}`);
const LEVELS = { low: -60, high: 0, step: 12 };

export class StreamPanel {
  constructor(onProblem) {
    this.onProblem = onProblem;
    this.name = null;
    this.timer = null;
    this.alarms = [];
  }

  async open(name) {
    this.close();
    this.name = name;
    element("stream").hidden = false;
    element("stream-name").textContent = name;
    this.showAlarms(this.alarms);
    await this.update();
  }

  // All that are raised, of any stream.
  showAlarms(alarms) {
    this.alarms = alarms;
    const own = alarms.filter((alarm) => alarm.stream === this.name);
    const lines = own.map((alarm) => {
      const line = document.createElement("li");
      const worst = alarm.worst === undefined || alarm.unit === "" ? "" : `, at worst ${alarm.worst.toFixed(1)} ${alarm.unit}`;
      line.append(`${alarm.alarm} since ${new Date(alarm.since_unix_s * 1000).toTimeString().slice(0, 8)}${worst} `);
      if (alarm.is_acknowledged) {
        line.append("✓ acknowledged");
      } else {
        const button = Object.assign(document.createElement("button"), { textContent: "Acknowledge" });
        button.addEventListener("click", () => {
          const path = `v1/streams/${encodeURIComponent(alarm.stream)}/alarms/${alarm.alarm}/acknowledge`;
          ask(path, { method: "POST" }).catch(this.onProblem);
        });
        line.append(button);
      }
      return line;
    });
    element("stream-alarms").replaceChildren(...lines);
  }

  close() {
    clearTimeout(this.timer);
    this.name = null;
    element("stream").hidden = true;
  }

  async update() {
    const name = this.name;
    const path = `v1/streams/${encodeURIComponent(name)}`;
    try {
      const [now, history] = await Promise.all([get(path), get(`${path}/history`)]);
      if (this.name !== name) return;
      this.show(now, history);
    } catch (error) {
      this.onProblem(error);
    }
    if (this.name === name) this.timer = setTimeout(() => this.update(), 1000);
  }

  show(now, history) {
    const loudness = now.loudness || {};
    const values = {
      "momentary": number(loudness.momentary_lufs, "LUFS"),
      "short-term": number(loudness.short_term_lufs, "LUFS"),
      "integrated": number(loudness.integrated_lufs, "LUFS"),
      "range": number(loudness.range_lu, "LU"),
      "true peak": number(loudness.true_peak_dbtp, "dBTP"),
      "target": number(now.target_lufs, "LUFS"),
      "packets": `${now.packets}, ${now.packets_lost} lost, ${now.packets_late} late, ${now.packets_refused} refused`,
      "loss of the last 10 s": number(now.loss_percent, "%"),
      "concealed": `${now.concealed_ms} ms`,
      "jitter": number(now.jitter_ms, "ms"),
      "jitter buffer": `${now.packets_held} packets, ${number(now.latency_ms, "ms")}`,
      "clock against ours": number(now.skew_ms, "ms"),
      "round trip (RTCP)": number(now.round_trip_ms, "ms"),
      "last packet": now.since_packet_ms === undefined ? "never" : `${now.since_packet_ms} ms ago`,
    };
    element("stream-state").textContent = [now.state, now.active, now.reason].filter(Boolean).join(": ");
    const rows = Object.entries(values).map(([name, value]) => {
      const [term, text] = [document.createElement("dt"), document.createElement("dd")];
      [term.textContent, text.textContent] = [name, value];
      return [term, text];
    });
    element("stream-values").replaceChildren(...rows.flat());
    const { unix_s } = history;
    const target = now.target_lufs === undefined ? [] : [{ values: unix_s.map(() => now.target_lufs), colour: "--target", dash: [4, 4] }];
    chart(element("loudness-chart"), unix_s, [
      { values: history.momentary_lufs, colour: "--momentary" },
      { values: history.short_term_lufs, colour: "--short", width: 2 },
      { values: history.integrated_lufs, colour: "--integrated" },
      ...target,
    ], LEVELS);
    const high = Math.max(10, ...history.packets_lost, ...history.jitter_ms);
    chart(element("loss-chart"), unix_s, [
      { values: history.packets_lost, colour: "--loss", bars: true },
      { values: history.jitter_ms, colour: "--jitter" },
    ], { low: 0, high, step: high / 2 });
    const held = Math.max(4, ...history.packets_held);
    chart(element("held-chart"), unix_s, [{ values: history.packets_held, colour: "--short" }], { low: 0, high: held, step: held / 2 });
  }
}
