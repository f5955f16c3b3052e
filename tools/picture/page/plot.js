// One picture on a page: drawing, pointing and keys.

const patterns = new Map();
// White and black of a picture are the page's own.
function fill(context, paint) {
  const own = {"#ffffff": theme.page, "#000000": theme.ink}[paint.colour], colour = own || paint.colour;
  if (!paint.strokes) return colour;
  const name = colour + paint.strokes + paint.strength, ratio = devicePixelRatio || 1;
  if (!patterns.has(name)) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = Math.round(6 * ratio);
    const pen = tile.getContext("2d");
    pen.scale(tile.width / 6, tile.height / 6);
    pen.fillStyle = colour;
    pen.fillRect(0, 0, 6, 6);
    pen.globalAlpha = paint.strength;
    pen.strokeStyle = own ? theme.ink : "#000";
    pen.lineWidth = 1.3;
    pen.stroke(new Path2D(paint.strokes));
    const pattern = context.createPattern(tile, "repeat");
    pattern.setTransform(new DOMMatrix().scale(6 / tile.width));
    patterns.set(name, pattern);
  }
  return patterns.get(name);
}

// The colours of the page, which follow the system's scheme; asking for one is too slow to do it for each box.
const theme = {};
function readTheme() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["page", "ink", "dim", "lane", "rule"]) theme[name] = style.getPropertyValue("--" + name).trim();
}

class Plot {
  constructor(variant, section) {
    this.variant = variant;
    this.element = make(section, "div", "", "plot");
    this.element.tabIndex = 0;
    this.element.setAttribute("role", "img");
    this.element.setAttribute("aria-label", `timeline of ${variant.title}; arrow keys choose a box`);
    this.base = make(this.element, "canvas");
    this.over = make(this.element, "canvas");
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
    this.lanes = this.variant.lanes.filter(lane => !view.hidden.has(lane.group));
    const apart = new Set(this.lanes.map(lane => lane.group)).size > 1 ? rankGap : 0;
    let rank = null;
    for (const lane of this.variant.lanes) {
      lane.y = null;
      if (view.hidden.has(lane.group)) continue;
      const above = rank;
      rank = this.variant.rows[lane.row].rank;
      if (above !== null && rank !== above) y += apart;
      lane.y = y;
      y += lane.height + lane.gap;
    }
    y += apart;
    this.height = y;
    this.element.style.height = y + "px";
    for (const canvas of [this.base, this.over]) sized(canvas, left + this.width + right, y);
  }

