// The threads that carry media.
import { ask } from "./feed.js";
import { heatMap, ramp } from "./charts.js";

const SECONDS = 600;
const LATE_MS = 20;
// Load of a thread above which slices start late.
const BUSY_MAX = 70;
const element = (id) => document.getElementById(id);

export class MachinePanel {
  constructor(onProblem) {
    this.threads = new Map();
    document.querySelectorAll(".ramp").forEach(ramp);
    const post = (id, path, said) => element(id).addEventListener("click", async () => {
      try {
        await ask(path, { method: "POST" });
        element("machine-answer").textContent = said;
      } catch (error) {
        element("machine-answer").textContent = error.message;
        if (error.status === 401) onProblem(error);
      }
    });
    post("drain", "v1/drain", "Draining: no new calls.");
    post("reload", "v1/reload", "The file was reloaded.");
  }

  // Threads of a node; a gateway without a cluster has one node without a name.
  add({ node = "", threads }) {
    const gone = new Set([...this.threads].filter(([, known]) => known.node === node).map(([name]) => name));
    for (const one of threads) {
      const thread = { ...one, name: node ? `${node} ${one.name}` : one.name };
      gone.delete(thread.name);
      const known = this.threads.get(thread.name) || { node, busy: [], late: [], packets: [] };
      known.busy = [...known.busy, ...thread.busy_percent].slice(-SECONDS);
      known.late = [...known.late, ...thread.lateness_ms].slice(-SECONDS);
      known.packets = [...known.packets, ...thread.packets].slice(-SECONDS);
      known.blocked = thread.blocked;
      this.threads.set(thread.name, known);
    }
    gone.forEach((name) => this.threads.delete(name));
  }

  // Removes a node that sends nothing any more.
  drop(node) {
    for (const [name, known] of this.threads) if (known.node === node) this.threads.delete(name);
  }

  show(heard) {
    const threads = [...this.threads];
    const rows = (of) => threads.map(([name, known]) => ({ name, parts: of(known) }));
    heatMap(element("load-map"), rows((known) => known.busy.map((busy) => busy / 100)), SECONDS);
    heatMap(element("lateness-map"), rows((known) => known.late.map((late) => late / LATE_MS)), SECONDS);
    const lines = threads.map(([name, known]) => {
      const { blocked } = known;
      const held = blocked ? `${blocked.by} for ${blocked.for_ms.toFixed(0)} ms, ${blocked.ago_s} s ago` : "";
      const cells = [name, `${(known.busy.at(-1) ?? 0).toFixed(1)} %`, `${(known.late.at(-1) ?? 0).toFixed(1)} ms`, known.packets.at(-1) ?? 0, held];
      const row = document.createElement("tr");
      row.append(...cells.map((cell) => Object.assign(document.createElement("td"), { textContent: cell })));
      return row;
    });
    element("threads").replaceChildren(...lines);
    element("room").textContent = this.room(heard);
  }

  // How many more streams like these fit.
  room(heard) {
    const last = (list) => list.slice(-10).reduce((sum, one) => sum + one, 0) / Math.max(1, list.slice(-10).length);
    const working = [...this.threads.values()].filter((known) => last(known.packets) > 0);
    const busy = working.reduce((sum, known) => sum + last(known.busy), 0);
    if (!working.length || !heard || busy < 1) return "Too little load to estimate how many streams fit.";
    const more = Math.floor((heard * (BUSY_MAX * working.length - busy)) / busy);
    const rounded = more > 200 ? Math.floor(more / 100) * 100 : Math.max(0, more);
    return `${heard} streams take ${busy.toFixed(1)} % of a processor. Some ${rounded} more like them fit on these threads.`;
  }
}
