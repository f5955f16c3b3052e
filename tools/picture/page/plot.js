// One picture on a page: drawing, pointing and keys.

const patterns = new Map();
function fill(context, colour, texture, strength, ink = "#000") {
  const strokes = data.textures[texture];
  if (!strokes) return colour;
  const name = colour + texture + strength + ink, ratio = devicePixelRatio || 1;
  if (!patterns.has(name)) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = Math.round(6 * ratio);
    const pen = tile.getContext("2d");
    pen.scale(tile.width / 6, tile.height / 6);
    pen.fillStyle = colour;
    pen.fillRect(0, 0, 6, 6);
    pen.globalAlpha = strength;
    pen.strokeStyle = ink;
    pen.lineWidth = 1.3;
    pen.stroke(new Path2D(strokes));
    const pattern = context.createPattern(tile, "repeat");
    pattern.setTransform(new DOMMatrix().scale(6 / tile.width));
    patterns.set(name, pattern);
  }
  return patterns.get(name);
}

// A bubble is a stretch of nothing, so it has the colour of the page.
function idleFill(context, reason) {
  const style = data.idle[reason];
  return reason === BUBBLE ? fill(context, theme.page, style.texture, style.strength, theme.ink) :
    fill(context, style.colour, style.texture, style.strength);
}

function boxFill(context, variant, box) {
  return fill(context, variant.shades[box[KIND]][box[CHUNK]].fill, data.kinds[box[KIND]].texture, data.strength);
}

const laneHeight = lane => lane === 0 ? 24 : lane <= 2 ? 13 : 8;
// The colours of the page, which follow the system's scheme; asking for one is too slow to do it for each box.
const theme = {};
function readTheme() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["page", "ink", "dim", "lane", "rule"]) theme[name] = style.getPropertyValue("--" + name).trim();
}

class Plot {
  constructor(variant, section) {
    this.variant = variant;
    this.element = section.appendChild(document.createElement("div"));
    this.element.className = "plot";
    this.element.tabIndex = 0;
    this.element.setAttribute("role", "img");
    this.element.setAttribute("aria-label", `timeline of ${variant.title}; arrow keys choose a box`);
    this.base = this.element.appendChild(document.createElement("canvas"));
    this.over = this.element.appendChild(document.createElement("canvas"));
    // By row and lane, in time order; boxes of a lane do not overlap, but a mark may stand in one.
    this.boxes = variant.ranks.map(row => {
      const lanes = data.lanes.map(() => []);
      for (const box of row.boxes) lanes[box[LANE]].push(box);
      return lanes;
    });
    this.peak = Math.max(1, ...data.variants.map(other => other.highest_bytes));
    this.listen();
  }

  // How long the axis would be without zoom.
  get length() { return (view.common ? longest : this.variant.seconds) || 1; }
  get from() { return view.from * this.length; }
  get scale() { return this.width / (this.length * (view.to - view.from)); }
  x(seconds) { return left + (seconds - this.from) * this.scale; }
  seconds(x) { return this.from + (x - left) / this.scale; }

  layout() {
    this.width = Math.max(60, this.element.clientWidth - left - right);
    let y = axisHeight;
    this.lanes = this.variant.lanes.filter(lane => !view.hidden.has(lane));
    this.rows = [];
    // Rows that share their lanes stand together: of a pair, each lane of the second row below that of the first.
    const together = this.variant.paired ? 2 : 1;
    for (let r = 0; r < this.variant.ranks.length; r += together) {
      const ranks = this.variant.ranks.slice(r, r + together), places = ranks.map(() => ({lanes: new Map(), memory: null}));
      for (const lane of this.lanes) {
        for (const place of places) {
          place.lanes.set(lane, y);
          y += laneHeight(lane) + 1;
        }
        y += laneGap - 1;
      }
      ranks.forEach((row, i) => {
        if (!view.memory || row.memory.length === 0) return;
        places[i].memory = y;
        y += memoryHeight + laneGap;
      });
      y += this.lanes.length < 2 && places[0].memory === null ? 0 : rankGap;
      this.rows.push(...places);
    }
    this.height = y;
    const ratio = devicePixelRatio || 1;
    this.element.style.height = y + "px";
    for (const canvas of [this.base, this.over]) {
      canvas.width = Math.round((left + this.width + right) * ratio);
      canvas.height = Math.round(y * ratio);
      canvas.style.width = left + this.width + right + "px";
      canvas.style.height = y + "px";
      canvas.getContext("2d").setTransform(ratio, 0, 0, ratio, 0, 0);
    }
  }

