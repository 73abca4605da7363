/*
 * Calls every function of the interface with every type of sample, with usual and odd arguments, and prints what comes
 * out: "KIND NAME CODE VALUE" a line. Run with two libraries, the lines must agree: code exactly, l as loudness, p as
 * peaks, x exactly.
 *
 * With the argument "null", calls with NULL follow, which libebur128 itself does not survive, and there is less audio.
 */
#include <ebur128.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))
#define ALL (EBUR128_MODE_I | EBUR128_MODE_LRA | EBUR128_MODE_TRUE_PEAK)

static double value;
static size_t divisor = 1;

static void show(char kind, const char* name, int code) {
  /* The sign of what is not a number means nothing. */
  if (isnan(value))
    printf("%c %s %d nan\n", kind, name, code);
  else
    printf("%c %s %d %.17g\n", kind, name, code, value);
  value = 12345;
}

/* Noise that is the same everywhere, interleaved, with a level that changes every second. */
static double sample_at(size_t index) {
  unsigned state = (unsigned)index * 2654435761u;
  state ^= state >> 15;
  state *= 2246822519u;
  state ^= state >> 13;
  return ((double)(state >> 8) / (1 << 23) - 1.0) / (double)(1 + index / 96000 % 5);
}

static int add(ebur128_state* state, int type, size_t from, size_t frames) {
  size_t count, i;
  void* buffer;
  int code;
  frames /= divisor;
  count = frames * state->channels;
  buffer = malloc(count * sizeof(double) + 1);
  for (i = 0; i < count; ++i) {
    double x = sample_at(from + i);
    if (type == 0) ((short*)buffer)[i] = (short)(x * 32767);
    if (type == 1) ((int*)buffer)[i] = (int)(x * 2147483647.0);
    if (type == 2) ((float*)buffer)[i] = (float)x;
    if (type == 3) ((double*)buffer)[i] = x;
  }
  if (type == 0) code = ebur128_add_frames_short(state, buffer, frames);
  else if (type == 1) code = ebur128_add_frames_int(state, buffer, frames);
  else if (type == 2) code = ebur128_add_frames_float(state, buffer, frames);
  else code = ebur128_add_frames_double(state, buffer, frames);
  free(buffer);
  return code;
}

static void read_all(ebur128_state* state) {
  static const unsigned long windows[] = {0, 1, 10, 399, 400, 401, 1234, 3000, 3001, 4000000000ul};
  unsigned channel;
  size_t i;
  show('l', "global", ebur128_loudness_global(state, &value));
  show('l', "momentary", ebur128_loudness_momentary(state, &value));
  show('l', "shortterm", ebur128_loudness_shortterm(state, &value));
  for (i = 0; i < COUNT(windows); ++i)
    show('l', "window", ebur128_loudness_window(state, windows[i], &value));
  show('l', "range", ebur128_loudness_range(state, &value));
  show('l', "threshold", ebur128_relative_threshold(state, &value));
  for (channel = 0; channel < state->channels + 2; ++channel) {
    show('p', "sample_peak", ebur128_sample_peak(state, channel, &value));
    show('p', "prev_sample_peak", ebur128_prev_sample_peak(state, channel, &value));
    show('p', "true_peak", ebur128_true_peak(state, channel, &value));
    show('p', "prev_true_peak", ebur128_prev_true_peak(state, channel, &value));
  }
  printf("x state %d %d %u %lu\n", state->mode, state->mode, state->channels, state->samplerate);
}

static void types_and_modes(void) {
  static const int modes[] = {1, 3, 5, 9, 11, 15, 17, 33, 49, 63, 65, 77, 79, 127, 128 | 1, -1};
  size_t i;
  int type;
  for (i = 0; i < COUNT(modes); ++i) {
    for (type = 0; type < 4; ++type) {
      ebur128_state* state = ebur128_init(2, 48000, modes[i]);
      printf("x mode %d type %d\n", modes[i], type);
      read_all(state);
      show('x', "add", add(state, type, 0, 48000 * 7));
      show('x', "add", add(state, type, 99, 1234));
      read_all(state);
      show('x', "add nothing", add(state, type, 0, 0));
      read_all(state);
      ebur128_destroy(&state);
      printf("x destroyed %d\n", state == NULL);
    }
  }
}

