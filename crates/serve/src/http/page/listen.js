// Plays a stream or a call: fetch, which sends the token, reads its `listen` path, and the samples go to an AudioContext of the same rate. Nothing
// is decoded, and nothing is resampled between portions.
import { ask } from "./feed.js";

// Length of the WAV header: see wav_head in listen.rs.
const HEAD_BYTES = 44;
// Audio comes up to 140 ms at a time, polled every 50 ms; s.
const LEAD = 0.3;
// Audio buffered beyond this is late, and is skipped; s.
const AHEAD_MAX = 1.5;

export class Player {
  constructor(onChange, onProblem) {
    this.onChange = onChange;
    this.onProblem = onProblem;
    this.stopper = null;
    this.context = null;
    this.analyser = null;
  }

  get isOn() {
    return this.stopper !== null;
  }

  stop() {
    this.stopper?.abort();
    this.context?.close();
    [this.stopper, this.context, this.analyser] = [null, null, null];
    this.onChange();
  }

  async start(path) {
    this.stop();
    const stopper = new AbortController();
    this.stopper = stopper;
    this.onChange();
    try {
      const response = await ask(path, { signal: stopper.signal });
      await this.play(response.body.getReader(), stopper);
    } catch (error) {
      if (this.stopper === stopper) this.onProblem(error);
    }
    // Another player may have started meanwhile.
    if (this.stopper === stopper) this.stop();
  }

  async play(reader, stopper) {
    let bytes = new Uint8Array(0);
    let head = null;
    let next = 0;
    for (;;) {
      const { done, value } = await reader.read();
      if (done || stopper !== this.stopper) return;
      const all = new Uint8Array(bytes.length + value.length);
      all.set(bytes);
      all.set(value, bytes.length);
      bytes = all;
      if (!head) {
        if (bytes.length < HEAD_BYTES) continue;
        head = this.begin(bytes);
        bytes = bytes.slice(HEAD_BYTES);
      }
      const frames = Math.floor(bytes.length / (2 * head.channels));
      if (frames === 0) continue;
      next = this.schedule(bytes, frames, head, next);
      bytes = bytes.slice(2 * head.channels * frames);
    }
  }

  begin(bytes) {
    const view = new DataView(bytes.buffer);
    const head = { channels: view.getUint16(22, true), rate: view.getUint32(24, true) };
    this.context = new AudioContext({ sampleRate: head.rate });
    this.analyser = this.context.createAnalyser();
    this.analyser.connect(this.context.destination);
    this.onChange();
    return head;
  }

  // Plays frames after the previous ones. Returns their end, in s of the context.
  schedule(bytes, frames, { channels, rate }, next) {
    const now = this.context.currentTime;
    if (next > now + AHEAD_MAX) return next;
    const buffer = this.context.createBuffer(channels, frames, rate);
    const view = new DataView(bytes.buffer, bytes.byteOffset);
    for (let channel = 0; channel < channels; channel++) {
      const samples = buffer.getChannelData(channel);
      for (let n = 0; n < frames; n++) samples[n] = view.getInt16(2 * (n * channels + channel), true) / 32768;
    }
    const source = this.context.createBufferSource();
    source.buffer = buffer;
    source.connect(this.analyser);
    const at = next > now ? next : now + LEAD;
    source.start(at);
    return at + frames / rate;
  }

  // The peak of the samples played last, relative to full scale.
  peak() {
    if (!this.analyser) return 0;
    const samples = new Float32Array(this.analyser.fftSize);
    this.analyser.getFloatTimeDomainData(samples);
    return samples.reduce((high, one) => Math.max(high, Math.abs(one)), 0);
  }
}
