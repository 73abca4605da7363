"""Common parts of the page's tests."""

import pathlib
import sys
import time
import urllib.request

URL = "http://127.0.0.1:8080"
# Only ends a test that hangs.
LIMIT_S = 90
pictures = pathlib.Path(sys.argv[1])


def mu_law(sample):
    """Encodes G.711 from 16 bits."""
    sign = 0x80 if sample < 0 else 0
    level = min(abs(sample), 32635) + 132
    exponent = level.bit_length() - 8
    return ~(sign | exponent << 4 | level >> exponent + 3 & 15) & 0xFF


def get(path):
    with urllib.request.urlopen(URL + path, timeout=10) as answer:
        return answer.read().decode()


def until(what, condition):
    end = time.monotonic() + LIMIT_S
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < end, f"waited {LIMIT_S} s for: {what}"
        time.sleep(0.1)


def answers():
    try:
        return get("/healthz")
    except OSError:
        return None


def run(page, script, *arguments):
    return page.execute_script(script, *arguments)


def picture(page, name):
    page.save_screenshot(str(pictures / f"{name}.png"))
