/*
 * Loudness measurement after EBU R128: the C interface of Threadbare.
 *
 * Names, values and layouts are those of libebur128 1.2.6, so that programs written for it compile with this header
 * and programs linked with it run with this library.
 *
 * Unless it says otherwise, a function returns one of the EBUR128_SUCCESS and EBUR128_ERROR_* values. A NULL where a
 * pointer to something is expected gives EBUR128_ERROR_INVALID_MODE, and nothing happens. One state may be used by one
 * thread at a time.
 *
 * Loudness is in LUFS and minus infinity for silence; peaks are magnitudes with full scale at 1.0. A frame is one sample
 * of each channel; samples are interleaved.
 */
#ifndef EBUR128_H_
#define EBUR128_H_

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define EBUR128_VERSION_MAJOR 1
#define EBUR128_VERSION_MINOR 2
#define EBUR128_VERSION_PATCH 6

/*
 * Where the loudspeaker of a channel stands. M is the layer at the height of the ears, U the upper one, T the top, B the
 * bottom; p is to the left, m to the right; then the azimuth in degrees (ITU-R BS.2051).
 */
enum channel {
  EBUR128_UNUSED = 0, /* not measured, such as low-frequency effects */
  EBUR128_LEFT = 1,
  EBUR128_Mp030 = 1,
  EBUR128_RIGHT = 2,
  EBUR128_Mm030 = 2,
  EBUR128_CENTER = 3,
  EBUR128_Mp000 = 3,
  EBUR128_LEFT_SURROUND = 4,
  EBUR128_Mp110 = 4,
  EBUR128_RIGHT_SURROUND = 5,
  EBUR128_Mm110 = 5,
  EBUR128_DUAL_MONO = 6, /* one channel, played by two loudspeakers: counts twice */
  EBUR128_MpSC = 7,
  EBUR128_MmSC = 8,
  EBUR128_Mp060 = 9,
  EBUR128_Mm060 = 10,
  EBUR128_Mp090 = 11,
  EBUR128_Mm090 = 12,
  EBUR128_Mp135 = 13,
  EBUR128_Mm135 = 14,
  EBUR128_Mp180 = 15,
  EBUR128_Up000 = 16,
  EBUR128_Up030 = 17,
  EBUR128_Um030 = 18,
  EBUR128_Up045 = 19,
  EBUR128_Um045 = 20,
  EBUR128_Up090 = 21,
  EBUR128_Um090 = 22,
  EBUR128_Up110 = 23,
  EBUR128_Um110 = 24,
  EBUR128_Up135 = 25,
  EBUR128_Um135 = 26,
  EBUR128_Up180 = 27,
  EBUR128_Tp000 = 28,
  EBUR128_Bp000 = 29,
  EBUR128_Bp045 = 30,
  EBUR128_Bm045 = 31
};

/* What functions return. */
enum error {
  EBUR128_SUCCESS = 0,
  EBUR128_ERROR_NOMEM = 1,                 /* no memory, or beyond the limits */
  EBUR128_ERROR_INVALID_MODE = 2,          /* the state's mode does not include this */
  EBUR128_ERROR_INVALID_CHANNEL_INDEX = 3, /* no such channel */
  EBUR128_ERROR_NO_CHANGE = 4              /* it was so before */
};

/* What a state measures; combine with |. */
enum mode {
  EBUR128_MODE_M = 1,            /* the last 400 ms */
  EBUR128_MODE_S = 2 | 1,        /* the last 3 s */
  EBUR128_MODE_I = 4 | 1,        /* integrated loudness, gated */
  EBUR128_MODE_LRA = 8 | 2 | 1,  /* loudness range */
  EBUR128_MODE_SAMPLE_PEAK = 16 | 1,
  EBUR128_MODE_TRUE_PEAK = 32 | 16 | 1,
  EBUR128_MODE_HISTOGRAM = 64    /* fixed memory for I and LRA, in steps of 0.1 LU */
};

