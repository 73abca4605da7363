// Lines over time, and heat maps.

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export const open = (canvas, height = canvas.clientHeight) => {
  const [ratio, width] = [devicePixelRatio, canvas.clientWidth];
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return { context, width, height };
};

const MINUTE = 60;
const TICKS = [1, 2, 5, 10, 30, 60, 120, 240].map((minutes) => minutes * MINUTE);

// `lines` are {values, colour, width?, dash?, bars?, dots?}; null is a gap. With dots, a single value is visible
// too. `times` are {unix_s, span, step}: the time of each value, the seconds shown, and the seconds between two values.
export const chart = (canvas, { unix_s, span, step: spacing }, lines, { low, high, unit, step }) => {
  const { context, width, height } = open(canvas);
  const [left, bottom] = [36, height - 16];
  const begin = (unix_s.at(-1) ?? 0) - span;
  const toX = (time) => left + ((width - left) * (time - begin)) / span;
  const [x, y] = [
    (at) => toX(unix_s[at]),
    (value) => bottom - ((Math.max(low, Math.min(high, value)) - low) / (high - low)) * (bottom - 6),
  ];
  context.font = "11px system-ui, sans-serif";
  for (let value = low; value <= high + 1e-9; value += step) {
    context.fillStyle = colour("--edge");
    context.fillRect(left, Math.round(y(value)), width - left, 1);
    context.fillStyle = colour("--dim");
    context.textAlign = "right";
    context.fillText(`${Math.round(value * 10) / 10}${unit || ""}`, left - 4, y(value) + 4);
  }
  context.textAlign = "center";
  const tick = TICKS.find((one) => (one / span) * (width - left) > 45) || TICKS.at(-1);
  const zone = new Date().getTimezoneOffset() * MINUTE;
  for (let time = Math.ceil((begin - zone) / tick) * tick + zone; time <= begin + span; time += tick) {
    if (toX(time) > left + 20 && toX(time) < width - 20) {
      context.fillText(new Date(time * 1000).toTimeString().slice(0, 5), toX(time), height - 3);
    }
  }
  for (const line of lines) {
    context.strokeStyle = context.fillStyle = colour(line.colour);
    context.lineWidth = line.width || 1.5;
    context.setLineDash(line.dash || []);
    if (line.bars) {
      line.values.forEach((value, at) => {
        if (value > 0) context.fillRect(x(at) - 1, y(value), 2, bottom - y(value));
      });
      continue;
    }
    if (line.dots) {
      line.values.forEach((value, at) => {
        if (value !== null) context.fillRect(x(at) - 1.5, y(value) - 1.5, 3, 3);
      });
    }
    context.beginPath();
    let isDown = false;
    line.values.forEach((value, at) => {
      // Seconds may be missing, if the page was not visible.
      if (isDown && unix_s[at] - unix_s[at - 1] > 2 * spacing) isDown = false;
      if (value === null) isDown = false;
      else if (isDown) context.lineTo(x(at), y(value));
      else { context.moveTo(x(at), y(value)); isDown = true; }
    });
    context.stroke();
  }
  context.setLineDash([]);
};

// From low to high, readable without telling red from green: brightness changes monotonically.
export const heat = (part) => {
  const p = Math.max(0, Math.min(1, part));
  const stops = [[26, 34, 70], [58, 82, 139], [32, 144, 140], [240, 190, 60], [230, 60, 40]];
  const at = p * (stops.length - 1);
  const [from, to] = [stops[Math.floor(at)], stops[Math.ceil(at)]];
  return `rgb(${from.map((value, n) => Math.round(value + (to[n] - value) * (at % 1))).join(" ")})`;
};

// A row for each of `rows`: {name, parts}, newest last; `columns` seconds fit.
export const heatMap = (canvas, rows, columns) => {
  const row = 22;
  canvas.style.height = `${Math.max(1, rows.length) * row}px`;
  const { context, width } = open(canvas, Math.max(1, rows.length) * row);
  const left = 130;
  const cell = (width - left) / columns;
  context.font = "12px system-ui, sans-serif";
  rows.forEach(({ name, parts }, n) => {
    context.fillStyle = colour("--text");
    context.fillText(name, 0, n * row + 15);
    parts.forEach((part, at) => {
      context.fillStyle = heat(part);
      const x = left + (columns - parts.length + at) * cell;
      context.fillRect(x, n * row + 1, Math.ceil(cell), row - 2);
    });
  });
};

export const ramp = (canvas) => {
  const context = canvas.getContext("2d");
  for (let x = 0; x < canvas.width; x++) {
    context.fillStyle = heat(x / canvas.width);
    context.fillRect(x, 0, 1, canvas.height);
  }
};
