// The numbers of the page: maps of weights, cut into bands of queries, each packed on its own.

const DATA = JSON.parse(document.getElementById("data").textContent);
const HIDDEN = -1;                   // a weight in an unpacked band where the key is hidden
const KEPT = 64;                     // unpacked bands that are kept, the last used ones last
const bands = new Map();

async function unpack(id) {
  const letters = atob(document.getElementById(id).textContent), packed = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) packed[i] = letters.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// The band that holds a query: `loading` is a promise of it, `band` is there when it is unpacked.
function bandOf(map, query) {
  const number = Math.floor(query / map.band), name = `${map.name}-${number}`;
  const found = bands.get(name) || {};
  found.loading ||= load(map, number).then((band) => { found.band = band; return band; });
  bands.delete(name);
  bands.set(name, found);
  if (bands.size > KEPT) bands.delete(bands.keys().next().value);
  return found;
}

async function load(map, number) {
  const first = number * map.band, rows = Math.min(map.band, map.queries - first);
  const [bytes, reasons] = await Promise.all([unpack(`w-${map.name}-${number}`),
    map.reasons === null ? null : unpack(`r-${map.reasons}-${number}`)]);
  const weights = DATA.exact ? new Float32Array(bytes.buffer) : rounded(bytes, rows, map.keys);
  if (reasons) reasons.forEach((bits, i) => { if (bits) weights[i] = HIDDEN; });
  return { first, rows, columns: map.keys, weights, reasons };
}

// The largest weights of the queries come first; then roots of the shares of them, as whole numbers.
function rounded(bytes, rows, keys) {
  const largest = new Float32Array(bytes.buffer, 0, rows), codes = bytes.subarray(4 * rows);
  const weights = new Float32Array(codes.length);
  for (let row = 0, i = 0; row < rows; row++) {
    const unit = largest[row] / DATA.steps ** 2;
    for (const end = i + keys; i < end; i++) weights[i] = unit * codes[i] * codes[i];
  }
  return weights;
}

// All weights of one query, hidden keys as HIDDEN, and the bits of the reasons.
async function rowOf(map, query) {
  const band = await bandOf(map, query).loading, start = (query - band.first) * map.keys;
  const cut = (array) => array && array.subarray(start, start + map.keys);
  return { weights: cut(band.weights), reasons: cut(band.reasons) };
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
  if (weight <= 0 || !map.lse || map.lse[query] === null) return null;
  return Math.log(weight) + map.lse[query];
}

function nameOf(side, index) {
  const names = DATA.labels[mapOf(state)[side]];
  return (names && names[index]) || String(index);
}

// A token with its number; the number alone where it has no name.
function numbered(side, index) {
  const name = nameOf(side, index);
  return name === String(index) ? name : `${index} “${name}”`;
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
