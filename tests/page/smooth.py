"""The wall while it scrolls: that it is drawn right; and how smooth it is, for people, which is printed and not asserted: it is about the machine, too."""

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


# The wall in pieces, as it is drawn while it scrolls, is the wall that is drawn at once.
PIECES = """
const { wall } = threadbare;
const [begin, selected] = [wall.section.scrollTop, wall.selected];
const seen = () => wall.context.getImageData(0, 0, wall.canvas.width, wall.canvas.height).data;
wall.selected = wall.cells.find((one) => one.n !== undefined).n;
wall.isDirty = true;
wall.draw();
const wrong = [];
for (const way of [1, 7, 50, 300, -20, -3, 100000, -40, -100000]) {
  wall.section.scrollTop += way;
  wall.hasScrolled = true;
  wall.draw();
  const pieces = seen();
  wall.isDirty = true;
  wall.draw();
  const whole = seen();
  const differing = whole.reduce((count, value, at) => count + (value !== pieces[at]), 0);
  if (differing) wrong.push([way, wall.section.scrollTop, differing]);
}
[wall.selected, wall.isDirty, wall.section.scrollTop] = [selected, true, begin];
return wrong;
"""


def check_pieces(page):
    wrong = run(page, PIECES)
    assert not wrong, wrong


def measure(page):
    tiles = run(page, "return threadbare.wall.streams.length")
    for what, script in [("while values come", ""), ("while it scrolls", "wall.section.scrollTop = (now - begun) / 2 % height;")]:
        frames, longest, told, drawn, took = page.execute_async_script(MEASURE % (script, SECONDS))
        print(f"page: {tiles} tiles {what}: {frames:.0f} frames/s, the longest {longest:.0f} ms; values {told:.1f} times/s; drawn {drawn:.0f} times/s in {took:.1f} ms")
