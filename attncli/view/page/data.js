// The numbers of the page: maps of weights, cut into tiles, each packed on its own.

const DATA = JSON.parse(document.getElementById("data").textContent);
const SIDE = DATA.side;              // queries and keys of a tile, at most
const HIDDEN = -1;                   // a weight in a decoded tile where the key is hidden
const tiles = new Map();             // unpacked tiles, the last used ones last
const waiting = new Map();           // tiles that are being unpacked
const KEPT = 64;

async function unpack(id) {
  const text = document.getElementById(id).textContent;
  const packed = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// The weights of a tile: exact, or shares of the row's largest as squares of roots in few bits.
function weightsOf(bytes, reasons, ends, count, columns) {
  const found = new Float32Array(count);
  if (DATA.exact) found.set(new Float32Array(bytes.buffer, 0, count));
  else for (let i = 0; i < count; i++) found[i] = ends[Math.floor(i / columns)] * (bytes[i] / DATA.steps) ** 2;
  if (reasons) for (let i = 0; i < count; i++) if (reasons[i]) found[i] = HIDDEN;
  return found;
}

function tileShape(map, row, column) {
  return [Math.min(SIDE, map.queries - row * SIDE), Math.min(SIDE, map.keys - column * SIDE)];
}

// A tile if it is unpacked; otherwise null, and `ready` is called when it is.
function tile(map, row, column, ready) {
  const name = `${map.name}-${row}-${column}`;
  const known = tiles.get(name);
  if (known) {
    tiles.delete(name);
    tiles.set(name, known);
    return known;
  }
  if (!waiting.has(name)) waiting.set(name, loadTile(map, row, column, name));
  if (ready) waiting.get(name).then(ready);
  return null;
}

async function loadTile(map, row, column, name) {
  const [rows, columns] = tileShape(map, row, column);
  const reasonsId = `r-${map.reasons}-${row}-${column}`;
  const [bytes, reasons, ends] = await Promise.all([
    unpack(`w-${name}`),
    document.getElementById(reasonsId) ? unpack(reasonsId) : null,
    DATA.exact ? null : unpack(`m-${map.name}`).then((found) => new Float32Array(found.buffer).subarray(row * SIDE)),
  ]);
  const made = { rows, columns, reasons, pictures: new Map(),
    weights: weightsOf(bytes, reasons, ends, rows * columns, columns) };
  tiles.set(name, made);
  waiting.delete(name);
  while (tiles.size > KEPT) tiles.delete(tiles.keys().next().value);
  return made;
}

async function tileNow(map, row, column) {
  const name = `${map.name}-${row}-${column}`;
  return tiles.get(name) || tile(map, row, column) || waiting.get(name);
}

// All weights of one query, hidden keys as HIDDEN, and the codes of the reasons.
async function rowOf(map, query) {
  const weights = new Float32Array(map.keys), reasons = new Uint8Array(map.keys);
  const row = Math.floor(query / SIDE);
  for (let column = 0; column * SIDE < map.keys; column++) {
    const part = await tileNow(map, row, column);
    const start = (query - row * SIDE) * part.columns;
    weights.set(part.weights.subarray(start, start + part.columns), column * SIDE);
    if (part.reasons) reasons.set(part.reasons.subarray(start, start + part.columns), column * SIDE);
  }
  return { weights, reasons };
}

function mapOf(state) {
  return DATA.maps.find((map) => map.layer === state.layer && map.batch === state.batch &&
    map.head === state.head) || DATA.maps[0];
}

// Where a map belongs, as far as there are others.
function placeOf(map) {
  const parts = ["layer", "batch", "head"].filter((name) => DATA.maps.some((other) => other[name] !== map[name]));
  return (parts.length ? parts : ["head"]).map((name) => `${name} ${map[name]}`).join(", ");
}

// ln weight + lse is the score: so the page need not hold both.
function scoreOf(map, query, weight) {
  if (weight <= 0 || !map.lse) return null;
  const score = Math.log(weight) + map.lse[query];
  return Number.isFinite(score) ? score : null;
}

// A token with its number; the number alone where it has no name.
function numbered(side, index) {
  const name = nameOf(side, index);
  return name === String(index) ? name : `${index} “${name}”`;
}

function nameOf(side, index) {
  const names = DATA.labels[mapOf(state)[side]];
  return names && names[index] !== undefined && names[index] !== "" ? names[index] : String(index);
}

// Every sentence whose bit is set.
function whyHidden(bits) {
  return DATA.reasons.filter((_, bit) => (bits >> bit) & 1).join("; ");
}

function shown(number, digits = 4) {
  if (number === null || number === undefined) return "";
  if (number !== 0 && Math.abs(number) < 10 ** -digits) return number.toExponential(2);
  return number.toFixed(digits);
}
