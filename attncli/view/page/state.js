// What is shown: kept in the link, so that a copy of the link shows the same.

const VIEWS = [["matrix", "Matrix"], ["lines", "Token lines"], ["grid", "All heads"]];
if (DATA.patches) VIEWS.push(["patches", "Patches"]);
const SORTS = [["order", "layer and head"], ["entropy", "entropy"], ["distance", "mean distance"],
  ["first", "weight on the first key"]];
const state = { view: DATA.patches ? "patches" : "matrix", layer: 0, batch: 0, head: 0, query: 0, key: 0,
  colours: "blues", log: false, sort: "order", zoom: 0 };
const listeners = [];

function readLink() {
  const given = new URLSearchParams(location.hash.slice(1));
  for (const name of Object.keys(state)) {
    if (!given.has(name)) continue;
    const text = given.get(name), old = state[name];
    if (typeof old === "number") state[name] = Number.parseInt(text, 10) || 0;
    else state[name] = typeof old === "boolean" ? text === "1" : text;
  }
  tidy();
}

function tidy() {
  if (!VIEWS.some(([name]) => name === state.view)) state.view = "matrix";
  if (!Object.hasOwn(SCALES, state.colours)) state.colours = "blues";
  if (!SORTS.some(([name]) => name === state.sort)) state.sort = "order";
  const map = mapOf(state);
  Object.assign(state, { layer: map.layer, batch: map.batch, head: map.head });
  state.query = Math.max(0, Math.min(state.query, map.queries - 1));
  state.key = Math.max(0, Math.min(state.key, map.keys - 1));
  state.zoom = Math.max(-4, Math.min(state.zoom, 5));
}

function writeLink() {
  const link = new URLSearchParams();
  for (const [name, value] of Object.entries(state)) {
    if (typeof value === "boolean") { if (value) link.set(name, "1"); } else link.set(name, value);
  }
  // The frame of a notebook has no address to change.
  try { history.replaceState(null, "", `#${link}`); } catch { /* the state is not kept there */ }
}

// Change what is shown; `changed` holds the names of what is new.
function change(news) {
  const before = { ...state };
  Object.assign(state, news);
  tidy();
  const changed = new Set(Object.keys(state).filter((name) => state[name] !== before[name]));
  if (!changed.size) return;
  writeLink();
  for (const listener of listeners) listener(changed);
}
