"""The page at 200 %: a window with half the CSS pixels, twice as dense. Nothing may be cut off or overlap."""

from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from common import picture, run, until

# Controls and texts that are partly hidden or outside the window, and overlapping controls.
LAYOUT = """
const wrong = [];
const root = document.documentElement;
if (root.scrollWidth > root.clientWidth) wrong.push(`the page is ${root.scrollWidth} wide`);
const seen = [...document.querySelectorAll("body *")].filter((one) => one.checkVisibility() && one.getClientRects().length);
for (const one of seen) {
  const box = one.getBoundingClientRect();
  const name = `${one.tagName} ${one.id || one.textContent.slice(0, 30)}`;
  const scrolls = (place) => /auto|scroll/.test(getComputedStyle(place).overflowX);
  let place = one;
  while (place && !scrolls(place)) place = place.parentElement;
  if (!place && (box.left < -1 || box.right > innerWidth + 1)) wrong.push(`${name} from ${box.left} to ${box.right} of ${innerWidth}`);
  if (place && place !== one && place.scrollWidth > place.clientWidth + 1) wrong.push(`${place.tagName} ${place.id} is ${place.scrollWidth} wide in ${place.clientWidth}`);
  const cuts = one.children.length === 0 && one.textContent.trim() && !/SELECT|OPTION|INPUT/.test(one.tagName);
  if (cuts && one.scrollWidth > one.clientWidth + 1 && getComputedStyle(one).display !== "inline") wrong.push(`${name} is cut off`);
}
// What of it is in sight.
const boxOf = (one) => {
  const { left, right, top, bottom } = one.getBoundingClientRect();
  const box = { left, right, top, bottom };
  for (let place = one.parentElement; place; place = place.parentElement) {
    if (getComputedStyle(place).overflowY === "visible") continue;
    const edge = place.getBoundingClientRect();
    [box.top, box.bottom] = [Math.max(box.top, edge.top), Math.min(box.bottom, edge.bottom)];
  }
  return box;
};
const controls = seen.filter((one) => /BUTTON|SELECT|INPUT/.test(one.tagName)).map((one) => [one, boxOf(one)]);
controls.forEach(([one, a], n) => controls.slice(n + 1).forEach(([other, b]) => {
  if (a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1) wrong.push(`${one.id || one.textContent} lies on ${other.id || other.textContent}`);
}));
return [...new Set(wrong)];
"""

# The texts of the visible tiles: each must be within its tile and not overlap another. The tiles have all kinds of alarms,
# acknowledged ones too.
TILES = """
const { wall } = threadbare;
const texts = [];
const tiles = wall.tiles;
wall.tiles = { ...tiles, alarms: tiles.alarms.map((_, n) => 0x80 | 1 << n % 6), short: tiles.short.map(() => -377), state: tiles.state.map((_, n) => (n % 7 ? 2 : 3)), loss: tiles.loss.map(() => 1000) };
const draw = wall.context.fillText;
wall.context.fillText = function (text, x, y, ...rest) {
  const { width } = this.measureText(text);
  const left = this.textAlign === "right" ? x - width : x;
  texts.push({ text, left, right: left + width, y });
  draw.call(this, text, x, y, ...rest);
};
wall.draw();
delete wall.context.fillText;
wall.tiles = tiles;
wall.isDirty = true;
const wrong = [];
for (const cell of wall.cells.filter((one) => one.n !== undefined)) {
  const own = texts.filter((one) => one.y > cell.y && one.y < cell.y + wall.tileHeight && one.left >= cell.x - 1 && one.left < cell.x + wall.tileWidth);
  for (const one of own) {
    if (one.right > cell.x + wall.tileWidth) wrong.push(`${one.text} leaves its tile`);
    for (const other of own) {
      if (other !== one && other.y === one.y && one.left <= other.left && one.right > other.left) wrong.push(`${one.text} lies on ${other.text}`);
    }
  }
}
return [texts.length, [...new Set(wrong)]];
"""


def is_laid_out(page, view):
    picture(page, f"{view}-200")
    wrong = run(page, LAYOUT)
    assert not wrong, (view, wrong)


def resize(page, width):
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {"width": width, "height": 500, "deviceScaleFactor": 2, "mobile": False})


def order(page, name):
    run(page, "const sort = document.getElementById('sort'); sort.value = arguments[0]; sort.dispatchEvent(new Event('change'))", name)


def check(page, stream):
    """`stream` has the most losses and an acknowledged alarm, so its tile has the most text."""
    body = page.find_element(By.TAG_NAME, "body")
    try:
        body.send_keys("w")
        # The narrowest tiles; then those of a window of 1600 by 1000.
        resize(page, 694)
        until("narrow tiles", lambda: run(page, "const w = threadbare.wall; return w.tileWidth < 10.2 * w.rem && w.tiles && w.columns === 4"))
        texts, wrong = run(page, TILES)
        assert texts > 20 and not wrong, wrong
        resize(page, 800)
        until("it is drawn for that", lambda: run(page, "return devicePixelRatio === 2 && threadbare.wall.canvas.width === 2 * threadbare.wall.section.clientWidth"))
        run(page, "threadbare.wall.section.scrollTop = 0")
        order(page, "loss")
        until("the tile with most to tell", lambda: run(page, "return threadbare.wall.cells.slice(0, 8).some((cell) => cell.n === arguments[0])", stream))
        texts, wrong = run(page, TILES)
        assert texts > 20 and not wrong, wrong
        is_laid_out(page, "wall")
        body.send_keys(Keys.ARROW_RIGHT, Keys.ENTER)
        until("a stream's panel", lambda: "LUFS" in page.find_element(By.ID, "stream-values").text)
        texts, wrong = run(page, TILES)
        assert not wrong, wrong
        is_laid_out(page, "stream")
        body.send_keys(Keys.ESCAPE, "c")
        until("calls", lambda: page.find_elements(By.CSS_SELECTOR, "#calls-rows tr"))
        is_laid_out(page, "calls")
        body.send_keys(Keys.ARROW_DOWN, Keys.ENTER)
        until("a call's panel", lambda: "gateway's report" in page.find_element(By.ID, "call-sides").text)
        is_laid_out(page, "call")
        run(page, "document.getElementById('call').scrollTop = 600")
        is_laid_out(page, "call-sides")
        body.send_keys(Keys.ESCAPE, "m")
        until("the threads", lambda: page.find_element(By.ID, "threads").text)
        is_laid_out(page, "machine")
        body.send_keys("w")
        order(page, "worst")
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
