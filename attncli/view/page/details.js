// The panel at the side: the cell under the pointer, and the strongest keys of a query.

const STRONGEST = 12;
let told = 0;

async function tell(query, key) {
  const ticket = ++told, map = mapOf(state), { weights, reasons } = await rowOf(map, query);
  if (ticket !== told) return;
  const lines = [`query ${numbered("queryLabels", query)}`, `key ${numbered("keyLabels", key)}`];
  const about = DATA.exact ? "" : "about ", score = scoreOf(map, query, weights[key]);
  if (weights[key] === HIDDEN) lines.push("weight 0", `hidden: ${whyHidden(reasons[key])}`);
  else lines.push(`weight ${about}${shown(weights[key], 6)}`);
  if (score !== null) lines.push(`score ${about}${shown(score)}`);
  document.getElementById("cell").textContent = lines.join("\n");
}

async function showRow() {
  const map = mapOf(state), query = state.query, { weights } = await rowOf(map, query);
  if (query !== state.query || map !== mapOf(state)) return;
  const order = [...weights.keys()].filter((key) => weights[key] !== HIDDEN);
  order.sort((a, b) => weights[b] - weights[a]);
  document.getElementById("row-title").textContent = `Query ${numbered("queryLabels", query)} attends to`;
  document.getElementById("row").classList.toggle("no-scores", !map.lse);
  const rows = order.slice(0, STRONGEST).map((key) => {
    const row = document.createElement("tr");
    for (const text of [numbered("keyLabels", key), shown(weights[key]), shown(scoreOf(map, query, weights[key]))]) {
      row.appendChild(document.createElement("td")).textContent = text;
    }
    return row;
  });
  document.querySelector("#row tbody").replaceChildren(...rows);
}

listeners.push((changed) => {
  if (![...MAP, "query", "key"].some((name) => changed.has(name))) return;
  showRow();
  tell(state.query, state.key);
});
