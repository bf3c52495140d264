// Token lines: queries on the left, keys on the right, a line for each weight.

const WINDOW = 96;                   // tokens on each side; more become a window around the query
const leftList = document.getElementById("left"), rightList = document.getElementById("right");
const lines = document.getElementById("lines");
let focused = null;                  // { side, index } under the pointer, or null
let drawn = 0;

function windowOf(count, around) {
  const start = Math.max(0, Math.min(around - WINDOW / 2, count - WINDOW));
  return [start, Math.min(count, start + WINDOW)];
}

function listTokens(list, side, [start, stop], mark) {
  const items = [];
  for (let index = start; index < stop; index++) {
    const item = document.createElement("li"), button = document.createElement("button");
    button.textContent = nameOf(side, index);
    button.dataset.index = index;
    button.type = "button";
    if (side === "queryLabels") {
      button.setAttribute("aria-pressed", String(index === mark));
      button.addEventListener("click", () => change({ query: index }));
    } else button.addEventListener("click", () => change({ key: index }));
    const focus = (to) => () => { focused = to; drawLines(); };
    for (const name of ["mouseenter", "focus"]) button.addEventListener(name, focus({ side, index }));
    for (const name of ["mouseleave", "blur"]) button.addEventListener(name, focus(null));
    item.append(button);
    items.push(item);
  }
  list.replaceChildren(...items);
}

function layOutLines() {
  if (state.view !== "lines") return;
  const map = mapOf(state);
  listTokens(leftList, "queryLabels", windowOf(map.queries, state.query), state.query);
  listTokens(rightList, "keyLabels", windowOf(map.keys, Math.round(state.query * map.keys / map.queries)), -1);
  listHeads();
  drawLines();
}

function listHeads() {
  const here = DATA.maps.filter((map) => map.layer === state.layer && map.batch === state.batch);
  const buttons = here.map((map) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = `head ${map.head}`;
    button.setAttribute("aria-pressed", String(map.head === state.head));
    button.addEventListener("click", () => change({ head: map.head }));
    button.addEventListener("mouseenter", () => drawLines(map));
    button.addEventListener("mouseleave", () => drawLines());
    return button;
  });
  document.getElementById("heads").replaceChildren(...(buttons.length > 1 ? buttons : []));
}

async function drawLines(map = mapOf(state)) {
  const ticket = ++drawn;
  const from = windowOf(map.queries, state.query);
  const to = windowOf(map.keys, Math.round(state.query * map.keys / map.queries));
  const rows = [];
  for (let query = from[0]; query < from[1]; query++) rows.push([query, (await rowOf(map, query)).weights]);
  if (ticket !== drawn) return;
  const ratio = devicePixelRatio || 1, height = Math.max(leftList.offsetHeight, rightList.offsetHeight);
  const width = lines.clientWidth, step = leftList.firstChild ? leftList.firstChild.offsetHeight : 24;
  lines.width = width * ratio;
  lines.height = height * ratio;
  lines.style.height = `${height}px`;
  const context = lines.getContext("2d");
  context.scale(ratio, ratio);
  context.strokeStyle = cssColour("--accent");
  for (const [query, weights] of rows) {
    for (let key = to[0]; key < to[1]; key++) {
      const weight = weights[key];
      if (weight === HIDDEN || weight < 0.004 || !isLit(query, key)) continue;
      context.globalAlpha = Math.max(0.04, place(weight, state.log));
      context.lineWidth = 0.5 + 3 * place(weight, state.log);
      context.beginPath();
      context.moveTo(0, (query - from[0] + 0.5) * step);
      context.lineTo(width, (key - to[0] + 0.5) * step);
      context.stroke();
    }
  }
  markStrong(rows, to);
}

function isLit(query, key) {
  if (!focused) return true;
  return focused.side === "queryLabels" ? query === focused.index : key === focused.index;
}

function markStrong(rows, to) {
  const row = rows.find(([query]) => focused && focused.side === "queryLabels" && query === focused.index);
  for (const button of rightList.querySelectorAll("button")) {
    const index = Number(button.dataset.index);
    button.classList.toggle("strong", Boolean(row) && index >= to[0] && row[1][index] >= 0.1);
  }
}

listeners.push((changed) => { if (!changed.has("key") || changed.size > 1) layOutLines(); });
