// Controls, search, and the start.

const tabs = document.getElementById("tabs");
const search = document.getElementById("search");

function options(id, pairs, name) {
  const select = document.getElementById(id);
  for (const [value, text] of pairs) {
    const option = document.createElement("option");
    option.value = value;
    option.textContent = text;
    select.append(option);
  }
  select.parentElement.hidden = pairs.length < 2;
  select.addEventListener("change", () => {
    change({ [name]: typeof state[name] === "number" ? Number(select.value) : select.value });
  });
}

function distinct(name, text) {
  return [...new Set(DATA.maps.map((map) => map[name]))].map((value) => [value, text(value)]);
}

function makeControls() {
  options("layer", distinct("layer", (value) => (DATA.layers && DATA.layers[value]) || String(value)), "layer");
  options("head", distinct("head", String), "head");
  options("batch", distinct("batch", String), "batch");
  options("colours", Object.keys(SCALES).map((name) => [name, name]), "colours");
  options("sort", SORTS, "sort");
  document.getElementById("log").addEventListener("change", (event) => change({ log: event.target.checked }));
  for (const [name, text] of VIEWS) {
    const tab = document.createElement("button");
    Object.assign(tab, { type: "button", id: `tab-${name}`, textContent: text });
    tab.setAttribute("role", "tab");
    tab.setAttribute("aria-controls", `view-${name}`);
    tab.addEventListener("click", () => change({ view: name }));
    tabs.append(tab);
  }
  tabs.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const at = VIEWS.findIndex(([name]) => name === state.view);
    change({ view: VIEWS[(at + step + VIEWS.length) % VIEWS.length][0] });
    document.getElementById(`tab-${state.view}`).focus();
  });
}

function showControls() {
  for (const name of ["layer", "head", "batch", "colours", "sort"]) document.getElementById(name).value = String(state[name]);
  document.getElementById("log").checked = state.log;
  for (const [name] of VIEWS) {
    const chosen = name === state.view, tab = document.getElementById(`tab-${name}`);
    tab.setAttribute("aria-selected", String(chosen));
    tab.tabIndex = chosen ? 0 : -1;
    document.getElementById(`view-${name}`).hidden = !chosen;
  }
  document.getElementById("where").textContent = placeOf(mapOf(state));
  drawLegend(state);
}

// Enter goes to the next query whose token holds the text.
function find(next) {
  const text = search.value.trim().toLowerCase(), output = document.getElementById("found");
  const names = [...Array(mapOf(state).queries).keys()];
  const hits = text ? names.filter((i) => nameOf("queryLabels", i).toLowerCase().includes(text)) : [];
  output.textContent = text ? `${hits.length} found` : "";
  if (next && hits.length) {
    change({ query: hits.find((i) => i > state.query) ?? hits[0] });
    if (state.view === "matrix") keepInSight();
  }
}

search.addEventListener("input", () => find(false));
search.addEventListener("keydown", (event) => { if (event.key === "Enter") { event.preventDefault(); find(true); } });
addEventListener("hashchange", () => {
  readLink();
  for (const listener of listeners) listener(new Set(Object.keys(state)));
});
DARK.addEventListener("change", () => { gridDrawn = ""; for (const listener of listeners) listener(new Set(["colours"])); });
addEventListener("beforeprint", drawMatrix);
listeners.unshift(showControls);

makeControls();
readLink();
if (DATA.note) Object.assign(document.getElementById("note"), { hidden: false, textContent: DATA.note });
writeLink();
for (const listener of listeners) listener(new Set(Object.keys(state)));
document.documentElement.dataset.ready = "1";
