// The page around its pictures: figures, the address.
function fillTable() {
  const times = key => variant => timeText(variant[key], variant.unit_time) + (variant.unit_time ? " units" : "");
  const columns = [["step", "seconds", times("seconds")], ["bubble", "bubble", v => (100 * v.bubble).toFixed(1) + " %"],
    ["waits for gathers", "exposed_gathers", times("exposed_gathers")],
    ["waits for reductions", "exposed_reductions", times("exposed_reductions")],
    ["peak of the fullest rank", "peak_bytes", v => bytesText(v.peak_bytes)]]
    .filter(([, key]) => data.variants.some(variant => variant[key] > 0));
  const table = document.getElementById("figures"), head = table.createTHead().insertRow(), body = table.createTBody();
  const cell = (row, text, name) => {
    const element = row.appendChild(document.createElement(name));
    element.textContent = text;
    return element;
  };
  cell(head, "variant", "th");
  for (const [name] of columns) cell(head, name, "th");
  for (const variant of data.variants) {
    const row = body.insertRow();
    cell(row, variant.title, "td");
    for (const [, key, text] of columns) {
      const all = data.variants.map(other => other[key]), best = Math.min(...all);
      cell(row, text(variant), "td").className = variant[key] === best && best < Math.max(...all) ? "best" : "";
    }
  }
}

// #from=0.2&to=0.4 shows that part of the axis; #variant=0&rank=1&lane=0&time=3.5 points at what stands there.
function followHash() {
  const words = new URLSearchParams(location.hash.slice(1)), number = name => Number(words.get(name) || 0);
  if (words.has("from") || words.has("to")) show(number("from"), words.has("to") ? number("to") : 1);
  const plot = plots[number("variant")];
  if (!words.has("time") || !plot || !plot.rows[number("rank")]) return;
  const row = number("rank"), lane = number("lane"), seconds = number("time"), frame = plot.element.getBoundingClientRect();
  const top = plot.rows[row].lanes.get(lane);
  if (top === undefined) return;
  plot.say({plot, row, lane, seconds, box: plot.boxAt(row, lane, seconds)}, frame.left + plot.x(seconds), frame.top + top + 20);
}

readTheme();
document.querySelector("h1").textContent = data.title;
fillTable();
fillControls();
for (const variant of data.variants) {
  const section = document.getElementById("variants").appendChild(document.createElement("section"));
  section.appendChild(document.createElement("h2")).textContent = variant.title;
  legendOf(variant, section);
  plots.push(new Plot(variant, section));
}
drawAll();
followHash();
addEventListener("hashchange", followHash);
// Another width, of the window or because a scroll bar came or went; another zoom of the browser changes it too.
new ResizeObserver(() => { patterns.clear(); drawAll(); }).observe(document.body);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
