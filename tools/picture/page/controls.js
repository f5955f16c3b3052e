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
    const element = make(controls, "button", text);
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
    const label = make(controls, "label"), element = make(label, "input");
    element.type = "checkbox";
    element.checked = on;
    element.addEventListener("change", () => { change(element.checked); drawAll(); });
    label.append(" " + text);
  };
  for (const group of new Set(data.variants.flatMap(variant => variant.lanes.map(lane => lane.group)))) {
    box(group, true, on => on ? view.hidden.delete(group) : view.hidden.add(group));
  }
  box("critical path", true, on => { view.critical = on; });
  if (data.variants.length < 2) return;
  const variants = document.getElementById("variants");
  box("common time scale", view.common, on => { view.common = on; });
  if (!variants) return;  // a page that places its pictures itself
  box("side by side", view.beside, on => { variants.classList.toggle("beside", on); });
}

function legendOf(variant, section) {
  const legend = make(section, "div", "", "legend");
  for (const {paints, text, width, height} of variant.legend) {
    const span = make(legend, "span");
    for (const paint of paints) {
      const pen = sized(make(span, "canvas"), 18, 12);
      pen.fillStyle = fill(pen, variant.paints[paint]);
      pen.fillRect(9 - width / 2, 6 - height / 2, width, height);
    }
    span.append(" " + text);
  }
}
