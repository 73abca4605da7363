// The wall: a tile for each stream; only visible tiles are drawn.
import { NONE } from "./feed.js";

export const STATES = ["stopped", "waiting", "heard", "fallback"];
// In the order of their bits; see /openapi.json.
export const ALARMS = ["no packets", "silence", "loudness", "true peak", "loss", "drift"];
const ACKNOWLEDGED = 0x80;
const STATE_COLOURS = ["--bad", "--fair", "--good", "--fair"];
const FLOOR_DB = -60;

export const level = (tenths) => (tenths === NONE ? null : tenths / 10);

export const alarmsOf = (bits) => ALARMS.filter((_, bit) => bits & (1 << bit));

// Higher is worse: unacknowledged alarms, streams that do not run, silent streams, then losses and distance from the target.
export const badness = (tiles, n, target) => {
  const bits = tiles.alarms[n];
  const alarms = alarmsOf(bits).length * 20000;
  const isKnown = (bits & ACKNOWLEDGED) !== 0 && alarms === 0;
  const state = [40000, 30000, 0, 5000][tiles.state[n]] + alarms;
  if (isKnown) return 0;
  const short = level(tiles.short[n]);
  const off = target === undefined || short === null ? 0 : Math.abs(short - target) * 20;
  const hot = tiles.peak[n] !== NONE && tiles.peak[n] > -10 ? 200 : 0;
  return state + tiles.loss[n] * 10 + off + hot;
};

export class Wall {
  constructor(section, space, canvas) {
    Object.assign(this, { section, space, canvas, context: canvas.getContext("2d") });
    this.streams = [];
    this.tiles = null;
    // In order: {head} or {n}, with its place.
    this.cells = [];
    this.selected = null;
    this.isDirty = true;
    // The part of a name that fits.
    this.names = new Map();
    this.widths = new Map();
    const dirty = () => { this.isDirty = true; };
    section.addEventListener("scroll", dirty, { passive: true });
    new ResizeObserver(() => { this.place(); }).observe(section);
    const draw = () => {
      if (this.isDirty && this.section.offsetParent !== null) this.draw();
      requestAnimationFrame(draw);
    };
    requestAnimationFrame(draw);
  }

  restyle() {
    const style = getComputedStyle(document.documentElement);
    this.rem = parseFloat(style.fontSize);
    this.colours = new Proxy({}, { get: (known, name) => (known[name] ??= style.getPropertyValue(name).trim()) });
    this.names.clear();
    this.widths.clear();
    this.place();
  }

  // `groups` are [name, numbers of streams] in order; a name may be null.
  arrange(groups) {
    this.groups = groups;
    this.place();
  }

