// Data from the gateway. Events are read by fetch, because EventSource sends no token.

const TOKEN = "threadbare-token";

export class Refused extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

export const setToken = (token) => sessionStorage.setItem(TOKEN, token.trim());

export const ask = async (path, options = {}) => {
  const token = sessionStorage.getItem(TOKEN);
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const response = await fetch(path, { ...options, headers });
  if (response.ok) return response;
  const problem = await response.json().catch(() => ({}));
  throw new Refused(response.status, problem.detail || response.statusText);
};

export const get = async (path) => (await ask(path)).json();

// The events of a path, until its end: lines of server-sent events.
export async function* events(path, signal) {
  const response = await ask(path, { signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += value;
    let end;
    while ((end = text.indexOf("\n\n")) >= 0) {
      const event = { name: "message", data: "" };
      for (const line of text.slice(0, end).split("\n")) {
        if (line.startsWith("event:")) event.name = line.slice(6).trim();
        if (line.startsWith("data:")) event.data += line.slice(5).trim();
      }
      text = text.slice(end + 2);
      if (event.data) yield { name: event.name, data: JSON.parse(event.data) };
    }
  }
}

export const NONE = -32768;

// The columns of /v1/wall, a value for each stream; see /openapi.json. They are little-endian, as all machines with browsers are.
export const decode = (base64, streams) => {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let n = 0; n < text.length; n++) bytes[n] = text.charCodeAt(n);
  const column = (index, Kind) => new Kind(bytes.buffer, 2 * streams * (1 + index), streams);
  return {
    state: bytes.subarray(0, streams),
    alarms: bytes.subarray(streams, 2 * streams),
    momentary: column(0, Int16Array),
    peak: column(1, Int16Array),
    short: column(2, Int16Array),
    loss: column(3, Uint16Array),
  };
};
