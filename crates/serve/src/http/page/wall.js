// The page. Texts are set as text, never as HTML: they come from the network.
import { NONE, decode, events, setToken } from "./feed.js";
import { CallPanel } from "./call.js";
import { CallList } from "./calls.js";
import { MachinePanel } from "./machine.js";
import { StreamPanel } from "./stream.js";
import { STATES, Wall, badness } from "./tiles.js";

const element = (id) => document.getElementById(id);
const wall = new Wall(element("wall"), element("space"), element("tiles"));
const machine = new MachinePanel(problem);
const panel = new StreamPanel(problem);
const calls = new CallList((call) => openCall(call), problem);
const callPanel = new CallPanel(calls, problem);
let shown = "wall";
let hasChosen = false;
// The nodes by name. A gateway without a cluster has one node without a name.
const nodes = new Map();
// Streams of all nodes, one node after the other.
let streams = [];
let tiles = null;
let arranged = 0;

function problem(error) {
  const place = element("problem");
  place.hidden = !error;
  place.textContent = error ? error.message : "";
  if (error?.status === 401 && !element("token-dialog").open) element("token-dialog").showModal();
}

// The part of a name before its number: "studio-4-left" is of "studio".
const family = (name) => name.match(/^[^\d]*?(?=[-_. /:]*\d|[-_. /:]|$)/)?.[0] || name;

const arrange = () => {
  arranged = performance.now();
  if (!tiles) return;
  const wanted = element("filter").value.trim().toLowerCase();
  const numbers = streams.map((_, n) => n).filter((n) => streams[n].name.toLowerCase().includes(wanted));
  const byName = (a, b) => streams[a].name.localeCompare(streams[b].name, undefined, { numeric: true });
  const worst = streams.map((stream, n) => badness(tiles, n, stream.target_lufs));
  const orders = {
    worst: (a, b) => worst[b] - worst[a] || a - b,
    file: (a, b) => a - b,
    name: byName,
    loudest: (a, b) => tiles.short[b] - tiles.short[a] || a - b,
    loss: (a, b) => tiles.loss[b] - tiles.loss[a] || a - b,
  };
  numbers.sort(orders[element("sort").value]);
  const kinds = { none: () => null, name: (n) => family(streams[n].name), state: (n) => STATES[tiles.state[n]], node: (n) => streams[n].node };
  const groups = new Map();
  for (const n of numbers) {
    const kind = kinds[element("group").value](n);
    if (!groups.has(kind)) groups.set(kind, []);
    groups.get(kind).push(n);
  }
  wall.arrange([...groups]);
  const count = [0, 0, 0, 0];
  tiles.state.forEach((state) => { count[state] += 1; });
  const unknown = panel.alarms.filter((alarm) => !alarm.is_acknowledged).length;
  const alarms = unknown ? `⚠ ${unknown} ${unknown === 1 ? "alarm" : "alarms"} · ` : "";
  element("counts").textContent = alarms + STATES.map((state, n) => [count[n], state]).filter(([some]) => some).map((pair) => pair.join(" ")).join(" · ");
  const empty = element("empty");
  empty.hidden = numbers.length > 0;
  empty.textContent = streams.length ? "No name matches the filter." : nodes.size > 1 ? "There are no streams." : "This gateway has no streams.";
};

// Streams were added or removed.
const gather = () => {
  const selected = streams[wall.selected];
  streams = [...nodes].flatMap(([node, known]) => known.streams.map((stream) => ({ ...stream, node })));
  const again = streams.findIndex((stream) => stream.name === selected?.name && stream.node === selected?.node);
  wall.streams = streams;
  wall.selected = again < 0 ? null : again;
  const count = streams.length;
  const levels = () => new Int16Array(count).fill(NONE);
  // Until a node sends values: no packets.
  const all = { state: new Uint8Array(count).fill(1), alarms: new Uint8Array(count), momentary: levels(), peak: levels(), short: levels(), loss: new Uint16Array(count) };
  let offset = 0;
  for (const known of nodes.values()) {
    known.offset = offset;
    if (known.tiles) put(all, known);
    offset += known.streams.length;
  }
  tiles = [...nodes.values()].some((known) => known.tiles) ? all : null;
  wall.tiles = tiles;
  element("group-node").hidden = nodes.size < 2;
  panel.isOfMany = nodes.size > 1;
  if (tiles) arrange();
};

const put = (all, known) => Object.keys(all).forEach((column) => all[column].set(known.tiles[column], known.offset));

const showAlarms = () => {
  panel.showAlarms([...nodes].flatMap(([node, known]) => known.alarms.map((alarm) => ({ ...alarm, node }))));
  if (tiles) arrange();
};

