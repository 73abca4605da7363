"""How smooth the wall is while values change, and while it also scrolls. Only printed, because it depends on the machine."""

from common import run

SECONDS = 5
MEASURE = """
const done = arguments[0];
const { wall } = threadbare;
const draw = wall.draw;
const [begun, told, height] = [performance.now(), wall.frames, wall.space.offsetHeight];
let [frames, last, longest, drawing, drawn] = [0, begun, 0, 0, 0];
wall.draw = function () {
  const from = performance.now();
  draw.call(this);
  drawing += performance.now() - from;
  drawn += 1;
};
const step = () => {
  const now = performance.now();
  [frames, longest, last] = [frames + 1, Math.max(longest, now - last), now];
  %s
  if (now - begun < 1000 * %d) return requestAnimationFrame(step);
  delete wall.draw;
  const s = (now - begun) / 1000;
  done([frames / s, longest, (wall.frames - told) / s, drawn / s, drawing / drawn]);
};
requestAnimationFrame(step);
"""


def measure(page):
    tiles = run(page, "return threadbare.wall.streams.length")
    for what, script in [("while values come", ""), ("while it scrolls", "wall.section.scrollTop = (now - begun) / 2 % height;")]:
        frames, longest, told, drawn, took = page.execute_async_script(MEASURE % (script, SECONDS))
        print(f"page: {tiles} tiles {what}: {frames:.0f} frames/s, the longest {longest:.0f} ms; values {told:.1f} times/s; drawn {drawn:.0f} times/s in {took:.1f} ms")
