"""Checks that a phone recorded a tone of this frequency, by its zero crossings without the first and the last half second.

    tone.py WAV HZ
"""

import array
import sys
import wave

ERROR_MAX = 0.02


def main(path, hz):
    with wave.open(path, "rb") as file:
        rate = file.getframerate()
        samples = array.array("h", file.readframes(file.getnframes()))
    samples = samples[rate // 2 : -(rate // 2)]
    crossings = sum((one > 0) != (other > 0) for one, other in zip(samples, samples[1:]))
    found = crossings / 2 * rate / max(len(samples), 1)
    print(f"{found:.0f} Hz in {len(samples) / rate:.1f} s")
    sys.exit(abs(found - float(hz)) > float(hz) * ERROR_MAX)


main(*sys.argv[1:])