  draw() {
    this.layout();
    const pen = this.pen = this.base.getContext("2d");
    pen.textBaseline = "middle";
    this.drawAxis();
    this.variant.ranks.forEach((row, r) => this.drawNames(row, r));
    pen.save();
    pen.beginPath();
    pen.rect(left, 0, this.width, this.height);
    pen.clip();
    this.variant.ranks.forEach((row, r) => this.drawRow(row, r));
    if (view.critical) this.drawHops();
    pen.restore();
    this.drawOver();
  }

  drawAxis() {
    const pen = this.pen, span = this.length * (view.to - view.from), least = span / Math.max(1, Math.floor(this.width / 90));
    const power = 10 ** Math.floor(Math.log10(least));
    const step = [1, 2, 5, 10].map(factor => factor * power).find(distance => distance >= least * (1 - 1e-12));
    pen.font = "10px DejaVu Sans, Verdana, sans-serif";
    pen.textAlign = "center";
    for (let i = Math.ceil(this.from / step - 1e-9); i * step <= (this.from + span) * (1 + 1e-9); ++i) {
      const x = this.x(i * step);
      pen.fillStyle = theme.rule;
      pen.fillRect(x, axisHeight - 6, 1, this.height);
      pen.fillStyle = theme.dim;
      pen.fillText(timeText(i * step, this.variant.unit_time), x, 8);
    }
    pen.textAlign = "right";
    pen.fillText(this.variant.unit_time ? "time, units" : "time", left - 24, 8);
  }

  drawNames(row, r) {
    const pen = this.pen, place = this.rows[r];
    pen.textAlign = "right";
    for (const [lane, y] of place.lanes) {
      pen.fillStyle = theme.lane;
      const end = Math.min(left + this.width, this.x(this.variant.seconds));
      pen.fillRect(left, y, Math.max(0, end - left), laneHeight(lane));
      pen.fillStyle = theme.ink;
      pen.font = (lane === 0 ? "bold 11px" : "9px") + " DejaVu Sans, Verdana, sans-serif";
      // The second row of a pair does not repeat the name of its lane.
      const label = this.variant.paired && r % 2 === 1 ? row.name : data.lanes[lane];
      pen.fillText(lane === 0 ? "rank " + row.rank + (row.name ? " " + row.name : "") : label, left - 6, y + laneHeight(lane) / 2);
    }
    if (place.memory === null) return;
    pen.font = "9px DejaVu Sans, Verdana, sans-serif";
    pen.fillText(bytesText(row.peak_bytes), left - 6, place.memory + 8);
    pen.fillText("memory", left - 6, place.memory + memoryHeight - 6);
  }

  drawRow(row, r) {
    const place = this.rows[r], pen = this.pen;
    if (place.lanes.has(0)) {
      for (const [start, end, reason] of row.idle) {
        pen.fillStyle = idleFill(pen, reason);
        pen.fillRect(this.x(start), place.lanes.get(0), (end - start) * this.scale, laneHeight(0));
      }
    }
    for (const [lane, y] of place.lanes) this.drawLane(this.boxes[r][lane], lane, y);
    if (place.memory !== null) this.drawMemory(row.memory, place.memory);
  }

