// One call: its parties, their quality, and its events.
import { ask, get } from "./feed.js";
import { chart } from "./charts.js";
import { duration } from "./calls.js";
import { hex, number, report, showLines } from "./words.js";
import { Player } from "./listen.js";

const element = (id) => document.getElementById(id);
// Spans of /v1/calls/{id}/history that are shown, by the length of the call, and the longest gap between two points, s.
const SPANS = [60, 120, 300, 600];
const STEP = 15;
const HISTORY_MS = 5000;
// Time in which a second press ends the call.
const SURE_MS = 4000;

// The rows of a party's table.
const ROWS = {
  "state": (side) => [side.held ? "on hold" : "", side.muted ? "muted" : "", side.media?.fallback ? "silent, replaced by the fallback" : ""].filter(Boolean).join(", ") || (side.held === undefined ? "not running" : "talks"),
  "alarms": (side) => (side.alarms ?? []).map((one) => `⚠ ${one.alarm} since ${new Date(one.since_unix_s * 1000).toTimeString().slice(0, 8)}${one.is_acknowledged ? ", known" : ""}`).join(", ") || "none",
  "codec to the party": (side) => side.codec ?? "unknown",
  "encryption": (side) => side.crypto_suite ?? "none",
  "signalled address": (side) => side.signalled_address ?? "none",
  "media sent to": (side) => side.media?.remote_address ?? "none yet",
  "must send to": (side) => side.local_address ?? "",
  "SSRC": (side) => (side.media?.ssrc === undefined ? "none yet" : hex(side.media.ssrc)),
  "packets from the party": (side) => side.media && `${side.media.packets_received}, ${side.media.packets_lost} lost, ${side.media.packets_late} late, ${side.media.datagrams_refused} refused`,
  "packets to the party": (side) => side.media && String(side.media.packets_sent),
  "concealed": (side) => side.media && `${side.media.concealed_ms} ms`,
  "jitter": (side) => side.media && number(side.media.jitter_ms, "ms"),
  "round trip (RTCP)": (side) => side.media && number(side.media.round_trip_ms, "ms"),
  "momentary loudness": (side) => side.media?.loudness && number(side.media.loudness.momentary_lufs, "LUFS"),
  "integrated loudness": (side) => side.media?.loudness && number(side.media.loudness.integrated_lufs, "LUFS"),
  "true peak": (side) => side.media?.loudness && number(side.media.loudness.true_peak_dbtp, "dBTP"),
  "MOS, mean": (side) => side.media && number(side.media.mos, "", 2),
  "loss, mean": (side) => side.media && number(side.media.loss_percent, "%"),
  "gateway's report on the party": (side) => report(side.media?.sender_report),
  "party's report on the gateway": (side) => report(side.media?.listener_report),
  "last packet": (side) => (side.media?.last_packet_unix_ms === undefined ? "never" : new Date(side.media.last_packet_unix_ms).toTimeString().slice(0, 8)),
};

export class CallPanel {
  constructor(list, onProblem) {
    Object.assign(this, { list, onProblem, call: null, detail: null, timer: null, history: null, historyDue: 0, place: null, sure: null });
    this.player = new Player(() => this.showListening(), onProblem);
    element("call-listen").addEventListener("click", () => this.toggleListening());
    element("call-record").addEventListener("click", () => this.toggleRecording());
    element("call-end").addEventListener("click", () => this.end());
    element("call-stream").addEventListener("change", () => this.choose(Number(element("call-stream").value)));
  }

  // The stream that is shown and played: the chosen one, or the gateway's choice for listeners.
  get shown() {
    if (this.place !== null) return this.place;
    const streams = this.detail?.streams ?? [];
    const found = streams.findIndex((one) => one.running && one.decoded);
    return found >= 0 ? found : Math.max(0, streams.findIndex((one) => one.running));
  }

  choose(place) {
    this.place = place;
    const isOn = this.player.isOn;
    if (isOn) this.listen();
    this.show();
  }

  toggleListening() {
    if (this.player.isOn) this.player.stop();
    else if (this.call) this.listen();
  }

  listen() {
    const stream = this.place === null ? "" : `?stream=${this.place}`;
    this.player.start(`${this.call.path.slice(1)}/listen${stream}`);
  }

  showListening() {
    const { isOn, context } = this.player;
    element("call-listen").setAttribute("aria-pressed", isOn);
    element("call-listen").textContent = isOn ? (context ? "Listening" : "Listening …") : "Listen";
  }

  get isRecorded() {
    return Boolean(this.detail?.streams.some((one) => one.recorded));
  }

  async act(action, options) {
    const path = this.call.path.slice(1);
    try {
      await ask(action ? `${path}/${action}` : path, options);
      this.onProblem(null);
      await this.update();
    } catch (error) {
      this.onProblem(error);
    }
  }

  toggleRecording() {
    this.act(this.isRecorded ? "record/stop" : "record", { method: "POST" });
  }

