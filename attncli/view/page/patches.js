// One row of weights over an image, or over an empty grid of its patches.

const patches = document.getElementById("patches");
const image = new Image();
if (DATA.patches && DATA.patches.image) {
  image.src = DATA.patches.image;
  image.addEventListener("load", drawPatches);
}

async function drawPatches() {
  if (!DATA.patches || state.view !== "patches") return;
  const [rows, columns] = DATA.patches.grid, map = mapOf(state);
  const { weights } = await rowOf(map, state.query);
  const used = weights.subarray(weights.length - rows * columns);
  const strongest = Math.max(...used, 1e-12), context = patches.getContext("2d");
  patches.height = image.naturalWidth ? Math.round(560 * image.naturalHeight / image.naturalWidth) : Math.round(560 * rows / columns);
  context.clearRect(0, 0, patches.width, patches.height);
  if (image.naturalWidth) context.drawImage(image, 0, 0, patches.width, patches.height);
  const overlay = document.createElement("canvas");
  overlay.width = columns;
  overlay.height = rows;
  const inner = overlay.getContext("2d"), pixels = inner.createImageData(columns, rows), table = ramp("inferno");
  for (let i = 0; i < used.length; i++) {
    const share = Math.max(0, used[i]) / strongest, at = 3 * Math.round(255 * share);
    pixels.data.set([table[at], table[at + 1], table[at + 2], image.naturalWidth ? 60 + 160 * share : 255], 4 * i);
  }
  inner.putImageData(pixels, 0, 0);
  context.imageSmoothingEnabled = document.getElementById("smooth").checked;
  context.drawImage(overlay, 0, 0, patches.width, patches.height);
}

document.getElementById("smooth").addEventListener("change", drawPatches);
listeners.push(drawPatches);