  drawLane(boxes, lane, y) {
    const pen = this.pen, height = laneHeight(lane), end = this.seconds(left + this.width);
    let drawnTo = -Infinity, first = Math.max(0, lastBefore(boxes, START, this.from));
    while (first > 0 && boxes[first][KIND] === RESHARD) --first;  // a mark may stand in a box that began before it
    for (let i = first; i < boxes.length && boxes[i][START] <= end; ++i) {
      const box = boxes[i], x = this.x(box[START]), width = (box[END] - box[START]) * this.scale;
      if (box[KIND] === RESHARD) {
        pen.fillStyle = theme.ink;
        pen.fillRect(x - 0.6, y - 1, 1.2, height + 2);
        continue;
      }
      if (x + width < drawnTo + 0.3) continue;  // nothing of it would be seen
      drawnTo = x + width;
      pen.fillStyle = boxFill(pen, this.variant, box);
      pen.fillRect(x, y, Math.max(width - (width > 3 ? 0.8 : 0), 0.5), height);
      if (view.critical && box[CRITICAL]) {
        pen.fillStyle = theme.ink;
        pen.fillRect(x, y + height - 3, width, 3);
      }
      if (height >= 12 && width > 8) this.drawLabel(box, x, y, width, height);
    }
  }

  drawLabel(box, x, y, width, height) {
    const pen = this.pen, computes = box[LANE] === 0;
    const label = !computes && box[SUBJECT] !== null ? strings[box[SUBJECT]] :
      box[MICROBATCH] === null ? "" : String(box[MICROBATCH]);
    pen.font = (computes ? 11 : 8) + "px DejaVu Sans, Verdana, sans-serif";
    if (!label || pen.measureText(label).width + 2 > width) return;
    const shade = this.variant.shades[box[KIND]][box[CHUNK]];
    pen.textAlign = "center";
    pen.lineJoin = "round";
    pen.lineWidth = 2.4;
    pen.strokeStyle = shade.fill;
    pen.fillStyle = shade.text;
    pen.strokeText(label, x + width / 2, y + height / 2);
    pen.fillText(label, x + width / 2, y + height / 2);
  }

  drawMemory(memory, y) {
    const pen = this.pen, ground = y + memoryHeight, perByte = (memoryHeight - 4) / this.peak;
    const first = Math.max(0, lastBefore(memory, 0, this.from)), end = this.seconds(left + this.width);
    for (let bucket = data.buckets.length; bucket >= 1; --bucket) {
      const style = data.buckets[bucket - 1];
      pen.fillStyle = fill(pen, style.colour, style.texture, data.strength);
      pen.beginPath();
      pen.moveTo(this.x(memory[first][0]), ground);
      let i = first, height = ground;
      for (; i < memory.length && memory[i][0] <= end; ++i) {
        let bytes = 0;
        for (let below = 1; below <= bucket; ++below) bytes += memory[i][below];
        pen.lineTo(this.x(memory[i][0]), height);
        height = ground - perByte * bytes;
        pen.lineTo(this.x(memory[i][0]), height);
      }
      const last = this.x(i < memory.length ? memory[i][0] : this.variant.seconds);
      pen.lineTo(last, height);
      pen.lineTo(last, ground);
      pen.fill();
      pen.lineWidth = 0.7;
      pen.strokeStyle = theme.page;
      pen.stroke();
    }
    pen.fillStyle = theme.dim;
    pen.fillRect(left, ground, this.width, 0.8);
  }

  drawHops() {
    const pen = this.pen;
    pen.strokeStyle = theme.ink;
    pen.globalAlpha = 0.6;
    pen.lineWidth = 1.1;
    pen.beginPath();
    for (const [fromRow, fromBox, toRow, toBox] of this.variant.hops) {
      const from = this.variant.ranks[fromRow].boxes[fromBox], to = this.variant.ranks[toRow].boxes[toBox];
      const y0 = this.rows[fromRow].lanes.get(from[LANE]), y1 = this.rows[toRow].lanes.get(to[LANE]);
      if (y0 === undefined || y1 === undefined) continue;
      pen.moveTo(this.x(from[END]), y0 + laneHeight(from[LANE]) - 1.5);
      pen.lineTo(this.x(to[START]), y1 + laneHeight(to[LANE]) - 1.5);
    }
    pen.stroke();
    pen.globalAlpha = 1;
  }

