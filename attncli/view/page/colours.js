// Colour scales, and the picture of a tile in one of them.

const SCALES = {
  blues: [[247, 251, 255], [198, 219, 239], [107, 174, 214], [33, 113, 181], [8, 48, 107]],
  viridis: [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]],
  greys: [[250, 250, 250], [189, 189, 189], [115, 115, 115], [60, 60, 60], [0, 0, 0]],
  inferno: [[0, 0, 4], [87, 16, 110], [188, 55, 84], [249, 142, 9], [252, 255, 164]],
};
const DARK = matchMedia("(prefers-color-scheme: dark)");
const FLOOR = 1e-4;                  // the lowest weight of the logarithmic scale

function ramp(name) {
  const stops = SCALES[name] || SCALES.blues;
  const ordered = DARK.matches && name === "blues" ? [...stops].reverse() : stops;
  const table = new Uint8Array(256 * 3);
  for (let i = 0; i < 256; i++) {
    const at = (i / 255) * (ordered.length - 1), low = Math.min(Math.floor(at), ordered.length - 2);
    for (let c = 0; c < 3; c++) {
      table[3 * i + c] = ordered[low][c] + (at - low) * (ordered[low + 1][c] - ordered[low][c]);
    }
  }
  return table;
}

// Where a weight stands on the scale, from 0 to 1.
function place(weight, log) {
  if (!log) return Math.min(1, weight / DATA.top);
  return weight <= FLOOR ? 0 : Math.min(1, 1 - Math.log(weight / DATA.top) / Math.log(FLOOR / DATA.top));
}

function cssColour(variable) {
  return getComputedStyle(document.documentElement).getPropertyValue(variable).trim();
}

function rgb(hex) {
  const full = hex.length === 4 ? hex.replace(/[^#]/g, "$&$&") : hex;
  return [1, 3, 5].map((at) => parseInt(full.slice(at, at + 2), 16));
}

// A canvas with one pixel a cell; kept with the tile as long as the scale stays.
function picture(part, state) {
  const key = `${state.colours} ${state.log} ${DARK.matches}`;
  if (!part.pictures.has(key)) {
    part.pictures.clear();
    part.pictures.set(key, paint(part.weights, part.rows, part.columns, state));
  }
  return part.pictures.get(key);
}

function paint(weights, rows, columns, state) {
  const canvas = document.createElement("canvas");
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d"), image = context.createImageData(columns, rows);
  // One write for a pixel: browsers run on little-endian processors.
  const pixels = new Uint32Array(image.data.buffer), log = state.log, table = ramp(state.colours);
  const packed = ([red, green, blue]) => ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
  const plain = packed(rgb(cssColour("--hidden")));
  const colours = Uint32Array.from({ length: 256 }, (_, i) => packed(table.subarray(3 * i, 3 * i + 3)));
  for (let i = 0; i < weights.length; i++) {
    pixels[i] = weights[i] === HIDDEN ? plain : colours[Math.round(255 * place(weights[i], log))];
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

// Diagonal stripes for the cells that are hidden, in the colours of the page.
function hatch(context) {
  const canvas = document.createElement("canvas"), inner = canvas.getContext("2d");
  canvas.width = canvas.height = 6;
  inner.strokeStyle = cssColour("--stripe");
  inner.beginPath();
  for (const at of [-3, 3, 9]) { inner.moveTo(at - 4, 7); inner.lineTo(at + 4, -1); }
  inner.stroke();
  return context.createPattern(canvas, "repeat");
}

function drawLegend(state) {
  const context = document.getElementById("ramp").getContext("2d"), table = ramp(state.colours);
  for (let x = 0; x < 160; x++) {
    const at = 3 * Math.round((x / 159) * 255);
    context.fillStyle = `rgb(${table[at]} ${table[at + 1]} ${table[at + 2]})`;
    context.fillRect(x, 0, 1, 10);
  }
  document.getElementById("ramp-text").textContent =
    `weight ${state.log ? shown(FLOOR) + " and less" : "0"} to ${shown(DATA.top)} and more` +
    (DATA.maps.some((map) => map.reasons !== null) ? "; grey or striped: hidden" : "");
}