const take = ({ name, data }) => {
  const node = data.node ?? "";
  const known = nodes.get(node);
  if (name === "streams") {
    nodes.set(node, { alarms: known?.alarms ?? [], streams: data.streams, generation: data.generation, tiles: null });
    gather();
    // A gateway without streams starts with its calls.
    if (!streams.length && shown === "wall" && !hasChosen) view("calls", false);
  } else if (name === "left") {
    nodes.delete(node);
    machine.drop(node);
    gather();
    showAlarms();
  } else if (name === "tiles" && data.generation === known?.generation) {
    const isFirst = !known.tiles;
    known.tiles = decode(data.columns, known.streams.length);
    if (tiles) put(tiles, known);
    else gather();
    wall.isDirty = true;
    wall.frames = (wall.frames || 0) + 1;
    // Tiles change places once in two seconds: slowly enough for a hand.
    if (isFirst || performance.now() - arranged > 2000) arrange();
  } else if (name === "alarms" && known) {
    known.alarms = data.alarms;
    showAlarms();
  } else if (name === "threads") {
    machine.add(data);
    if (!element("machine").hidden) showMachine();
  }
};

const showMachine = () => machine.show(tiles ? tiles.state.filter((state) => state >= 2).length : 0);

const listen = async () => {
  for (;;) {
    try {
      nodes.clear();
      for await (const event of events("v1/wall?cluster=1")) {
        problem(null);
        take(event);
      }
      problem(new Error("The gateway has closed the connection; trying again."));
    } catch (error) {
      problem(error);
      if (error.status === 401) await new Promise((resolve) => element("token-dialog").addEventListener("close", resolve, { once: true }));
    }
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
};

const view = (name, isChosen = true) => {
  shown = name;
  hasChosen ||= isChosen;
  for (const one of ["wall", "calls", "machine"]) {
    element(one).hidden = name !== one;
    element(`show-${one}`).setAttribute("aria-pressed", name === one);
  }
  // These tools belong to the wall.
  element("wall-tools").hidden = name !== "wall";
  if (name !== "wall") panel.close();
  if (name !== "calls") callPanel.close();
  calls.turn(name === "calls");
  if (name === "machine") showMachine();
  else if (name === "wall") wall.place();
};

const setTheme = (theme) => {
  document.documentElement.dataset.theme = theme;
  localStorage.setItem("threadbare-theme", theme);
  wall.restyle();
  if (!element("machine").hidden) showMachine();
};
const otherTheme = () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");

const open = (n) => {
  if (n === null || !streams[n]) return;
  wall.select(n);
  panel.open(streams[n].name, streams[n].node);
  wall.place();
};
const openCall = (call) => callPanel.open(call);
const close = () => { panel.close(); callPanel.close(); wall.place(); };
const move = (dx, dy) => (shown === "calls" ? calls.move(dy) : wall.move(dx, dy));
const next = (id) => {
  const select = element(id);
  select.selectedIndex = (select.selectedIndex + 1) % select.options.length;
  arrange();
};

const keys = {
  ArrowLeft: () => move(-1, 0), ArrowRight: () => move(1, 0), ArrowUp: () => move(0, -1), ArrowDown: () => move(0, 1),
  Enter: () => (shown === "calls" ? calls.open() : open(wall.selected)), l: () => (shown === "calls" ? callPanel : panel).toggleListening(), t: () => panel.name && panel.nextSpan(), Escape: close, "/": () => element("filter").focus(),
  s: () => next("sort"), g: () => next("group"), w: () => view("wall"), c: () => view("calls"), m: () => view("machine"), d: otherTheme, "?": () => element("help").showModal(),
};
document.addEventListener("keydown", (event) => {
  const isTyping = event.target.matches("input, select, button") || document.querySelector("dialog[open]");
  if (event.key === "Escape") { event.target.blur?.(); close(); return; }
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
  event.preventDefault();
  keys[event.key]();
});
element("wall").addEventListener("click", (event) => open(wall.streamAt(event.clientX, event.clientY)));
element("filter").addEventListener("input", () => (shown === "calls" ? calls.show() : arrange()));
element("sort").addEventListener("change", arrange);
element("group").addEventListener("change", arrange);
element("show-wall").addEventListener("click", () => view("wall"));
element("show-calls").addEventListener("click", () => view("calls"));
element("show-machine").addEventListener("click", () => view("machine"));
element("stream-close").addEventListener("click", close);
element("call-close").addEventListener("click", close);
element("theme").addEventListener("click", otherTheme);
element("help-open").addEventListener("click", () => element("help").showModal());
element("token-dialog").addEventListener("close", () => setToken(element("token").value));
// For tests and for the browser's console.
window.threadbare = { wall, machine, panel, calls, callPanel, take };

setTheme(localStorage.getItem("threadbare-theme") || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
listen();
