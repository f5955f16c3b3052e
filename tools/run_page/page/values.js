// What the page says of its runs: their data, numbers as text, tables, colours.
const report = JSON.parse(document.getElementById("report").textContent);
const runs = report.runs;
const RUN_COLOURS = 8;

function significant(value, digits = 5) {
  if (value === null || value === undefined) return "–";
  return Math.abs(value) >= 10 ** digits ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(digits)));
}

// 12.3 M: for axes and rates.
function shortCount(value) {
  if (value === null || value === undefined) return "–";
  const units = ["", " k", " M", " G", " T"];
  let unit = 0, size = value;
  for (; Math.abs(size) >= 999.5 && unit + 1 < units.length; ++unit) size /= 1000;
  return String(Number(size.toPrecision(unit === 0 ? 5 : 4))) + units[unit];
}

function duration(seconds) {
  if (seconds < 120) return timeText(seconds, false);
  const whole = Math.round(seconds), minutes = Math.floor(whole / 60), hours = Math.floor(minutes / 60);
  if (hours === 0) return `${minutes} min ${whole % 60} s`;
  return `${hours} h ${minutes % 60} min`;
}

const sizeText = bytes => bytes === null || bytes === undefined ? "–" : bytesText(Math.round(bytes));

// The axes that curves can have; `text` is for ticks and pointers.
const axes = {
  tokens: {name: "tokens", text: shortCount},
  step: {name: "steps", text: value => String(Math.round(value * 100) / 100)},
  seconds: {name: "seconds of steps", text: duration},
};

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}
const accentName = run => `--run-${run % RUN_COLOURS}`;
const accent = run => colour(accentName(run));

function swatch(parent, style, className = "") {
  const mark = make(parent, "i", "", "swatch " + className);
  mark.setAttribute("aria-hidden", "true");
  if (className === "area") mark.style.background = style; else mark.style.borderColor = style;
  return mark;
}

// A table with a row for each figure and a column for each run, so that it fits narrow windows. `rows` are
// [name, text of a run]; a figure that no run has is left out.
function runTable(parent, caption, rows) {
  const told = rows.filter(([, text]) => runs.some(run => text(run) !== "–"));
  if (told.length === 0) return;
  const heads = runs.map((run, r) => [cell => {
    swatch(cell, `var(${accentName(r)})`);
    cell.append(run.name);
  }, false]);
  plainTable(parent, caption, [["", false], ...heads], told.map(([name, text]) => [name, ...runs.map(run => text(run))]));
}

// Any table: `columns` are [head, is text], `rows` lists of cells. A head or cell is a text or a function that fills one.
function plainTable(parent, caption, columns, rows) {
  const table = make(make(parent, "div", "", "scroll"), "table");
  if (caption) make(table, "caption", caption);
  const head = make(make(table, "thead"), "tr"), body = make(table, "tbody");
  const add = (row, name, content, column, scope) => {
    const cell = make(row, name, "", columns[column][1] ? "text" : "");
    if (name === "th") cell.scope = scope;
    if (typeof content === "function") content(cell); else cell.textContent = content;
  };
  columns.forEach(([content], c) => add(head, content === "" ? "td" : "th", content, c, "col"));
  for (const cells of rows) {
    const row = make(body, "tr");
    cells.forEach((content, c) => add(row, c === 0 ? "th" : "td", content, c, "row"));
  }
}
