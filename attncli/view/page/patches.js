// One row of weights over an image, or over an empty grid of its patches.

const patches = document.getElementById("patches"), smooth = document.getElementById("smooth");
const WIDTH = 560;                   // pixels of the picture
const image = new Image();
let painted = 0;

async function drawPatches() {
  if (state.view !== "patches") return;
  const ticket = ++painted, { grid: [rows, columns], first } = DATA.patches;
  const row = (await rowOf(mapOf(state), state.query)).weights, weights = row.subarray(first);
  if (ticket !== painted || state.view !== "patches") return;
  const shape = image.naturalWidth ? image.naturalHeight / image.naturalWidth : rows / columns;
  const height = Math.round(WIDTH * shape), context = sized(patches, WIDTH, height);
  const strongest = Math.max(...weights, 1e-12), overlay = document.createElement("canvas");
  if (image.naturalWidth) context.drawImage(image, 0, 0, WIDTH, height);
  Object.assign(overlay, { width: columns, height: rows });
  const inner = overlay.getContext("2d"), pixels = inner.createImageData(columns, rows);
  weights.forEach((weight, i) => {
    const share = Math.max(0, weight) / strongest;
    pixels.data.set([...colourAt(SCALES.inferno, share), image.naturalWidth ? 51 + 166 * share : 255], 4 * i);
  });
  inner.putImageData(pixels, 0, 0);
  context.imageSmoothingEnabled = smooth.checked;
  context.drawImage(overlay, 0, 0, WIDTH, height);
  const own = state.query - first, [wide, high] = [WIDTH / columns, height / rows];
  context.strokeStyle = "#fff";
  context.lineWidth = 2;
  if (own >= 0) context.strokeRect((own % columns) * wide, Math.floor(own / columns) * high, wide, high);
  drawLegend(SCALES.inferno, `weight 0 to ${shown(strongest)}, the largest of a patch` +
    (first ? `; key 0, the class token, is left out: ${shown(row[0])}` : ""));
}

function patchAt(event) {
  const { grid: [rows, columns], first } = DATA.patches, box = patches.getBoundingClientRect();
  const [down, across] = [rows * (event.clientY - box.top) / box.height, columns * (event.clientX - box.left) / box.width];
  const within = (number, count) => Math.max(0, Math.min(Math.floor(number), count - 1));
  return first + within(down, rows) * columns + within(across, columns);
}

if (DATA.patches) {
  image.addEventListener("load", drawPatches);
  if (DATA.patches.image) image.src = DATA.patches.image;
  smooth.checked = DATA.patches.smooth;
  smooth.addEventListener("change", drawPatches);
  patches.addEventListener("mousemove", (event) => tell(state.query, patchAt(event)));
  patches.addEventListener("click", (event) => change({ query: patchAt(event) }));
  listeners.push(drawPatches);
}