  // What follows the pointer: a line through all ranks, what each holds there, and the frame of the chosen box.
  drawOver() {
    const pen = this.over.getContext("2d");
    pen.clearRect(0, 0, left + this.width + right, this.height);
    if (this.cursor === undefined) return;
    const x = this.x(this.cursor);
    if (x < left || x > left + this.width) return;
    pen.fillStyle = theme.ink;
    pen.fillRect(x, axisHeight - 4, 1, this.height);
    pen.font = "10px DejaVu Sans, Verdana, sans-serif";
    pen.textBaseline = "middle";
    const atRight = x < left + this.width - 80;
    pen.textAlign = atRight ? "left" : "right";
    this.rows.forEach((place, r) => {
      const sample = place.memory === null ? null : sampleAt(this.variant.ranks[r].memory, this.cursor);
      if (!sample) return;
      const text = bytesText(sample.slice(1).reduce((sum, bytes) => sum + bytes, 0));
      pen.lineWidth = 3;
      pen.strokeStyle = theme.page;
      pen.strokeText(text, x + (atRight ? 4 : -4), place.memory + 8);
      pen.fillText(text, x + (atRight ? 4 : -4), place.memory + 8);
    });
    if (!chosen || chosen.plot !== this || !chosen.box) return;
    const y = this.rows[chosen.row].lanes.get(chosen.box[LANE]);
    if (y === undefined) return;
    pen.lineWidth = 2;
    pen.strokeStyle = theme.ink;
    pen.strokeRect(this.x(chosen.box[START]), y, Math.max(2, (chosen.box[END] - chosen.box[START]) * this.scale),
      laneHeight(chosen.box[LANE]));
  }

  // What stands at a point of the picture: its row, lane and box, or its memory.
  at(x, y) {
    if (x < left || x > left + this.width) return null;
    const seconds = this.seconds(x);
    for (let row = 0; row < this.rows.length; ++row) {
      const place = this.rows[row];
      for (const [lane, top] of place.lanes) {
        if (y < top - 1 || y > top + laneHeight(lane) + 1) continue;
        return {plot: this, row, lane, seconds, box: this.boxAt(row, lane, seconds)};
      }
      if (place.memory !== null && y >= place.memory && y <= place.memory + memoryHeight) {
        return {plot: this, row, lane: null, seconds, box: null};
      }
    }
    return null;
  }

  boxAt(row, lane, seconds) {
    const boxes = this.boxes[row][lane], near = 3 / this.scale;
    for (let i = lastBefore(boxes, START, seconds + near); i >= 0; --i) {
      const box = boxes[i];
      if (box[KIND] === RESHARD ? Math.abs(box[START] - seconds) <= near : box[START] <= seconds && seconds <= box[END]) {
        return box;
      }
      if (box[KIND] !== RESHARD && box[END] < seconds) break;
    }
    return null;
  }

  say(found, x, y) {
    const tip = document.getElementById("tip");
    for (const plot of plots) plot.cursor = undefined;
    chosen = found;
    if (found) {
      const row = this.variant.ranks[found.row], unit = this.variant.unit_time;
      let lines = [];
      if (found.box) {
        lines = boxText(this.variant, found.box);
      } else if (found.lane === 0) {
        const idle = row.idle.find(([start, end]) => start <= found.seconds && found.seconds <= end);
        if (idle) {
          lines = [data.idle[idle[2]].name, `${timeText(idle[0], unit)} to ${timeText(idle[1], unit)}: ` +
            timeText(idle[1] - idle[0], unit)];
          if (idle[3] !== null) lines.push(strings[idle[3]]);
        }
      }
      tip.textContent = [`rank ${row.rank}${row.name ? ", " + row.name + "," : ""} at ${timeText(found.seconds, unit)}`].concat(
        lines, memoryText(row, found.seconds)).join("\n");
      tip.hidden = false;
      tip.style.left = Math.max(0, Math.min(x + 14, innerWidth - tip.offsetWidth - 8)) + "px";
      tip.style.top = Math.max(0, Math.min(y + 14, innerHeight - tip.offsetHeight - 8)) + "px";
      for (const plot of plots) plot.cursor = found.seconds;
    } else {
      tip.hidden = true;
    }
    for (const plot of plots) plot.drawOver();
  }

