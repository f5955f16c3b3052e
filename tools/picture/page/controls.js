// What the pictures of a page share: their view, its controls, their legends.
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
  const variants = document.getElementById("variants");
  box("common time scale", view.common, on => { view.common = on; });
  if (!variants) return;  // a page that places its pictures itself
  box("side by side", view.beside, on => { variants.classList.toggle("beside", on); });
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
