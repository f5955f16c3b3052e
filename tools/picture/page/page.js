// The page around its pictures: figures, the address.
function fillTable() {
  const columns = data.variants[0].figures.map((_, f) => data.variants.map(variant => variant.figures[f]))
    .filter(column => column.some(figure => figure.value > 0));
  const table = document.getElementById("figures"), head = table.createTHead().insertRow(), body = table.createTBody();
  make(head, "th", "variant");
  for (const [{name}] of columns) make(head, "th", name);
  data.variants.forEach((variant, v) => {
    const row = body.insertRow();
    make(row, "td", variant.title);
    for (const column of columns) {
      const values = column.map(figure => figure.value), best = Math.min(...values);
      make(row, "td", column[v].text, values[v] === best && best < Math.max(...values) ? "best" : "");
    }
  });
}

// #from=0.2&to=0.4 shows that part of the axis; #variant=0&rank=1&lane=0&time=3.5 points into a lane of a row.
function followHash() {
  const words = new URLSearchParams(location.hash.slice(1)), number = name => Number(words.get(name) || 0);
  if (words.has("from") || words.has("to")) show(number("from"), words.has("to") ? number("to") : 1);
  const plot = plots[number("variant")];
  if (!words.has("time") || !plot) return;
  const lane = plot.lanes.filter(lane => lane.row === number("rank"))[number("lane")], seconds = number("time");
  if (!lane) return;
  const frame = plot.element.getBoundingClientRect();
  plot.say({plot, lane, seconds, box: plot.boxAt(lane, seconds)}, frame.left + plot.x(seconds), frame.top + lane.y + 20);
}

readTheme();
document.querySelector("h1").textContent = data.title;
fillTable();
fillControls();
for (const variant of data.variants) {
  const section = make(document.getElementById("variants"), "section");
  make(section, "h2", variant.title);
  legendOf(variant, section);
  plots.push(new Plot(variant, section));
}
drawAll();
followHash();
addEventListener("hashchange", followHash);
// Another width, of the window or because a scroll bar came or went; another zoom of the browser changes it too.
new ResizeObserver(() => { patterns.clear(); drawAll(); }).observe(document.body);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
