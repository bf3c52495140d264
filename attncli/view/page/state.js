// What is shown: kept in the link, so that a copy of the link shows the same.

const VIEWS = [["matrix", "Matrix"], ["lines", "Token lines"], ["grid", "All heads"]];
if (DATA.patches) VIEWS.unshift(["patches", "Patches"]);
const SORTS = [["order", "layer and head"], ["entropy", "entropy"], ["distance", "mean distance"],
  ["first", "weight on the first key"]];
const MAP = ["layer", "batch", "head"];
const state = { view: VIEWS[0][0], layer: 0, batch: 0, head: 0, query: DATA.query, key: 0,
  colours: "blues", log: false, sort: "order", zoom: 0 };
const listeners = [];                // called with the names of what is new

function readLink() {
  for (const [name, text] of new URLSearchParams(location.hash.slice(1))) {
    if (!Object.hasOwn(state, name)) continue;
    if (typeof state[name] === "number") state[name] = Number.parseInt(text, 10) || 0;
    else state[name] = typeof state[name] === "boolean" ? text === "1" : text;
  }
  tidy();
}

function tidy() {
  const within = (number, least, most) => Math.max(least, Math.min(number, most));
  if (!VIEWS.some(([name]) => name === state.view)) state.view = VIEWS[0][0];
  if (!Object.hasOwn(SCALES, state.colours)) state.colours = "blues";
  if (!SORTS.some(([name]) => name === state.sort)) state.sort = "order";
  const map = mapOf(state);
  for (const name of MAP) state[name] = map[name];
  state.query = within(state.query, 0, map.queries - 1);
  state.key = within(state.key, 0, map.keys - 1);
  state.zoom = within(state.zoom, -4, 5);
}

function writeLink() {
  const link = new URLSearchParams();
  for (const [name, value] of Object.entries(state)) {
    if (value !== false) link.set(name, value === true ? "1" : value);
  }
  // The frame of a notebook has no address to change.
  try { history.replaceState(null, "", `#${link}`); } catch { /* the state is not kept there */ }
}

function change(news) {
  const before = { ...state };
  Object.assign(state, news);
  tidy();
  const changed = Object.keys(state).filter((name) => state[name] !== before[name]);
  if (changed.length) tellAll(changed);
}

function tellAll(changed = Object.keys(state)) {
  writeLink();
  for (const listener of listeners) listener(new Set(changed));
}
