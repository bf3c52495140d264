// The matrix: queries down, keys across, drawn from the tiles that are in sight.

const scroller = document.getElementById("scroller"), sheet = document.getElementById("sheet");
const matrix = document.getElementById("matrix");
let awaited = false;

// Pixels of a cell, the room of the labels, and their letters.
function geometry() {
  const map = mapOf(state), aside = innerWidth > 800 ? 480 : 150;
  const across = (Math.min(innerWidth, 1400) - aside) / map.keys, down = (innerHeight * 0.76 - 100) / map.queries;
  const fit = Math.floor(Math.max(across < 9 ? 0 : 9, Math.min(40, across, down)));
  const cell = Math.max(1, Math.min(64, Math.round(Math.max(fit, 2) * 2 ** state.zoom)));
  const labelled = cell >= 9;
  return { map, cell, labelled, left: labelled ? 110 : 38, top: labelled ? 90 : 18,
    font: `${Math.min(13, Math.max(9, cell - 2))}px system-ui, sans-serif` };
}

function layOut() {
  const { map, cell, left, top } = geometry();
  sheet.style.width = `${left + cell * map.keys + 2}px`;
  sheet.style.height = `${top + cell * map.queries + 2}px`;
  drawSoon();
}

function drawSoon() {
  if (awaited) return;
  awaited = true;
  requestAnimationFrame(() => { awaited = false; drawMatrix(); });
}

function drawMatrix() {
  if (state.view !== "matrix") return;
  const ratio = devicePixelRatio || 1, g = geometry();
  const width = Math.min(scroller.clientWidth, parseInt(sheet.style.width, 10));
  const height = Math.min(Math.round(innerHeight * 0.76), parseInt(sheet.style.height, 10));
  matrix.width = width * ratio;
  matrix.height = height * ratio;
  matrix.style.width = `${width}px`;
  matrix.style.height = `${height}px`;
  const context = matrix.getContext("2d");
  context.scale(ratio, ratio);
  context.imageSmoothingEnabled = g.cell < 1;
  const view = { context, width, height, x: scroller.scrollLeft, y: scroller.scrollTop, ...g };
  context.save();
  context.beginPath();
  context.rect(g.left, g.top, width - g.left, height - g.top);
  context.clip();
  drawTiles(view);
  drawChosen(view);
  context.restore();
  drawLabels(view);
}

function drawTiles(view) {
  const { map, cell, left, top, x, y, width, height, context } = view, step = SIDE * cell;
  for (let row = Math.floor(y / step); row * step < y + height && row * SIDE < map.queries; row++) {
    for (let column = Math.floor(x / step); column * step < x + width && column * SIDE < map.keys; column++) {
      const part = tile(map, row, column, drawSoon);
      const at = [left + column * step - x, top + row * step - y];
      const [rows, columns] = tileShape(map, row, column);
      if (part) {
        context.drawImage(picture(part, state), ...at, columns * cell, rows * cell);
        if (cell >= 6) drawHidden(view, part, at);
      } else {
        context.fillStyle = cssColour("--panel");
        context.fillRect(...at, columns * cell, rows * cell);
      }
    }
  }
}

function drawHidden({ context, cell, width, height }, part, [left, top]) {
  context.fillStyle = hatch(context);
  const from = [Math.max(0, Math.floor(-top / cell)), Math.max(0, Math.floor(-left / cell))];
  for (let i = from[0]; i < part.rows && top + i * cell < height; i++) {
    for (let j = from[1]; j < part.columns && left + j * cell < width; j++) {
      if (part.weights[i * part.columns + j] === HIDDEN) context.fillRect(left + j * cell, top + i * cell, cell, cell);
    }
  }
}

function drawChosen({ context, map, cell, left, top, x, y }) {
  const ink = cssColour("--focus");
  context.strokeStyle = ink;
  context.lineWidth = 2;
  context.strokeRect(left - x, top + state.query * cell - y, map.keys * cell, cell);
  context.strokeRect(left + state.key * cell - x, top + state.query * cell - y, cell, cell);
}