  draw() {
    this.layout();
    const pen = this.pen = this.base.getContext("2d");
    pen.textBaseline = "middle";
    this.drawAxis();
    for (const lane of this.lanes) this.drawName(lane);
    pen.save();
    pen.beginPath();
    pen.rect(left, 0, this.width, this.height);
    pen.clip();
    for (const lane of this.lanes) lane.group === "memory" ? this.drawMemory(lane) : this.drawLane(lane);
    if (view.critical) this.drawLinks();
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

  drawName(lane) {
    const pen = this.pen, memory = lane.group === "memory";
    pen.textAlign = "right";
    pen.fillStyle = theme.lane;
    if (!memory) pen.fillRect(left, lane.y, Math.max(0, Math.min(this.width, this.x(this.variant.seconds) - left)), lane.height);
    pen.fillStyle = theme.ink;
    pen.font = (lane.group === "compute" ? "bold 11px" : "9px") + " DejaVu Sans, Verdana, sans-serif";
    pen.fillText(lane.name, left - 6, lane.y + (memory ? lane.height - 6 : lane.height / 2));
    if (memory) pen.fillText(this.variant.rows[lane.row].peak, left - 6, lane.y + 8);
  }

  // Index of the first entry that can be seen.
  first(entries) {
    return Math.max(0, lastBefore(entries, this.from));
  }

  drawLane({boxes, labels, group, y, height}) {
    const pen = this.pen, end = this.seconds(left + this.width);
    let drawnTo = -Infinity, first = this.first(boxes);
    while (first > 0 && boxes[first][FLAGS] & MARK) --first;  // a mark may stand in a box that began before it
    for (let i = first; i < boxes.length && boxes[i][START] <= end; ++i) {
      const box = boxes[i], x = this.x(box[START]), width = (box[END] - box[START]) * this.scale;
      pen.fillStyle = theme.ink;
      if (box[FLAGS] & MARK) pen.fillRect(x - 0.6, y - 1, 1.2, height + 2);
      if (box[FLAGS] & MARK || x + width < drawnTo + 0.3) continue;  // nothing of it would be seen
      drawnTo = x + width;
      pen.fillStyle = fill(pen, this.variant.paints[box[PAINT]]);
      pen.fillRect(x, y, Math.max(width - (width > 3 ? 0.8 : 0), 0.5), height);
      pen.fillStyle = theme.ink;
      if (view.critical && box[FLAGS] & CRITICAL) pen.fillRect(x, y + height - 3, width, 3);
    }
    pen.font = (group === "compute" ? 11 : 8) + "px DejaVu Sans, Verdana, sans-serif";
    for (let i = this.first(labels); i < labels.length && labels[i][START] <= end; ++i) this.drawLabel(labels[i], y + height / 2);
  }

  // In the middle of the visible part, where there is room.
  drawLabel(label, y) {
    const pen = this.pen, from = Math.max(left, this.x(label[START])), to = Math.min(left + this.width, this.x(label[END]));
    if (to - from <= 8 || pen.measureText(label[TEXT]).width + 2 > to - from) return;
    const paint = this.variant.paints[label[PAINT]];
    pen.textAlign = "center";
    pen.lineJoin = "round";
    pen.lineWidth = 2.4;
    pen.strokeStyle = paint.colour;
    pen.fillStyle = paint.text;
    pen.strokeText(label[TEXT], (from + to) / 2, y);
    pen.fillText(label[TEXT], (from + to) / 2, y);
  }

  drawMemory({row, y, height}) {
    const pen = this.pen, memory = this.variant.rows[row].memory, ground = y + height, perByte = (height - 4) / this.peak;
    const first = this.first(memory), end = this.seconds(left + this.width);
    for (let bucket = data.buckets.length; bucket >= 1; --bucket) {
      pen.fillStyle = fill(pen, this.variant.paints[this.variant.first_bucket + bucket - 1]);
      pen.beginPath();
      pen.moveTo(this.x(memory[first][0]), ground);
      let i = first, at = ground;
      for (; i < memory.length && memory[i][0] <= end; ++i) {
        pen.lineTo(this.x(memory[i][0]), at);
        at = ground - perByte * total(memory[i], bucket);
        pen.lineTo(this.x(memory[i][0]), at);
      }
      const last = this.x(i < memory.length ? memory[i][0] : this.variant.seconds);
      pen.lineTo(last, at);
      pen.lineTo(last, ground);
      pen.fill();
      pen.lineWidth = 0.7;
      pen.strokeStyle = theme.page;
      pen.stroke();
    }
    pen.fillStyle = theme.dim;
    pen.fillRect(left, ground, this.width, 0.8);
  }

  drawLinks() {
    const pen = this.pen;
    pen.strokeStyle = theme.ink;
    pen.globalAlpha = 0.6;
    pen.lineWidth = 1.1;
    pen.beginPath();
    for (const [fromLane, from, toLane, to] of this.variant.links) {
      const lanes = [this.variant.lanes[fromLane], this.variant.lanes[toLane]];
      if (lanes.some(lane => lane.y === null)) continue;
      pen.moveTo(this.x(from), lanes[0].y + lanes[0].height - 1.5);
      pen.lineTo(this.x(to), lanes[1].y + lanes[1].height - 1.5);
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
    for (const lane of this.lanes) {
      const sample = lane.group === "memory" && sampleAt(this.variant.rows[lane.row].memory, this.cursor);
      if (!sample) continue;
      pen.lineWidth = 3;
      pen.strokeStyle = theme.page;
      pen.strokeText(bytesText(total(sample)), x + (atRight ? 4 : -4), lane.y + 8);
      pen.fillText(bytesText(total(sample)), x + (atRight ? 4 : -4), lane.y + 8);
    }
    if (!chosen || chosen.plot !== this || !chosen.box || chosen.lane.y === null) return;
    pen.lineWidth = 2;
    pen.strokeStyle = theme.ink;
    pen.strokeRect(this.x(chosen.box[START]), chosen.lane.y, Math.max(2, (chosen.box[END] - chosen.box[START]) * this.scale),
      chosen.lane.height);
  }

  // What stands at a point of the picture, or null.
  at(x, y) {
    const lane = this.lanes.find(lane => y >= lane.y - 1 && y <= lane.y + lane.height + 1), seconds = this.seconds(x);
    return lane && x >= left && x <= left + this.width ? {plot: this, lane, seconds, box: this.boxAt(lane, seconds)} : null;
  }

  boxAt({boxes}, seconds) {
    const near = 3 / this.scale;
    for (let i = lastBefore(boxes, seconds + near); i >= 0; --i) {
      const box = boxes[i], mark = box[FLAGS] & MARK;
      if (mark ? Math.abs(box[START] - seconds) <= near : box[START] <= seconds && seconds <= box[END]) return box;
      if (!mark && box[END] < seconds) break;
    }
    return null;
  }

  // Of a point, or of none.
  say(found, x, y) {
    const tip = document.getElementById("tip");
    chosen = found;
    tip.hidden = !found;
    if (found) {
      tip.textContent = pointText(found);
      tip.style.left = Math.max(0, Math.min(x + 14, innerWidth - tip.offsetWidth - 8)) + "px";
      tip.style.top = Math.max(0, Math.min(y + 14, innerHeight - tip.offsetHeight - 8)) + "px";
    }
    for (const plot of plots) {
      plot.cursor = found ? found.seconds : undefined;
      plot.drawOver();
    }
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

  // To the next action of the lane, or to the nearest one of the next lane that has any.
  step(along, across) {
    const actions = lane => lane.boxes.filter(box => !(box[FLAGS] & IDLE)), lanes = this.lanes.filter(lane => actions(lane).length > 0);
    if (lanes.length === 0) return;
    const now = chosen && chosen.plot === this && chosen.box ? chosen : null;
    const from = now ? lanes.indexOf(now.lane) : 0, lane = lanes[Math.max(0, Math.min(lanes.length - 1, from + (now ? across : 0)))];
    const boxes = actions(lane), near = now ? lastBefore(boxes, now.box[START]) + (across === 0 ? along : 0) : 0;
    const box = boxes[Math.max(0, Math.min(boxes.length - 1, near))], seconds = (box[START] + box[END]) / 2;
    const middle = seconds / this.length, half = (view.to - view.from) / 2;
    if (middle < view.from || middle > view.to) show(middle - half, middle + half);
    const frame = this.element.getBoundingClientRect();
    this.say({plot: this, lane, seconds, box}, frame.left + this.x(box[END]), frame.top + lane.y + lane.height);
  }
}
