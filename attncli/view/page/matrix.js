// The matrix: queries down, keys across, drawn from the bands that are in sight.

const scroller = document.getElementById("scroller"), sheet = document.getElementById("sheet");
const matrix = document.getElementById("matrix");
let awaited = false;

// Pixels of a cell, the room of the labels, and their letters.
function geometry() {
  const map = mapOf(state), aside = innerWidth > 800 ? 480 : 150;
  const across = (Math.min(innerWidth, 1400) - aside) / map.keys, down = (innerHeight * 0.76 - 100) / map.queries;
  const fit = Math.floor(Math.max(across < 9 ? 0 : 9, Math.min(40, across, down)));
  const cell = Math.max(1, Math.min(64, Math.round(Math.max(fit, 2) * 2 ** state.zoom)));
  const labelled = cell >= 9, [left, top] = labelled ? [110, 90] : [38, 18];
  return { map, cell, labelled, left, top, wide: left + cell * map.keys + 2, high: top + cell * map.queries + 2 };
}

function layOut() {
  const { wide, high } = geometry();
  Object.assign(sheet.style, { width: `${wide}px`, height: `${high}px` });
  drawSoon();
}

function drawSoon() {
  if (awaited) return;
  awaited = true;
  requestAnimationFrame(() => { awaited = false; drawMatrix(); });
}

// Give a canvas so many pixels of the screen, and return what draws on it.
function sized(canvas, width, height) {
  const ratio = devicePixelRatio || 1, context = canvas.getContext("2d");
  Object.assign(canvas, { width: width * ratio, height: height * ratio });
  Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
  context.scale(ratio, ratio);
  return context;
}

function drawMatrix() {
  if (state.view !== "matrix") return;
  const g = geometry();
  const width = Math.min(scroller.clientWidth, g.wide), height = Math.min(Math.round(innerHeight * 0.76), g.high);
  const context = sized(matrix, width, height);
  const view = { ...g, context, width, height, x: scroller.scrollLeft, y: scroller.scrollTop };
  context.save();
  context.beginPath();
  context.rect(g.left, g.top, width - g.left, height - g.top);
  context.clip();
  drawCells(view);
  drawChosen(view);
  context.restore();
  drawLabels(view);
}

function drawCells({ map, cell, left, top, x, y, width, height, context }) {
  const last = Math.min(map.queries, Math.ceil((y + height) / cell)), striped = hatch(context);
  const column = Math.floor(x / cell), columns = Math.min(map.keys - column, Math.ceil(width / cell) + 1);
  context.imageSmoothingEnabled = false;
  for (let at = Math.floor(y / cell / map.band) * map.band; at < last; at += map.band) {
    const { band, loading } = bandOf(map, at), rows = Math.min(map.band, map.queries - at);
    const area = [left + column * cell - x, top + at * cell - y, columns * cell, rows * cell];
    context.fillStyle = band ? striped : cssColour("--panel");
    context.fillRect(...area);
    if (band) context.drawImage(picture(band), column, 0, columns, rows, ...area);
    else loading.then(drawSoon);
  }
}

function drawChosen({ context, map, cell, left, top, x, y }) {
  context.strokeStyle = cssColour("--focus");
  context.lineWidth = 2;
  context.strokeRect(left - x, top + state.query * cell - y, map.keys * cell, cell);
  context.strokeRect(left + state.key * cell - x, top + state.query * cell - y, cell, cell);
}

function drawLabels({ context, map, cell, labelled, left, top, x, y, width, height }) {
  context.fillStyle = cssColour("--paper");
  context.fillRect(0, 0, width, top);
  context.fillRect(0, 0, left, height);
  context.fillStyle = cssColour("--ink");
  context.font = `${labelled ? Math.min(13, cell - 2) : 10}px system-ui, sans-serif`;
  context.textBaseline = "middle";
  context.textAlign = "right";
  for (const [i, at] of inSight(y, height - top, cell, labelled, map.queries)) {
    context.fillText(cut(context, labelled ? nameOf("queryLabels", i) : String(i), left - 8), left - 4, top + at);
  }
  context.textAlign = labelled ? "left" : "center";
  for (const [j, at] of inSight(x, width - left, cell, labelled, map.keys)) {
    context.save();
    context.translate(left + at, top - (labelled ? 4 : 9));
    if (labelled) context.rotate(-Math.PI / 2);
    context.fillText(cut(context, labelled ? nameOf("keyLabels", j) : String(j), labelled ? top - 8 : 60), 0, 0);
    context.restore();
  }
}

// The indices that are named, and the middles of their cells in pixels of the room.
function inSight(scrolled, room, cell, labelled, count) {
  const every = labelled ? 1 : Math.ceil(40 / cell), found = [];
  for (let i = Math.ceil((scrolled / cell - 0.5) / every) * every; i < count && i * cell < scrolled + room; i += every) {
    found.push([i, (i + 0.5) * cell - scrolled]);
  }
  return found;
}

function cut(context, text, room) {
  if (context.measureText(text).width <= room) return text;
  const letters = [...text];
  while (letters.length > 1 && context.measureText(`${letters.join("")}…`).width > room) letters.pop();
  return `${letters.join("")}…`;
}

function cellAt(event) {
  const { map, cell, left, top } = geometry(), box = matrix.getBoundingClientRect();
  const across = event.clientX - box.left - left, down = event.clientY - box.top - top;
  const key = Math.floor((across + scroller.scrollLeft) / cell), query = Math.floor((down + scroller.scrollTop) / cell);
  return across >= 0 && down >= 0 && query < map.queries && key < map.keys ? { query, key } : null;
}

function keepInSight() {
  const { cell, left, top } = geometry();
  const keep = (start, room, at) => Math.min(at, Math.max(start, at + cell - room));
  scroller.scrollLeft = keep(scroller.scrollLeft, scroller.clientWidth - left, state.key * cell);
  scroller.scrollTop = keep(scroller.scrollTop, scroller.clientHeight - top, state.query * cell);
}

const MOVES = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1],
  PageUp: [-16, 0], PageDown: [16, 0], Home: [0, -1e9], End: [0, 1e9] };
const ZOOMS = { "+": 1, "=": 1, "-": -1 };

scroller.addEventListener("keydown", (event) => {
  const move = MOVES[event.key], zoom = ZOOMS[event.key];
  if (move) change({ query: state.query + move[0], key: state.key + move[1] });
  else if (zoom) change({ zoom: state.zoom + zoom });
  else return;
  event.preventDefault();
  keepInSight();
});
scroller.addEventListener("scroll", drawSoon, { passive: true });
matrix.addEventListener("mousemove", (event) => { const at = cellAt(event); if (at) tell(at.query, at.key); });
matrix.addEventListener("click", (event) => { const at = cellAt(event); if (at) change(at); });
addEventListener("resize", layOut);
addEventListener("beforeprint", drawMatrix);
listeners.push(layOut);