  // A second press confirms, because a call cannot be brought back.
  end() {
    if (this.sure === null) {
      element("call-end").textContent = "Press again to end";
      this.sure = setTimeout(() => this.unsure(), SURE_MS);
      return;
    }
    this.unsure();
    this.act("", { method: "DELETE" });
  }

  unsure() {
    clearTimeout(this.sure);
    this.sure = null;
    element("call-end").textContent = "End the call";
  }

  async open(call) {
    this.close();
    Object.assign(this, { call, detail: null, history: null, historyDue: 0, place: null });
    element("call").hidden = false;
    element("call").scrollTop = 0;
    element("call-name").textContent = call.id;
    for (const id of ["call-state", "call-sides", "call-log"]) element(id).replaceChildren();
    await this.update();
  }

  close() {
    clearTimeout(this.timer);
    this.player.stop();
    this.unsure();
    this.call = null;
    element("call").hidden = true;
  }

  async update() {
    clearTimeout(this.timer);
    const { call } = this;
    if (!call) return;
    const path = call.path.slice(1);
    try {
      const isDue = performance.now() >= this.historyDue;
      const [detail, history, log] = await Promise.all([get(path), isDue ? get(`${path}/history`) : null, get(`${path}/log`)]);
      if (this.call !== call) return;
      if (history) {
        this.history = history;
        this.historyDue = performance.now() + HISTORY_MS;
      }
      this.detail = detail;
      this.log = log.lines;
      this.show();
    } catch (error) {
      if (this.call !== call) return;
      // The call has ended: its last values stay.
      if (error.status === 404) {
        element("call-state").textContent = "has ended";
        const told = await get(`${path}/log`).catch(() => ({ lines: [] }));
        if (this.call === call) this.showLog(told.lines);
        return;
      }
      this.onProblem(error);
    }
    if (this.call === call) this.timer = setTimeout(() => this.update(), 1000);
  }

  show() {
    const { detail } = this;
    if (!detail) return;
    const parts = [detail.answered_unix_ms === undefined ? "rings" : "up", duration(detail.duration_ms), this.isRecorded ? "recorded" : "",
      detail.ends_unix_ms === undefined ? "" : `ends at ${new Date(detail.ends_unix_ms).toTimeString().slice(0, 8)} if no packets arrive (${detail.end_reason})`];
    element("call-state").textContent = parts.filter(Boolean).join(", ");
    element("call-record").textContent = this.isRecorded ? "End recording" : "Record";
    const choices = detail.streams.map((one, n) => Object.assign(document.createElement("option"), {
      value: n, textContent: `${one.media} ${n + 1}${one.running ? "" : ", not running"}`, selected: n === this.shown }));
    element("call-stream").replaceChildren(...choices);
    element("call-stream-choice").hidden = choices.length < 2;
    const stream = detail.streams[this.shown];
    element("call-listen").disabled = !stream?.decoded && !this.player.isOn;
    element("call-listen").title = stream?.decoded ? "Listen to both parties, one on each stereo channel (l)" : "Listening is not possible: the stream is only forwarded, or is not running";
    this.showSides(stream);
    this.showHistory();
    this.showLog(this.log);
  }

  showSides(stream) {
    const cell = (kind, text) => Object.assign(document.createElement(kind), { textContent: text });
    const head = document.createElement("tr");
    const names = (stream?.sides ?? []).map((side, n) => `${n === 0 ? "A" : "B"}: ${side.label ?? side.tag}`);
    head.append(cell("td", ""), ...names.map((name) => Object.assign(cell("th", name), { scope: "col" })));
    const rows = Object.entries(ROWS).map(([name, of]) => {
      const row = document.createElement("tr");
      row.append(Object.assign(cell("th", name), { scope: "row" }), ...(stream?.sides ?? []).map((side) => cell("td", of(side) ?? "")));
      return row;
    });
    element("call-sides").replaceChildren(head, ...rows);
  }

  showHistory() {
    const known = this.history?.streams[this.shown];
    if (!known) return;
    const span = SPANS.find((one) => one * 1000 >= this.detail.duration_ms) ?? SPANS.at(-1);
    const times = { unix_s: known.unix_s, span, step: STEP };
    const lines = (name, more) => known.sides.map((side, n) => ({ values: side[name], colour: ["--side-a", "--side-b"][n], ...more }));
    chart(element("mos-chart"), times, lines("mos", { width: 2, dots: true }), { low: 1, high: 5, step: 1 });
    for (const [id, name, least] of [["call-loss-chart", "loss_percent", 10], ["call-jitter-chart", "jitter_ms", 20]]) {
      const high = Math.max(least, ...known.sides.flatMap((side) => side[name]));
      chart(element(id), times, lines(name, { dots: true }), { low: 0, high, step: high / 2 });
    }
  }

  // Log lines, and events since the list was first opened; newest first.
  showLog(lines) {
    const events = this.list.eventsOf(this.call.id).map((event) => ({ ...event, level: "event" }));
    showLines(element("call-log"), [...lines, ...events].sort((a, b) => b.unix_ms - a.unix_ms));
  }
}