  listen() {
    let held = null;
    const place = event => {
      const frame = this.element.getBoundingClientRect();
      return [event.clientX - frame.left, event.clientY - frame.top];
    };
    this.element.addEventListener("pointerdown", event => {
      held = {x: event.clientX, from: view.from, to: view.to};
      this.element.setPointerCapture(event.pointerId);
    });
    this.element.addEventListener("pointerup", () => { held = null; });
    this.element.addEventListener("pointermove", event => {
      if (held) {
        const moved = (held.x - event.clientX) / this.width * (held.to - held.from);
        return show(held.from + moved, held.to + moved);
      }
      this.say(this.at(...place(event)), event.clientX, event.clientY);
    });
    this.element.addEventListener("pointerleave", () => this.say(null));
    this.element.addEventListener("wheel", event => {
      const focused = document.activeElement === this.element;
      if (!event.ctrlKey && !event.metaKey && !event.shiftKey && !focused) return;
      event.preventDefault();
      const turn = event.deltaY || event.deltaX;
      if (event.shiftKey) return pan(Math.sign(turn) * 0.1);
      zoom(turn < 0 ? 0.8 : 1.25, (place(event)[0] - left) / this.width);
    }, {passive: false});
    this.element.addEventListener("keydown", event => this.key(event));
  }

  key(event) {
    const arrows = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]}[event.key];
    if (event.key === "+" || event.key === "=") zoom(0.8, 0.5);
    else if (event.key === "-") zoom(1.25, 0.5);
    else if (event.key === "0") show(0, 1);
    else if (event.key === "Escape") this.say(null);
    else if (arrows && event.shiftKey) pan(arrows[0] * 0.1);
    else if (arrows) this.step(...arrows);
    else return;
    event.preventDefault();
  }

  // To the next box of the lane, or to the nearest one of the next lane that has any.
  step(along, across) {
    const lanes = [];
    this.rows.forEach((place, row) => place.lanes.forEach((_, lane) => {
      if (this.boxes[row][lane].length > 0) lanes.push({row, lane});
    }));
    if (lanes.length === 0) return;
    const now = chosen && chosen.plot === this && chosen.box ? chosen : null;
    let target = lanes[0], place = 0;
    if (now) {
      const from = lanes.findIndex(({row, lane}) => row === now.row && lane === now.box[LANE]);
      target = lanes[Math.max(0, Math.min(lanes.length - 1, from + across))];
      const boxes = this.boxes[target.row][target.lane];
      place = across === 0 ? boxes.indexOf(now.box) + along : lastBefore(boxes, START, now.box[START]);
    }
    const boxes = this.boxes[target.row][target.lane];
    const box = boxes[Math.max(0, Math.min(boxes.length - 1, place))];
    const middle = (box[START] + box[END]) / 2 / this.length;
    if (middle < view.from || middle > view.to) {
      const half = (view.to - view.from) / 2;
      show(middle - half, middle + half);
    }
    this.choose(target.row, box);
  }

  choose(row, box, seconds = (box[START] + box[END]) / 2) {
    const frame = this.element.getBoundingClientRect();
    this.say({plot: this, row, lane: box[LANE], seconds, box}, frame.left + this.x(box[END]),
      frame.top + this.rows[row].lanes.get(box[LANE]) + laneHeight(box[LANE]));
  }
}
