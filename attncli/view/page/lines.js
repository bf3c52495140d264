// Token lines: queries on the left, keys on the right, a line for each weight.

const WINDOW = 96;                   // tokens on each side; more become a window around the query
const leftList = document.getElementById("left"), rightList = document.getElementById("right");
const lines = document.getElementById("lines");
let focused = null;                  // { side, index } under the pointer, or null
let drawn = 0;

// The first query and key that are listed, and those behind the last ones.
function windows(map) {
  return [[map.queries, state.query], [map.keys, Math.round(state.query * map.keys / map.queries)]].map(([count, around]) => {
    const start = Math.max(0, Math.min(around - WINDOW / 2, count - WINDOW));
    return [start, Math.min(count, start + WINDOW)];
  });
}

function button(text, pressed, click, point) {
  const made = document.createElement("button");
  Object.assign(made, { type: "button", textContent: text });
  if (pressed !== null) made.setAttribute("aria-pressed", String(pressed));
  made.addEventListener("click", click);
  for (const name of ["mouseenter", "focus"]) made.addEventListener(name, () => point(true));
  for (const name of ["mouseleave", "blur"]) made.addEventListener(name, () => point(false));
  return made;
}

function listTokens(list, side, [start, stop]) {
  const name = side === "queryLabels" ? "query" : "key";
  const items = Array.from({ length: stop - start }, (_, i) => {
    const index = start + i, item = document.createElement("li");
    const point = (on) => { focused = on ? { side, index } : null; drawLines(); };
    const pressed = name === "query" ? index === state.query : null;
    item.append(button(nameOf(side, index), pressed, () => change({ [name]: index }), point));
    return item;
  });
  const kept = list.contains(document.activeElement) && focused ? items[focused.index - start] : null;
  list.replaceChildren(...items);
  if (kept) kept.firstChild.focus();
}

function layOutLines() {
  if (state.view !== "lines") return;
  const [from, to] = windows(mapOf(state));
  listTokens(leftList, "queryLabels", from);
  listTokens(rightList, "keyLabels", to);
  const heads = DATA.maps.filter((map) => map.layer === state.layer && map.batch === state.batch).map((map) =>
    button(`head ${map.head}`, map.head === state.head, () => change({ head: map.head }),
      (on) => drawLines(on ? map : undefined)));
  document.getElementById("heads").replaceChildren(...(heads.length > 1 ? heads : []));
  drawLines();
}

async function drawLines(map = mapOf(state)) {
  const ticket = ++drawn, [from, to] = windows(map), rows = [];
  for (let query = from[0]; query < from[1]; query++) rows.push([query, (await rowOf(map, query)).weights]);
  if (ticket !== drawn) return;
  const step = leftList.firstChild.offsetHeight, width = lines.parentElement.clientWidth - leftList.offsetWidth - rightList.offsetWidth;
  const context = sized(lines, width, Math.max(leftList.offsetHeight, rightList.offsetHeight));
  context.strokeStyle = cssColour("--accent");
  for (const [query, weights] of rows) {
    for (let key = to[0]; key < to[1]; key++) {
      if (weights[key] < 0.004 || !isLit(query, key)) continue;
      context.globalAlpha = Math.max(0.04, place(weights[key]));
      context.lineWidth = 0.5 + 3 * place(weights[key]);
      context.beginPath();
      context.moveTo(0, (query - from[0] + 0.5) * step);
      context.lineTo(width, (key - to[0] + 0.5) * step);
      context.stroke();
    }
  }
  const row = focused && focused.side === "queryLabels" && rows.find(([query]) => query === focused.index);
  [...rightList.children].forEach((item, i) => item.classList.toggle("strong", Boolean(row) && row[1][to[0] + i] >= 0.1));
}

function isLit(query, key) {
  return !focused || focused.index === (focused.side === "queryLabels" ? query : key);
}

listeners.push((changed) => { if (!changed.has("key") || changed.size > 1) layOutLines(); });
