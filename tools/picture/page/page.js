// The page around its pictures: the view that they share, figures, controls, legends, the address.
const plots = [];

function drawAll() {
  readTheme();
  for (const plot of plots) plot.draw();
}

function show(from, to) {
  const span = Math.min(1, Math.max(to - from, 1e-5));
  view.from = Math.max(0, Math.min(from, 1 - span));
  view.to = view.from + span;
  drawAll();
}

function zoom(factor, at) {
  const span = view.to - view.from, place = view.from + at * span;
  show(place - at * span * factor, place + (1 - at) * span * factor);
}

function pan(part) {
  const span = view.to - view.from;
  show(view.from + part * span, view.to + part * span);
}

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

function fillControls() {
  const controls = document.getElementById("controls");
  const button = (text, label, action) => {
    const element = controls.appendChild(document.createElement("button"));
    element.textContent = text;
    element.title = label;
    element.setAttribute("aria-label", label);
    element.addEventListener("click", action);
  };
  button("\u2212", "zoom out", () => zoom(1.6, 0.5));
  button("+", "zoom in", () => zoom(0.625, 0.5));
  button("\u25c0", "earlier", () => pan(-0.25));
  button("\u25b6", "later", () => pan(0.25));
  button("all", "show the whole step", () => show(0, 1));
  const box = (text, on, change) => {
    const label = controls.appendChild(document.createElement("label"));
    const element = label.appendChild(document.createElement("input"));
    element.type = "checkbox";
    element.checked = on;
    element.addEventListener("change", () => { change(element.checked); drawAll(); });
    label.append(" " + text);
  };
  const hide = (lanes, on) => lanes.forEach(lane => on ? view.hidden.delete(lane) : view.hidden.add(lane));
  const used = new Set(data.variants.flatMap(variant => variant.lanes));
  const groups = [["compute", [0]], ["gathers", [1]], ["reductions", [2]], ["transfers", [3, 4, 5, 6, 7]]];
  for (const [name, lanes] of groups) {
    if (lanes.some(lane => used.has(lane))) box(name, true, on => hide(lanes, on));
  }
  if (data.variants.some(variant => variant.highest_bytes > 0)) box("memory", true, on => { view.memory = on; });
  box("critical path", true, on => { view.critical = on; });
  if (data.variants.length < 2) return;
  box("common time scale", view.common, on => { view.common = on; });
  box("side by side", view.beside, on => {
    document.getElementById("variants").classList.toggle("beside", on);
  });
}

function legendOf(variant, section) {
  const legend = section.appendChild(document.createElement("div"));
  legend.className = "legend";
  const entry = (text, paints) => {
    const span = legend.appendChild(document.createElement("span"));
    for (const paint of paints) {
      const canvas = span.appendChild(document.createElement("canvas")), ratio = devicePixelRatio || 1;
      canvas.width = 18 * ratio;
      canvas.height = 12 * ratio;
      canvas.style.width = "18px";
      const pen = canvas.getContext("2d");
      pen.scale(ratio, ratio);
      paint(pen);
    }
    span.append(" " + text);
  };
  const whole = style => pen => { pen.fillStyle = style(pen); pen.fillRect(0, 0, 18, 12); };
  data.kinds.forEach((kind, k) => {
    const shades = variant.shades[k];
    if (shades.length === 0) return;
    if (k === RESHARD) return entry(kind.name, [pen => { pen.fillStyle = theme.ink; pen.fillRect(8, 0, 1.2, 12); }]);
    entry(`${kind.letter} ${kind.name}` + (shades.length > 1 ? ` (chunks 0 to ${shades.length - 1})` : ""),
      shades.map(shade => whole(pen => fill(pen, shade.fill, kind.texture, data.strength))));
  });
  data.idle.forEach((style, reason) => {
    if (!variant.ranks.some(row => row.idle.some(idle => idle[2] === reason))) return;
    entry(style.name, [whole(pen => idleFill(pen, reason))]);
  });
  entry("critical path", [pen => { pen.fillStyle = theme.ink; pen.fillRect(0, 5, 18, 3); }]);
  if (variant.highest_bytes === 0) return;
  for (const [b, bucket] of data.buckets.entries()) {
    if (!variant.ranks.some(row => row.memory.some(sample => sample[b + 1] > 0))) continue;
    entry(bucket.name, [whole(pen => fill(pen, bucket.colour, bucket.texture, data.strength))]);
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