static void bad_inits(void) {
  static const int modes[] = {0, 2, 4, 8, 10, 16, 32, 48, 64, 126};
  size_t i;
  for (i = 0; i < COUNT(modes); ++i)
    printf("x init mode %d %d\n", modes[i], ebur128_init(2, 48000, modes[i]) == NULL);
  printf("x init %d %d %d %d %d\n", ebur128_init(0, 48000, 1) == NULL, ebur128_init(65, 48000, 1) == NULL,
         ebur128_init(2, 15, 1) == NULL, ebur128_init(2, 2822401, 1) == NULL, ebur128_init(2, 0, 1) == NULL);
}

static void channel_maps(void) {
  unsigned channels;
  int place;
  for (channels = 1; channels <= 12; ++channels) {
    ebur128_state* state = ebur128_init(channels, 44100, ALL);
    add(state, 2, 0, 44100 * 4);
    printf("x channels %u\n", channels);
    read_all(state);
    show('x', "set beyond", ebur128_set_channel(state, channels, EBUR128_LEFT));
    show('x', "set far beyond", ebur128_set_channel(state, 4000000000u, EBUR128_LEFT));
    show('x', "set dual mono", ebur128_set_channel(state, 0, EBUR128_DUAL_MONO));
    show('x', "set last", ebur128_set_channel(state, channels - 1, EBUR128_UNUSED));
    ebur128_destroy(&state);
  }
  for (place = -3; place < 40; ++place) {
    ebur128_state* state = ebur128_init(1, 48000, ALL);
    show('x', "set", ebur128_set_channel(state, 0, place));
    add(state, 3, 0, 48000);
    printf("x place %d\n", place);
    read_all(state);
    ebur128_destroy(&state);
  }
}

static void changes(void) {
  ebur128_state* state = ebur128_init(2, 48000, ALL);
  static const unsigned formats[][2] = {{2, 48000}, {2, 44100}, {3, 44100}, {0, 44100}, {65, 44100},
                                        {2, 15},    {2, 2822401}, {1, 96000}, {2, 192000}, {2, 48000}};
  static const unsigned long histories[] = {0, 1, 3000, 3001, 2000, 9000, 4000000000ul};
  size_t i;
  add(state, 0, 0, 48000 * 5);
  for (i = 0; i < COUNT(formats); ++i) {
    show('x', "change", ebur128_change_parameters(state, formats[i][0], formats[i][1]));
    read_all(state);
    add(state, 1, i, 70000);
    read_all(state);
  }
  for (i = 0; i < COUNT(histories); ++i) {
    show('x', "history", ebur128_set_max_history(state, histories[i]));
    read_all(state);
    add(state, 2, i * 1000, 48000 * 2);
    read_all(state);
  }
  show('x', "window", ebur128_set_max_window(state, 0));
  show('x', "window", ebur128_set_max_window(state, 400));
  show('x', "window", ebur128_set_max_window(state, 3000));
  ebur128_destroy(&state);
}

static void several(void) {
  ebur128_state* exact = ebur128_init(2, 48000, ALL);
  ebur128_state* other = ebur128_init(1, 44100, ALL);
  ebur128_state* binned = ebur128_init(2, 48000, ALL | EBUR128_MODE_HISTOGRAM);
  ebur128_state* momentary = ebur128_init(2, 48000, EBUR128_MODE_M);
  ebur128_state* lists[][3] = {{exact, other, NULL},  {NULL, exact, NULL}, {exact, exact, exact},
                               {exact, binned, NULL}, {binned, NULL, exact}, {binned, NULL, binned},
                               {exact, momentary, NULL}, {momentary, NULL, NULL}, {NULL, NULL, NULL}};
  size_t i, size;
  add(exact, 2, 0, 48000 * 8);
  add(other, 2, 5, 44100 * 9);
  add(binned, 2, 9, 48000 * 8);
  for (i = 0; i < COUNT(lists); ++i) {
    for (size = 0; size <= 3; ++size) {
      show('l', "global_multiple", ebur128_loudness_global_multiple(lists[i], size, &value));
      show('l', "range_multiple", ebur128_loudness_range_multiple(lists[i], size, &value));
    }
  }
  ebur128_destroy(&exact);
  ebur128_destroy(&other);
  ebur128_destroy(&binned);
  ebur128_destroy(&momentary);
}

