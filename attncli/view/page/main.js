// Controls, search, and the start.

const tabs = document.getElementById("tabs"), search = document.getElementById("search");
const SELECTS = [...MAP, "colours", "sort"];

function options(name, pairs) {
  const select = document.getElementById(name);
  for (const [value, text] of pairs) select.append(new Option(text, value));
  select.parentElement.hidden = pairs.length < 2;
  select.addEventListener("change", () => {
    change({ [name]: typeof state[name] === "number" ? Number(select.value) : select.value });
  });
}

function makeControls() {
  for (const name of MAP) {
    const numbers = [...new Set(DATA.maps.map((map) => map[name]))];
    const names = name === "layer" && DATA.layers || {};
    options(name, numbers.map((number) => [number, names[number] ? `${number}: ${names[number]}` : String(number)]));
  }
  options("colours", Object.keys(SCALES).map((name) => [name, name]));
  options("sort", SORTS);
  document.getElementById("log").addEventListener("change", (event) => change({ log: event.target.checked }));
  document.getElementById("query").addEventListener("change", (event) => change({ query: Number(event.target.value) || 0 }));
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
  for (const name of [...SELECTS, "query"]) document.getElementById(name).value = String(state[name]);
  document.getElementById("query").max = mapOf(state).queries - 1;
  document.getElementById("log").checked = state.log;
  for (const [name] of VIEWS) {
    const chosen = name === state.view, tab = document.getElementById(`tab-${name}`);
    tab.setAttribute("aria-selected", String(chosen));
    tab.tabIndex = chosen ? 0 : -1;
    document.getElementById(`view-${name}`).hidden = !chosen;
  }
  document.getElementById("where").textContent = placeOf(mapOf(state));
}

// Enter goes to the next query whose token holds the text.
function find(next) {
  const text = search.value.trim().toLowerCase(), output = document.getElementById("found");
  const queries = [...Array(mapOf(state).queries).keys()];
  const hits = text ? queries.filter((i) => nameOf("queryLabels", i).toLowerCase().includes(text)) : [];
  output.textContent = text ? `${hits.length} found` : "";
  if (!next || !hits.length) return;
  change({ query: hits.find((i) => i > state.query) ?? hits[0] });
  if (state.view === "matrix") keepInSight();
}

search.addEventListener("input", () => find(false));
search.addEventListener("keydown", (event) => { if (event.key === "Enter") find(true); });
addEventListener("hashchange", () => { readLink(); tellAll(); });
DARK.addEventListener("change", () => tellAll(["colours"]));
listeners.unshift(showControls);

makeControls();
readLink();
if (DATA.note) Object.assign(document.getElementById("note"), { hidden: false, textContent: DATA.note });
tellAll();
