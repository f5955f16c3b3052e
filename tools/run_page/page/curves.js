// Curves over tokens, steps or seconds, by dygraphs.
const curves = [];
let axis = "tokens";

// A run without a value at a place of another run's has null there, which connects. NaN is a gap of its own.
function merged(series) {
  const rows = new Map();
  series.forEach((one, s) => {
    const places = one.points[axis];
    one.points.value.forEach((value, i) => {
      if (!rows.has(places[i])) rows.set(places[i], [places[i], ...series.map(() => null)]);
      rows.get(places[i])[s + 1] = value === null ? NaN : value;
    });
  });
  return [...rows.values()].sort((one, other) => one[0] - other[0]);
}

class Curves {
  // `series`: [{run, name, points, dashed, colour}], where `points` has a list for each axis and "value". `options`:
  // {label, text, low, stacked, from0, range, plan, marks}; `plan` is a value to draw a line at, `marks` lists of places.
  constructor(parent, series, options) {
    this.series = series;
    this.options = options;
    const figure = make(parent, "figure");
    figure.style.margin = "0";
    this.element = make(figure, "div", "", "curve" + (options.low ? " low" : ""));
    this.element.setAttribute("role", "img");
    this.element.setAttribute("aria-label", `${options.label} of ${[...new Set(series.map(one => one.name))].join(", ")}; ` +
      "the table of this section has the key figures");
    this.readout = make(figure, "p", "", "readout");
    this.graph = null;
    curves.push(this);
  }

  colours() { return this.series.map(one => colour(one.colour)); }

  settings() {
    const text = this.options.text, places = axes[axis], styles = {};
    this.series.forEach((one, s) => {
      if (one.dashed) styles["s" + s] = {strokePattern: [6, 3], strokeWidth: 2, drawPoints: true, pointSize: 2.5};
      // A run of one step has no line.
      if (one.points.value.length === 1) styles["s" + s] = {drawPoints: true, pointSize: 4};
    });
    return {
      file: merged(this.series),
      labels: ["x", ...this.series.map((_, s) => "s" + s)],
      colors: this.colours(), series: styles,
      strokeWidth: this.options.stacked ? 1 : 1.6, connectSeparatedPoints: true, legend: "never",
      stackedGraph: !!this.options.stacked, fillAlpha: 0.55,
      gridLineColor: colour("--edge"), axisLineColor: colour("--edge"), xlabel: places.name,
      xRangePad: 4, yRangePad: 6, includeZero: !!this.options.from0, highlightCircleSize: 3.5,
      valueRange: this.options.range || null, dateWindow: null,
      axes: {
        x: {axisLabelFormatter: value => places.text(value), pixelsPerLabel: 78, axisLabelWidth: 74},
        y: {axisLabelFormatter: value => text(value), axisLabelWidth: 66, pixelsPerLabel: 26, labelsKMG2: text === sizeText},
      },
      highlightCallback: (event, x, points) => this.say(x, points),
      unhighlightCallback: () => { this.readout.textContent = ""; },
      plugins: [{activate: () => ({willDrawChart: event => this.drawMarks(event), didDrawChart: event => this.drawPlan(event)})}],
    };
  }

  draw() {
    const {file, plugins, ...rest} = this.settings();
    if (this.graph) this.graph.updateOptions({file, ...rest}); else this.graph = new Dygraph(this.element, file, {plugins, ...rest});
  }

  say(x, points) {
    const texts = points.filter(point => Number.isFinite(point.yval)).map(point =>
      `${this.series[Number(point.name.slice(1))].name} ${this.options.text(this.options.stacked ? this.raw(point, x) : point.yval)}`);
    this.readout.textContent = `${axes[axis].name} ${axes[axis].text(x)}: ${texts.join(", ")}`;
  }

  // The value of a layer, not the height to which it is stacked.
  raw(point, x) {
    const points = this.series[Number(point.name.slice(1))].points;
    return points.value[points[axis].indexOf(x)];
  }

  // Places that a run marks, through the height of the plot.
  drawMarks({drawingContext: pen, dygraph}) {
    const area = dygraph.getArea();
    for (const {run, places} of this.options.marks || []) {
      pen.fillStyle = accent(run);
      pen.globalAlpha = 0.35;
      for (const place of places[axis]) pen.fillRect(dygraph.toDomXCoord(place) - 0.75, area.y, 1.5, area.h);
      pen.globalAlpha = 1;
    }
  }

  drawPlan({drawingContext: pen, dygraph}) {
    if (!this.options.plan) return;
    const area = dygraph.getArea(), y = dygraph.toDomYCoord(this.options.plan);
    pen.save();
    pen.strokeStyle = pen.fillStyle = colour("--ink");
    pen.lineWidth = 1.5;
    pen.setLineDash([8, 4]);
    pen.beginPath();
    pen.moveTo(area.x, y);
    pen.lineTo(area.x + area.w, y);
    pen.stroke();
    pen.font = "12px system-ui, sans-serif";
    // Readable on any layer.
    const words = "plan " + this.options.text(this.options.plan);
    pen.setLineDash([]);
    pen.textAlign = "right";
    pen.lineJoin = "round";
    pen.lineWidth = 4;
    pen.strokeStyle = colour("--panel");
    pen.strokeText(words, area.x + area.w - 6, y + 16);
    pen.fillText(words, area.x + area.w - 6, y + 16);
    pen.restore();
  }
}

// One curve a run, of those that have the field.
function seriesOf(field, more = {}) {
  return runs.flatMap((run, r) => run.curves[field] ?
    [{run: r, name: run.name, points: run.curves[field], colour: accentName(r), ...more}] : []);
}

function legendOfRuns(parent, entries) {
  const legend = make(parent, "div", "", "legend");
  for (const {run, name, dashed} of entries) {
    const entry = make(legend, "span");
    swatch(entry, `var(${accentName(run)})`, dashed ? "dashed" : "");
    entry.append(name);
  }
}

function addAxisSwitch() {
  const bar = make(document.getElementById("axis-switch"), "div");
  make(bar, "span", "Over");
  for (const [name, {name: text}] of Object.entries(axes)) {
    const label = make(bar, "label"), choice = make(label, "input");
    choice.type = "radio";
    choice.name = "axis";
    choice.value = name;
    choice.checked = name === axis;
    choice.addEventListener("change", () => {
      axis = name;
      drawReport();
    });
    label.append(" " + text);
  }
  make(bar, "span", "drag in a plot to zoom, double-click to see all", "help").style.margin = "0";
}