static void odd_values(void) {
  static const float odd[] = {NAN, INFINITY, -INFINITY, 1e30f, 1e-42f};
  size_t i;
  for (i = 0; i < COUNT(odd); ++i) {
    ebur128_state* state = ebur128_init(1, 48000, ALL);
    add(state, 2, 0, 48000 * 4);
    show('x', "add odd", ebur128_add_frames_float(state, &odd[i], 1));
    show('l', "global", ebur128_loudness_global(state, &value));
    show('p', "sample_peak", ebur128_sample_peak(state, 0, &value));
    show('p', "prev_sample_peak", ebur128_prev_sample_peak(state, 0, &value));
    add(state, 2, 0, 48000 * 4);
    show('l', "global", ebur128_loudness_global(state, &value));
    show('l', "momentary", ebur128_loudness_momentary(state, &value));
    show('p', "true_peak", ebur128_true_peak(state, 0, &value));
    ebur128_destroy(&state);
  }
}

static void nulls(void) {
  ebur128_state *state = ebur128_init(2, 48000, ALL), *none = NULL;
  ebur128_get_version(NULL, NULL, NULL);
  ebur128_destroy(NULL);
  ebur128_destroy(&none);
  int codes[] = {
      ebur128_set_channel(NULL, 0, 1),
      ebur128_change_parameters(NULL, 2, 48000),
      ebur128_set_max_window(NULL, 5000),
      ebur128_set_max_history(NULL, 5000),
      ebur128_add_frames_short(NULL, NULL, 1),
      ebur128_add_frames_int(state, NULL, 1),
      ebur128_add_frames_float(state, NULL, 7),
      ebur128_add_frames_double(NULL, NULL, 0),
      ebur128_loudness_global(NULL, &value),
      ebur128_loudness_global(state, NULL),
      ebur128_loudness_global_multiple(NULL, 2, &value),
      ebur128_loudness_global_multiple(&state, 1, NULL),
      ebur128_loudness_momentary(NULL, &value),
      ebur128_loudness_shortterm(NULL, &value),
      ebur128_loudness_window(NULL, 400, &value),
      ebur128_loudness_range(NULL, &value),
      ebur128_loudness_range_multiple(NULL, 1, &value),
      ebur128_sample_peak(NULL, 0, &value),
      ebur128_prev_sample_peak(NULL, 0, &value),
      ebur128_true_peak(state, 0, NULL),
      ebur128_prev_true_peak(NULL, 0, &value),
      ebur128_relative_threshold(NULL, &value),
  };
  size_t i;
  for (i = 0; i < COUNT(codes); ++i) printf("x null %zu %d\n", i, codes[i]);
  printf("x nothing happened %d %d\n", ebur128_add_frames_float(state, NULL, 0), value == 12345);
  /* More frames than there are addresses. */
  printf("x too many %d\n", ebur128_add_frames_float(state, (const float*)&value, (size_t)-1));
  /* Windows that 1.2.6 would ask gigabytes for. */
  printf("x windows %d", ebur128_set_max_window(state, 10000));
  printf(" %d", ebur128_set_max_window(state, 10000));
  printf(" %d\n", ebur128_set_max_window(state, (unsigned long)-1));
  add(state, 2, 0, 48000 * 11);
  printf("x window %d\n", ebur128_loudness_window(state, 10000, &value));
  ebur128_destroy(&state);
}

int main(int argc, char** argv) {
  int major = 0, minor = 0, patch = 0;
  ebur128_get_version(&major, &minor, &patch);
  printf("x version %d.%d.%d\n", major, minor, patch);
  value = 12345;
  if (argc > 1 && strcmp(argv[1], "null") == 0) divisor = 20;
  types_and_modes();
  bad_inits();
  channel_maps();
  changes();
  several();
  odd_values();
  if (divisor > 1) nulls();
  return 0;
}
