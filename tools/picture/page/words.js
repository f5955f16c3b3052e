"use strict";
// What a page of pictures says of its data: times, bytes, boxes, memory.
const data = JSON.parse(document.getElementById("data").textContent);
const strings = data.strings;
// The fields of a box, in the order of picture_formats.h.
const LANE = 0, KIND = 1, START = 2, END = 3, CHUNK = 4, MICROBATCH = 6, ACTION = 7, SUBJECT = 8, BYTES = 9, MERGED = 10,
  WAITED = 11, WAITED_FOR = 12, CRITICAL = 13;
const BUBBLE = data.idle.findIndex(style => style.name === "bubble");
const RESHARD = data.kinds.findIndex(kind => kind.name === "reshard");
const left = 112, right = 14, axisHeight = 22, rankGap = 10, laneGap = 2, memoryHeight = 56;
const longest = Math.max(...data.variants.map(variant => variant.seconds));
const view = {from: 0, to: 1, common: true, beside: false, critical: true, memory: true, hidden: new Set()};
let chosen = null;  // {plot, row, box} under the pointer or chosen by key

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

function boxText(variant, box) {
  const time = seconds => timeText(seconds, variant.unit_time);
  const lines = [strings[box[ACTION]] + (box[MERGED] > 1 ? `, ${box[MERGED]} actions` : "")];
  if (box[SUBJECT] !== null) lines.push(strings[box[SUBJECT]]);
  if (box[BYTES] > 0) lines.push(`${bytesText(box[BYTES])} (${box[BYTES]} bytes)`);
  lines.push(`${time(box[START])} to ${time(box[END])}: ${time(box[END] - box[START])}`);
  if (box[WAITED_FOR] !== null) lines.push(`waited ${time(box[WAITED])} for ${strings[box[WAITED_FOR]]}`);
  if (box[CRITICAL]) lines.push("on the critical path");
  return lines;
}

function memoryText(row, seconds) {
  const sample = sampleAt(row.memory, seconds);
  if (!sample) return [];
  const total = sample.slice(1).reduce((sum, bytes) => sum + bytes, 0);
  return [`memory: ${bytesText(total)}`].concat(
    data.buckets.map((bucket, b) => `  ${bucket.name} ${bytesText(sample[b + 1])}`));
}

// Index of the last entry that starts at or before `seconds`, or -1.
function lastBefore(entries, field, seconds) {
  let low = 0, high = entries.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (entries[middle][field] <= seconds) low = middle + 1; else high = middle;
  }
  return low - 1;
}

function sampleAt(memory, seconds) {
  const place = lastBefore(memory, 0, seconds);
  return place < 0 ? null : memory[place];
}