struct ebur128_state_internal;

/* A measurement. For reading only. */
typedef struct {
  int mode;
  unsigned int channels;
  unsigned long samplerate;
  struct ebur128_state_internal* d;
} ebur128_state;

/* The version of the interface: 1.2.6. */
void ebur128_get_version(int* major, int* minor, int* patch);

/* A new state for 1 to 64 channels at 16 to 2822400 Hz. NULL if they are beyond that, or the mode lacks EBUR128_MODE_M. */
ebur128_state* ebur128_init(unsigned int channels, unsigned long samplerate, int mode);

/* Frees *st and sets it to NULL. */
void ebur128_destroy(ebur128_state** st);

/*
 * Says where the loudspeaker of a channel, counted from 0, stands. Without, they stand: L R C unused Ls Rs, and all
 * others unused; with four channels L R Ls Rs; with five L R C Ls Rs. EBUR128_DUAL_MONO is for a single channel.
 */
int ebur128_set_channel(ebur128_state* st, unsigned int channel_number, int value);

/*
 * From here on, the audio has another format. Integrated loudness and range go on, all else begins anew; peaks and
 * channels only if there is another number of them. EBUR128_ERROR_NOMEM if the format is beyond the limits.
 */
int ebur128_change_parameters(ebur128_state* st, unsigned int channels, unsigned long samplerate);

/*
 * The longest window for ebur128_loudness_window, in ms: 400 or 3000, whichever the mode needs, up to an hour. The windows
 * begin anew.
 */
int ebur128_set_max_window(ebur128_state* st, unsigned long window);

/*
 * Integrated loudness over the last so many ms, at least 400, and range over so many blocks of 3 s. Of no effect with
 * EBUR128_MODE_HISTOGRAM.
 */
int ebur128_set_max_history(ebur128_state* st, unsigned long history);

/* Measure so many frames. Full scale is 32768, 2147483648 and 1.0. */
int ebur128_add_frames_short(ebur128_state* st, const short* src, size_t frames);
int ebur128_add_frames_int(ebur128_state* st, const int* src, size_t frames);
int ebur128_add_frames_float(ebur128_state* st, const float* src, size_t frames);
int ebur128_add_frames_double(ebur128_state* st, const double* src, size_t frames);

/* Integrated loudness. Several states count as one programme; NULL among them is skipped. */
int ebur128_loudness_global(ebur128_state* st, double* out);
int ebur128_loudness_global_multiple(ebur128_state** sts, size_t size, double* out);

/* Loudness of the last 400 ms, 3 s, or `window` ms. What was before the first frame counts as silence. */
int ebur128_loudness_momentary(ebur128_state* st, double* out);
int ebur128_loudness_shortterm(ebur128_state* st, double* out);
int ebur128_loudness_window(ebur128_state* st, unsigned long window, double* out);

/* Loudness range, in LU. Several states, all with a histogram or all without, count as one programme. */
int ebur128_loudness_range(ebur128_state* st, double* out);
int ebur128_loudness_range_multiple(ebur128_state** sts, size_t size, double* out);

/* The largest sample of a channel: of all, and of those added last. */
int ebur128_sample_peak(ebur128_state* st, unsigned int channel_number, double* out);
int ebur128_prev_sample_peak(ebur128_state* st, unsigned int channel_number, double* out);

/* The same between the samples as well (ITU-R BS.1770, annex 2). */
int ebur128_true_peak(ebur128_state* st, unsigned int channel_number, double* out);
int ebur128_prev_true_peak(ebur128_state* st, unsigned int channel_number, double* out);

/* The relative gate of the integrated loudness, in LUFS; -70 if there is nothing to gate. */
int ebur128_relative_threshold(ebur128_state* st, double* out);

#ifdef __cplusplus
}
#endif

#endif /* EBUR128_H_ */
