/*
 * Cost of a sample through the C interface of the libebur128.so.1 that the loader finds.
 *
 *   cost SECONDS ROUNDS
 *
 * Stereo, 48 kHz, float, 1024 frames per call. Prints one line per mode and round: the name of the mode, and the CPU
 * time in ns per sample of a channel.
 */
#include <ebur128.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { RATE_HZ = 48000, CHANNELS = 2, CALL_FRAMES = 1024, SIGNAL_FRAMES = 10 * RATE_HZ };

static const struct {
  const char* name;
  int mode;
} MODES[] = {
    {"M", EBUR128_MODE_M},
    {"S", EBUR128_MODE_S},
    {"I", EBUR128_MODE_I},
    {"I+LRA", EBUR128_MODE_I | EBUR128_MODE_LRA},
    {"I+LRA+histogram", EBUR128_MODE_I | EBUR128_MODE_LRA | EBUR128_MODE_HISTOGRAM},
    {"sample-peak", EBUR128_MODE_SAMPLE_PEAK},
    {"true-peak", EBUR128_MODE_TRUE_PEAK},
    {"I+LRA+true-peak", EBUR128_MODE_I | EBUR128_MODE_LRA | EBUR128_MODE_TRUE_PEAK},
};

/* Noise whose level changes like that of speech, so that nothing is constant and the peaks stand out as they do in
 * programmes. */
static float* signal_make(void) {
  float* signal = malloc(sizeof(float) * SIGNAL_FRAMES * CHANNELS);
  unsigned state = 1;
  if (!signal) exit(2);
  for (size_t i = 0; i < (size_t)SIGNAL_FRAMES * CHANNELS; ++i) {
    state = state * 1664525u + 1013904223u;
    double level = 0.2 + 0.2 * sin((double)i / 9000.0) + 0.1 * sin((double)i / 71000.0);
    signal[i] = (float)(level * ((double)(state >> 8) / (1 << 23) - 1.0));
  }
  return signal;
}

static double cpu_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static double measure(const float* signal, int mode, int seconds) {
  ebur128_state* state = ebur128_init(CHANNELS, RATE_HZ, mode);
  size_t frames = (size_t)seconds * RATE_HZ, done = 0;
  double start, value = 0;
  if (!state) exit(2);
  start = cpu_ns();
  while (done < frames) {
    size_t at = done % (SIGNAL_FRAMES - CALL_FRAMES);
    if (ebur128_add_frames_float(state, signal + at * CHANNELS, CALL_FRAMES)) exit(2);
    done += CALL_FRAMES;
  }
  start = cpu_ns() - start;
  ebur128_loudness_momentary(state, &value);
  if (!isfinite(value)) exit(2);
  ebur128_destroy(&state);
  return start / (double)done / CHANNELS;
}

int main(int argc, char** argv) {
  int seconds = argc > 1 ? atoi(argv[1]) : 60, rounds = argc > 2 ? atoi(argv[2]) : 1;
  float* signal = signal_make();
  for (int round = 0; round < rounds; ++round)
    for (size_t i = 0; i < sizeof MODES / sizeof *MODES; ++i)
      printf("%s %.3f\n", MODES[i].name, measure(signal, MODES[i].mode, seconds));
  free(signal);
  return 0;
}
