// All heads: a thumbnail each, which opens on click.

const grid = document.getElementById("grid");
let gridDrawn = "";

function sortedMaps() {
  const here = DATA.maps.filter((map) => map.batch === state.batch);
  if (state.sort === "order") return here;
  const number = (map) => map.stats && map.stats[state.sort] !== null ? map.stats[state.sort] : -Infinity;
  return [...here].sort((a, b) => number(b) - number(a));
}

async function layOutGrid() {
  if (state.view !== "grid") return;
  const key = [state.batch, state.sort, state.colours, state.log, DARK.matches].join(" ");
  if (key === gridDrawn) return;
  gridDrawn = key;
  const buttons = sortedMaps().map(thumbnail);
  // In their order, each layer is a row.
  const here = DATA.maps.filter((map) => map.batch === state.batch), heads = new Set(here.map((map) => map.head)).size;
  const rows = state.sort === "order" && heads > 1 && here.length > heads;
  grid.style.gridTemplateColumns = rows ? `repeat(${heads}, minmax(3.8rem, 1fr))` : "";
  grid.replaceChildren(...buttons);
}

function thumbnail(map) {
  const button = document.createElement("button"), text = document.createElement("span");
  button.type = "button";
  const number = map.stats && map.stats[state.sort];
  const name = placeOf(map);
  text.textContent = state.sort === "order" || number === undefined || number === null
    ? name : `${name}: ${shown(number, 2)}`;
  const canvas = document.createElement("canvas");
  canvas.setAttribute("aria-hidden", "true");
  button.append(canvas, text);
  button.addEventListener("click", () => change({ layer: map.layer, head: map.head, view: "matrix" }));
  unpack(`t-${map.name}`).then((bytes) => {
    const [rows, columns] = map.thumbnail, weights = new Float32Array(rows * columns);
    // 255 marks what is hidden; other bytes are roots, as in a tile.
    for (let i = 0; i < weights.length; i++) weights[i] = bytes[i] === 255 ? HIDDEN : DATA.top * (bytes[i] / 254) ** 2;
    const painted = paint(weights, rows, columns, state);
    canvas.width = columns;
    canvas.height = rows;
    canvas.getContext("2d").drawImage(painted, 0, 0);
  });
  return button;
}

listeners.push(layOutGrid);