function drawLabels({ context, map, cell, labelled, left, top, font, x, y, width, height }) {
  context.fillStyle = cssColour("--paper");
  context.fillRect(0, 0, width, top);
  context.fillRect(0, 0, left, height);
  context.fillStyle = cssColour("--ink");
  context.font = labelled ? font : "10px system-ui, sans-serif";
  const every = labelled ? 1 : Math.ceil(40 / cell);
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (let i = first(y + (labelled ? 0 : 6), cell, every); i < map.queries && i * cell - y < height - top; i += every) {
    const text = labelled ? nameOf("queryLabels", i) : String(i);
    context.fillText(cut(context, text, left - 8), left - 4, top + (i + 0.5) * cell - y);
  }
  for (let j = first(x + (labelled ? 0 : 14), cell, every); j < map.keys && j * cell - x < width - left; j += every) {
    const text = labelled ? nameOf("keyLabels", j) : String(j);
    context.save();
    context.translate(left + (j + 0.5) * cell - x, top - 4);
    if (labelled) context.rotate(-Math.PI / 2);
    context.textAlign = labelled ? "left" : "center";
    context.textBaseline = labelled ? "middle" : "bottom";
    context.fillText(cut(context, text, labelled ? top - 8 : 60), 0, 0);
    context.restore();
  }
  context.fillStyle = cssColour("--paper");
  context.fillRect(0, 0, left, top);
}

function first(scrolled, cell, every) {
  return Math.ceil(Math.max(0, scrolled / cell - 0.5) / every) * every;
}

function cut(context, text, room) {
  if (context.measureText(text).width <= room) return text;
  let letters = [...text];
  while (letters.length > 1 && context.measureText(`${letters.join("")}…`).width > room) letters.pop();
  return `${letters.join("")}…`;
}

function cellAt(event) {
  const { map, cell, left, top } = geometry(), box = matrix.getBoundingClientRect();
  const key = Math.floor((event.clientX - box.left - left + scroller.scrollLeft) / cell);
  const query = Math.floor((event.clientY - box.top - top + scroller.scrollTop) / cell);
  const inside = event.clientX - box.left >= left && event.clientY - box.top >= top;
  return inside && query >= 0 && key >= 0 && query < map.queries && key < map.keys ? { query, key } : null;
}

function keepInSight() {
  const { cell, left, top } = geometry();
  const keep = (start, room, at) => at < start ? at : at + cell > start + room ? at + cell - room : start;
  scroller.scrollLeft = keep(scroller.scrollLeft, scroller.clientWidth - left, state.key * cell);
  scroller.scrollTop = keep(scroller.scrollTop, scroller.clientHeight - top, state.query * cell);
}

const MOVES = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1],
  PageUp: [-16, 0], PageDown: [16, 0], Home: [0, -1e9], End: [0, 1e9] };

scroller.addEventListener("keydown", (event) => {
  const move = MOVES[event.key];
  if (move) change({ query: state.query + move[0], key: state.key + move[1] });
  else if (event.key === "+" || event.key === "=") change({ zoom: state.zoom + 1 });
  else if (event.key === "-") change({ zoom: state.zoom - 1 });
  else if (event.key === "Enter") showRow();
  else return;
  event.preventDefault();
  keepInSight();
});
scroller.addEventListener("scroll", drawSoon, { passive: true });
matrix.addEventListener("mousemove", (event) => { const at = cellAt(event); if (at) tell(at.query, at.key); });
matrix.addEventListener("click", (event) => { const at = cellAt(event); if (at) change(at); });
addEventListener("resize", layOut);
listeners.push((changed) => {
  if (["view", "layer", "head", "batch", "zoom"].some((name) => changed.has(name))) layOut();
  else drawSoon();
});