  place() {
    if (!this.groups || !this.rem) return;
    const width = this.section.clientWidth;
    const gap = 0.4 * this.rem;
    this.columns = Math.max(1, Math.floor((width - gap) / (10.5 * this.rem)));
    this.tileWidth = (width - gap) / this.columns - gap;
    this.tileHeight = 3.4 * this.rem;
    this.cells = [];
    let top = gap;
    for (const [head, numbers] of this.groups) {
      if (head !== null) {
        this.cells.push({ head: `${head}  ${numbers.length}`, x: gap, y: top });
        top += 1.6 * this.rem;
      }
      numbers.forEach((n, place) => {
        const column = place % this.columns;
        const y = top + Math.floor(place / this.columns) * (this.tileHeight + gap);
        this.cells.push({ n, x: gap + column * (this.tileWidth + gap), y });
      });
      top += Math.ceil(numbers.length / this.columns) * (this.tileHeight + gap);
    }
    this.space.style.height = `${Math.max(top, this.section.clientHeight)}px`;
    const ratio = devicePixelRatio;
    this.canvas.width = width * ratio;
    this.canvas.height = this.section.clientHeight * ratio;
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${this.section.clientHeight}px`;
    this.isDirty = true;
  }

  // The first cell that ends below a height.
  firstBelow(y) {
    let [low, high] = [0, this.cells.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.cells[middle].y + this.tileHeight < y) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  draw() {
    this.isDirty = false;
    const { context, colours } = this;
    if (!colours) return;
    const [top, height] = [this.section.scrollTop, this.section.clientHeight];
    context.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
    context.fillStyle = colours["--ground"];
    context.fillRect(0, 0, this.canvas.width, this.canvas.height);
    context.translate(0, -top);
    context.textBaseline = "alphabetic";
    for (let at = this.firstBelow(top); at < this.cells.length && this.cells[at].y < top + height; at++) {
      const cell = this.cells[at];
      if (cell.head !== undefined) {
        context.font = `600 ${0.85 * this.rem}px system-ui, sans-serif`;
        context.fillStyle = colours["--dim"];
        context.fillText(cell.head, cell.x, cell.y + 1.1 * this.rem);
      } else if (this.tiles) {
        this.drawTile(cell);
      }
    }
    this.drawn = (this.drawn || 0) + 1;
  }

  drawTile({ n, x, y }) {
    const { context, colours, rem, tiles, tileWidth: width, tileHeight: height } = this;
    const stream = this.streams[n];
    const state = tiles.state[n];
    const alarms = alarmsOf(tiles.alarms[n]);
    const colour = colours[alarms.length ? "--bad" : STATE_COLOURS[state]];
    context.fillStyle = colours[alarms.length ? "--alarm" : "--tile"];
    context.fillRect(x, y, width, height);
    context.fillStyle = colour;
    context.fillRect(x, y, 0.25 * rem, height);
    if (n === this.selected) {
      context.strokeStyle = colours["--bar"];
      context.lineWidth = 2;
      context.strokeRect(x, y, width, height);
    }
    const left = x + 0.6 * rem;
    const inner = width - 1 * rem;
    context.font = `${0.8 * rem}px system-ui, sans-serif`;
    context.fillStyle = colours["--text"];
    context.fillText(this.fit(stream.name, inner), left, y + 1.05 * rem);
    this.drawMeter(n, left, y + 1.4 * rem, inner, 0.55 * rem);
    context.font = `${0.75 * rem}px system-ui, sans-serif`;
    const base = y + 2.9 * rem;
    if (state < 2) {
      context.fillStyle = colour;
      const known = tiles.alarms[n] & ACKNOWLEDGED ? " ✓" : "";
      context.fillText((state === 0 ? "✕ stopped" : "… no packets") + known, left, base);
      return;
    }
    const short = level(tiles.short[n]);
    const off = stream.target_lufs === undefined || short === null ? 0 : Math.abs(short - stream.target_lufs);
    const loss = tiles.loss[n];
    const known = tiles.alarms[n] & ACKNOWLEDGED ? "✓ " : "";
    const right = known + (alarms.length && !(alarms.length === 1 && alarms[0] === "loss") ? `⚠ ${alarms[0]}`
      : state === 3 ? "⇄ fallback" : loss > 0 ? `▼ ${(loss / 10).toFixed(1)} %` : "");
    // A narrow tile has no space for the unit next to an alarm.
    const whole = short === null ? "silent" : `${short.toFixed(1)} LUFS`;
    const fits = !right || this.widthOf(whole) + this.widthOf(right) + 0.4 * rem <= inner;
    context.fillStyle = off > 3 ? colours["--fair"] : colours["--dim"];
    context.fillText(fits || short === null ? whole : short.toFixed(1), left, base);
    if (right) {
      context.fillStyle = alarms.length || loss > 0 ? colours["--bad"] : colour;
      context.textAlign = "right";
      context.fillText(right, left + inner, base);
      context.textAlign = "left";
    }
  }

  drawMeter(n, x, y, width, height) {
    const { context, colours, tiles } = this;
    const at = (db) => Math.max(0, Math.min(1, 1 - db / FLOOR_DB)) * width;
    context.fillStyle = colours["--edge"];
    context.fillRect(x, y, width, height);
    const momentary = level(tiles.momentary[n]);
    if (momentary !== null) {
      context.fillStyle = colours["--bar"];
      context.fillRect(x, y, at(momentary), height);
    }
    const target = this.streams[n].target_lufs;
    if (target !== undefined) {
      context.fillStyle = colours["--target"];
      context.fillRect(x + at(target) - 1, y - 2, 2, height + 4);
    }
    const peak = level(tiles.peak[n]);
    if (peak !== null) {
      context.fillStyle = peak > -1 ? colours["--bar-hot"] : colours["--mark"];
      context.fillRect(x + Math.min(at(peak), width - 2), y, 2, height);
    }
  }

  // Width of a short text in the font of values, cached: there are some thousands of them.
  widthOf(text) {
    let width = this.widths.get(text);
    if (width === undefined) {
      width = this.context.measureText(text).width;
      this.widths.set(text, width);
    }
    return width;
  }

  fit(name, width) {
    const key = `${name} ${Math.floor(width)}`;
    let fitting = this.names.get(key);
    if (fitting === undefined) {
      fitting = name;
      // Keeps the end of a name, by which streams differ.
      for (let kept = name.length; kept > 1 && this.context.measureText(fitting).width > width; kept--) {
        const head = Math.ceil(kept / 3);
        fitting = `${name.slice(0, head)}…${name.slice(name.length - (kept - head))}`;
      }
      this.names.set(key, fitting);
    }
    return fitting;
  }

  // The stream at a place of the section's window.
  streamAt(clientX, clientY) {
    const box = this.section.getBoundingClientRect();
    const [x, y] = [clientX - box.left, clientY - box.top + this.section.scrollTop];
    const found = this.cells.find((cell) => cell.n !== undefined
      && x >= cell.x && x < cell.x + this.tileWidth && y >= cell.y && y < cell.y + this.tileHeight);
    return found?.n ?? null;
  }

  select(n) {
    this.selected = n;
    this.isDirty = true;
    const cell = this.cells.find((one) => one.n === n);
    if (!cell) return;
    const [top, height] = [this.section.scrollTop, this.section.clientHeight];
    if (cell.y < top) this.section.scrollTop = cell.y - 0.4 * this.rem;
    if (cell.y + this.tileHeight > top + height) this.section.scrollTop = cell.y + this.tileHeight - height + 0.4 * this.rem;
  }

  // The selected tile's neighbour.
  move(dx, dy) {
    const streams = this.cells.filter((cell) => cell.n !== undefined);
    if (!streams.length) return;
    const at = streams.findIndex((cell) => cell.n === this.selected);
    const next = at < 0 ? 0 : Math.max(0, Math.min(streams.length - 1, at + dx + dy * this.columns));
    this.select(streams[next].n);
  }
}
