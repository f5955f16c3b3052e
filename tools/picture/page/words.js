"use strict";
// What a page of pictures says of its data: times, bytes, boxes, memory; and its elements.
const data = JSON.parse(document.getElementById("data").textContent);
// The fields of boxes and labels and the flags of a box, in the order of picture_formats.h.
const START = 0, END = 1, PAINT = 2, FLAGS = 3, WHAT = 4, WHY = 5, TEXT = 3, MARK = 1, IDLE = 2, CRITICAL = 4;
const left = 132, right = 14, axisHeight = 22, rankGap = 10;
const longest = Math.max(...data.variants.map(variant => variant.seconds));
const view = {from: 0, to: 1, common: true, beside: false, critical: true, hidden: new Set()};
let chosen = null;  // {plot, lane, seconds, box} under the pointer or chosen by key

function timeText(seconds, unit) {
  const digits = number => String(Number(number.toPrecision(4)));
  if (unit) return digits(seconds);
  const size = Math.abs(seconds);
  if (size === 0 || size >= 1) return digits(seconds) + " s";
  return size >= 1e-3 ? digits(1e3 * seconds) + " ms" : digits(1e6 * seconds) + " us";
}

function bytesText(bytes) {
  const units = ["B", "KiB", "MiB", "GiB"];
  let unit = 0, size = bytes;
  for (; Math.abs(size) >= 1024 && unit + 1 < units.length; ++unit) size /= 1024;
  return unit === 0 ? bytes + " B" : size.toFixed(2) + " " + units[unit];
}

// The text of a point in a picture: of its box and of the memory then.
function pointText({plot, lane, seconds, box}) {
  const time = seconds => timeText(seconds, plot.variant.unit_time), row = plot.variant.rows[lane.row];
  const lines = [`${row.name} at ${time(seconds)}`];
  if (box) {
    lines.push(box[WHAT], `${time(box[START])} to ${time(box[END])}: ${time(box[END] - box[START])}`);
    if (box[WHY]) lines.push(box[WHY]);
  }
  const sample = sampleAt(row.memory, seconds);
  if (sample) lines.push(`memory: ${bytesText(total(sample))}`, ...data.buckets.map((name, b) => `  ${name} ${bytesText(sample[b + 1])}`));
  return lines.join("\n");
}

// Index of the last entry that starts at or before `seconds`, or -1.
function lastBefore(entries, seconds) {
  let low = 0, high = entries.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (entries[middle][START] <= seconds) low = middle + 1; else high = middle;
  }
  return low - 1;
}

function sampleAt(memory, seconds) {
  const place = lastBefore(memory, seconds);
  return place < 0 ? null : memory[place];
}

function make(parent, name, text = "", className = "") {
  const element = parent.appendChild(document.createElement(name));
  if (text !== "") element.textContent = text;
  if (className) element.className = className;
  return element;
}

// A canvas of so many pixels of the page, as fine as the screen. Returns its pen, which counts in these pixels.
function sized(canvas, width, height) {
  const ratio = devicePixelRatio || 1, pen = canvas.getContext("2d");
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = width + "px";
  canvas.style.height = height + "px";
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  return pen;
}

// Bytes of a sample of memory, of its lowest buckets.
const total = (sample, buckets = sample.length - 1) => sample.slice(1, buckets + 1).reduce((sum, bytes) => sum + bytes, 0);
