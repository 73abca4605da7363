// The current calls: a list from /v1/calls, and the events of each from /v1/events.
import { events, get } from "./feed.js";

const element = (id) => document.getElementById(id);
// Calls in a page of /v1/calls, and the maximum of pages read.
const PAGE = 200;
const PAGES_MAX = 50;
// Maximum of calls shown; the filter finds the others.
const SHOWN_MAX = 200;
const PERIOD_MS = 2000;
// Maximum of events kept for a call, and for all calls together.
const EVENTS_OF_CALL = 50;
const EVENTS_MAX = 5000;
// Sort value of a call without measurements.
const MOS_BEST = 5;

export const duration = (ms) => {
  const s = Math.floor(ms / 1000);
  const two = (n) => String(n).padStart(2, "0");
  return s < 3600 ? `${Math.floor(s / 60)}:${two(s % 60)}` : `${Math.floor(s / 3600)}:${two(Math.floor(s / 60) % 60)}:${two(s % 60)}`;
};

export const stateOf = (call) => [call.answered_unix_ms === undefined ? "rings" : call.held ? "on hold" : "up", call.recorded ? "recorded" : "", ...(call.alarms ?? []).map((alarm) => `⚠ ${alarm}`)].filter(Boolean).join(", ");

const partyOf = (party) => [party.label ?? party.tag, party.signalled_address, party.codec].filter(Boolean).join(" ");

const ORDERS = {
  worst: (a, b) => (b.alarms?.length ?? 0) - (a.alarms?.length ?? 0) || (a.mos ?? MOS_BEST) - (b.mos ?? MOS_BEST) || (b.loss_percent ?? 0) - (a.loss_percent ?? 0) || a.created_unix_ms - b.created_unix_ms,
  newest: (a, b) => b.created_unix_ms - a.created_unix_ms,
  oldest: (a, b) => a.created_unix_ms - b.created_unix_ms,
  id: (a, b) => a.id.localeCompare(b.id, undefined, { numeric: true }),
};

export class CallList {
  constructor(onOpen, onProblem) {
    Object.assign(this, { onOpen, onProblem, calls: [], shown: [], selected: null, timer: null, isOn: false, isFollowed: false });
    // By id, oldest first: {unix_ms, text}.
    this.events = new Map();
    this.eventsKept = 0;
    element("calls-sort").addEventListener("change", () => this.show());
    element("calls-rows").addEventListener("click", (event) => {
      const row = event.target.closest("tr");
      if (row) this.open(row.dataset.path);
    });
  }

  // Sets whether the list is visible.
  turn(isOn) {
    this.isOn = isOn;
    clearTimeout(this.timer);
    if (!isOn) return;
    this.update();
    if (!this.isFollowed) this.follow();
  }

  async update() {
    clearTimeout(this.timer);
    try {
      const calls = [];
      // The calls of all nodes, if there are others.
      let next = `/v1/calls?limit=${PAGE}&cluster=1`;
      for (let page = 0; next && page < PAGES_MAX; page++) {
        const told = await get(next.slice(1));
        calls.push(...told.calls);
        next = told.next;
      }
      this.calls = calls;
      this.isMore = Boolean(next);
      this.show();
    } catch (error) {
      this.onProblem(error);
    }
    clearTimeout(this.timer);
    if (this.isOn) this.timer = setTimeout(() => this.update(), PERIOD_MS);
  }

  // Events of calls, from the first time the list is opened.
  async follow() {
    this.isFollowed = true;
    for (;;) {
      try {
        for await (const { name, data } of events("v1/events?cluster=1")) {
          if (data.id !== undefined) this.take(name, data);
        }
      } catch {
        // The limit of readers is reached, or the gateway is unreachable, which the wall reports.
      }
      await new Promise((resolve) => setTimeout(resolve, 5000));
    }
  }

  take(name, data) {
    const who = data.tag === undefined ? "" : ` of ${data.tag}`;
    const texts = {
      up: "is up", media: `media${who} from ${data.remote_address}`, lost: `no packets${who} for 10 s`, fallback: `fallback in place${who}`, "fallback-ended": `no more fallback in place${who}`,
      alarm: `alarm ${data.alarm}${who}`, "alarm-ended": `end of the alarm ${data.alarm}${who}`, dtmf: `DTMF ${data.key}${who}`,
      timeout: `times out: ${data.reason}`, down: `has ended: ${data.reason}`,
    };
    const kept = this.events.get(data.id) ?? [];
    kept.push({ unix_ms: data.unix_ms, text: texts[name] ?? name });
    this.eventsKept += 1;
    // After the events reported before.
    this.events.delete(data.id);
    this.events.set(data.id, kept);
    if (kept.length > EVENTS_OF_CALL) {
      kept.shift();
      this.eventsKept -= 1;
    }
    while (this.eventsKept > EVENTS_MAX) {
      const [oldest, gone] = this.events.entries().next().value;
      this.events.delete(oldest);
      this.eventsKept -= gone.length;
    }
    if (this.isOn && (name === "up" || name === "down")) {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.update(), 200);
    }
  }

  eventsOf(id) {
    return this.events.get(id) ?? [];
  }

  show() {
    const wanted = element("filter").value.trim().toLowerCase();
    const found = this.calls.filter((call) => `${call.id} ${call.parties.map(partyOf).join(" ")}`.toLowerCase().includes(wanted));
    found.sort(ORDERS[element("calls-sort").value]);
    this.shown = found.slice(0, SHOWN_MAX);
    const rows = this.shown.map((call, n) => {
      const row = Object.assign(document.createElement("tr"), { id: `call-row-${n}` });
      row.dataset.path = call.path;
      row.setAttribute("aria-selected", call.path === this.selected);
      const cells = [call.id, stateOf(call), duration(call.duration_ms), ...[0, 1].map((side) => (call.parties[side] ? partyOf(call.parties[side]) : "")), call.mos === undefined ? "" : call.mos.toFixed(2), call.loss_percent === undefined ? "" : `${call.loss_percent.toFixed(1)} %`];
      row.append(...cells.map((text) => Object.assign(document.createElement("td"), { textContent: text })));
      if (call.mos < 3.6 || call.loss_percent > 3 || call.alarms?.length) row.className = "bad";
      return row;
    });
    element("calls-rows").replaceChildren(...rows);
    this.mark();
    const [all, some] = [`${this.calls.length}${this.isMore ? " and more" : ""} ${this.calls.length === 1 ? "call" : "calls"}`, `${this.shown.length} shown`];
    element("calls-count").textContent = this.shown.length < this.calls.length ? `${all}, ${some}` : all;
    element("calls-empty").hidden = this.shown.length > 0;
    element("calls-empty").textContent = this.calls.length ? "No call matches the filter." : "There are no calls.";
  }

  mark() {
    const rows = [...element("calls-rows").children];
    const at = this.shown.findIndex((call) => call.path === this.selected);
    rows.forEach((row, n) => row.setAttribute("aria-selected", n === at));
    if (at < 0) element("calls").removeAttribute("aria-activedescendant");
    else element("calls").setAttribute("aria-activedescendant", rows[at].id);
    return rows[at];
  }

  move(by) {
    if (!this.shown.length) return;
    const at = this.shown.findIndex((call) => call.path === this.selected);
    const next = at < 0 ? 0 : Math.max(0, Math.min(this.shown.length - 1, at + by));
    this.selected = this.shown[next].path;
    this.mark()?.scrollIntoView({ block: "nearest" });
  }

  open(path = this.selected) {
    const call = this.shown.find((one) => one.path === path);
    if (!call) return;
    this.selected = path;
    this.mark();
    this.onOpen(call);
  }
}
