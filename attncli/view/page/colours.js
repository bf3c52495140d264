// Colour scales, and the picture of some cells in one of them.

const SCALES = {
  blues: [[247, 251, 255], [198, 219, 239], [107, 174, 214], [33, 113, 181], [8, 48, 107]],
  viridis: [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]],
  greys: [[250, 250, 250], [189, 189, 189], [115, 115, 115], [60, 60, 60], [0, 0, 0]],
  inferno: [[0, 0, 4], [87, 16, 110], [188, 55, 84], [249, 142, 9], [252, 255, 164]],
};
const DARK = matchMedia("(prefers-color-scheme: dark)");
const FLOOR = 1e-4;                  // the lowest weight of the logarithmic scale

// The colours of a scale from its low to its high end.
function stopsOf(name) {
  return DARK.matches && name === "blues" ? [...SCALES.blues].reverse() : SCALES[name];
}

function colourAt(stops, share) {
  const at = share * (stops.length - 1), low = Math.min(Math.floor(at), stops.length - 2);
  return stops[low].map((value, c) => Math.round(value + (at - low) * (stops[low + 1][c] - value)));
}

// Where a weight stands on the scale, from 0 to 1.
function place(weight) {
  if (!state.log) return Math.min(1, weight / DATA.top);
  return weight <= FLOOR ? 0 : Math.min(1, 1 - Math.log(weight / DATA.top) / Math.log(FLOOR / DATA.top));
}

function cssColour(variable) {
  return getComputedStyle(document.documentElement).getPropertyValue(variable).trim();
}

// A canvas with one pixel a cell, where hidden ones are clear; kept as long as the scale stays.
function picture(part) {
  const look = `${state.colours} ${state.log} ${DARK.matches}`;
  if (part.look !== look) Object.assign(part, { look, canvas: paint(part) });
  return part.canvas;
}

function paint({ weights, rows, columns }) {
  const canvas = document.createElement("canvas");
  Object.assign(canvas, { width: columns, height: rows });
  const context = canvas.getContext("2d"), image = context.createImageData(columns, rows);
  // One write for a pixel: browsers run on little-endian processors.
  const pixels = new Uint32Array(image.data.buffer), stops = stopsOf(state.colours);
  const colours = Uint32Array.from({ length: 256 }, (_, i) => {
    const [red, green, blue] = colourAt(stops, i / 255);
    return (255 << 24) | (blue << 16) | (green << 8) | red;
  });
  const unit = 255 / DATA.top, log = state.log;
  for (let i = 0; i < weights.length; i++) {
    const share = log ? 255 * place(weights[i]) : Math.min(255, unit * weights[i]);
    if (weights[i] !== HIDDEN) pixels[i] = colours[Math.round(share)];
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

// Diagonal stripes behind the cells: they are seen where a key is hidden.
function hatch(context) {
  const canvas = document.createElement("canvas"), inner = canvas.getContext("2d");
  canvas.width = canvas.height = 6;
  inner.fillStyle = cssColour("--hidden");
  inner.fillRect(0, 0, 6, 6);
  inner.strokeStyle = cssColour("--stripe");
  inner.beginPath();
  for (const at of [-3, 3, 9]) { inner.moveTo(at - 4, 7); inner.lineTo(at + 4, -1); }
  inner.stroke();
  return context.createPattern(canvas, "repeat");
}

function drawLegend(stops, words) {
  const colours = stops.map((colour) => `rgb(${colour.join(" ")})`).join(", ");
  document.getElementById("ramp").style.background = `linear-gradient(to right, ${colours})`;
  document.getElementById("ramp-text").textContent = words;
}

listeners.push(() => {
  const low = state.log ? `${shown(FLOOR)} and less` : "0";
  const hidden = DATA.maps.some((map) => map.reasons !== null) ? "; striped: hidden" : "";
  drawLegend(stopsOf(state.colours), `weight ${low} to ${shown(DATA.top)} and more${hidden}`);
});
