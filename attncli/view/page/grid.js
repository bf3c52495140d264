// All heads: a thumbnail each, which opens on click.

const grid = document.getElementById("grid");
let gridDrawn = "";

function layOutGrid() {
  const look = [state.batch, state.sort, state.colours, state.log, DARK.matches].join(" ");
  if (state.view !== "grid" || look === gridDrawn) return;
  gridDrawn = look;
  const here = DATA.maps.filter((map) => map.batch === state.batch), heads = new Set(here.map((map) => map.head)).size;
  const ordered = state.sort === "order", number = (map) => map.stats[state.sort] ?? -Infinity;
  if (!ordered) here.sort((a, b) => number(b) - number(a));
  // In their order, each layer is a row.
  const rows = ordered && heads > 1 && here.length > heads;
  grid.style.gridTemplateColumns = rows ? `repeat(${heads}, minmax(3.8rem, 1fr))` : "";
  grid.replaceChildren(...here.map(thumbnail));
}

function thumbnail(map) {
  const text = document.createElement("span"), canvas = document.createElement("canvas");
  const number = map.stats[state.sort] ?? null;
  text.textContent = number === null ? placeOf(map) : `${placeOf(map)}: ${shown(number, 2)}`;
  canvas.setAttribute("aria-hidden", "true");
  const made = button("", null, () => change({ layer: map.layer, head: map.head, view: "matrix" }), () => {});
  made.append(canvas, text);
  unpack(`t-${map.name}`).then((bytes) => {
    const [rows, columns] = map.thumbnail;
    // 255 marks what is hidden; other bytes are roots.
    const weights = Float32Array.from(bytes, (code) => code === 255 ? HIDDEN : DATA.top * (code / 254) ** 2);
    Object.assign(canvas, { width: columns, height: rows });
    canvas.getContext("2d").drawImage(paint({ weights, rows, columns }), 0, 0);
  });
  return made;
}

listeners.push(layOutGrid);
