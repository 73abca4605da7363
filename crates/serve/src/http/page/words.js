// Values as people read them.
export const number = (value, unit, digits = 1) => (value === undefined || value === null ? "none" : `${value.toFixed(digits)} ${unit}`.trim());

export const hex = (ssrc) => `0x${ssrc.toString(16).padStart(8, "0")}`;

// The RTCP report of one direction.
export const report = (one) => {
  if (!one) return "none";
  const rest = [one.jitter_ms === undefined ? "" : `jitter ${number(one.jitter_ms, "ms")}`, one.round_trip_ms === undefined ? "" : `round trip ${number(one.round_trip_ms, "ms")}`];
  return [`${one.packets_lost} lost`, one.loss_percent === undefined ? "" : number(one.loss_percent, "%"), ...rest].filter(Boolean).join(", ");
};

// Shows log lines in a list.
export const showLines = (list, lines) => {
  const shown = lines.map((line) => {
    const item = Object.assign(document.createElement("li"), { className: line.level });
    item.textContent = `${new Date(line.unix_ms).toTimeString().slice(0, 8)} ${line.level} ${line.text}`;
    return item;
  });
  list.replaceChildren(...shown);
};
