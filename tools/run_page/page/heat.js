// The load of experts as a heat map: a row for each block, a column for each stretch of steps.
const heats = [];
const heatLeft = 66, heatRow = 22, heatAxis = 22;

class Heat {
  // `field` of `run`; `even` is the value of an even load, and `worst` the most uneven one on the scale.
  constructor(parent, run, field, {label, even, worst}) {
    this.run = run;
    this.experts = runs[run].experts;
    this.rows = this.experts.fields[field].rows;
    this.even = even;
    this.worst = worst;
    this.element = make(parent, "div", "", "heat");
    this.canvas = make(this.element, "canvas");
    this.canvas.setAttribute("role", "img");
    this.canvas.setAttribute("aria-label", `${label} of ${runs[run].name}, by block and step; the table of this section has the key figures`);
    const scale = make(parent, "div", "", "legend"), entry = make(scale, "span", significant(even, 3));
    this.scale = make(entry, "i", "", "scale");
    entry.append(significant(worst, 3));
    this.readout = make(parent, "p", "", "readout");
    this.canvas.addEventListener("pointermove", event => this.say(event));
    this.canvas.addEventListener("pointerleave", () => { this.readout.textContent = ""; });
    heats.push(this);
  }

  get edges() { return this.experts[axis]; }
  x(place) {
    const edges = this.edges, first = edges[0], last = edges[edges.length - 1];
    return heatLeft + (place - first) / (last - first || 1) * (this.width - heatLeft);
  }
  strength(value) { return Math.max(0, Math.min(1, (value - this.even) / (this.worst - this.even || 1))); }

  draw() {
    const colours = {accent: accent(this.run), lane: colour("--lane"), ink: colour("--ink"), dim: colour("--dim")};
    this.scale.style.background = `linear-gradient(to right, ${colours.lane}, ${colours.accent})`;
    this.width = this.element.clientWidth;
    const height = this.rows.length * heatRow + heatAxis, pen = sized(this.canvas, this.width, height);
    pen.font = "12px system-ui, sans-serif";
    pen.textBaseline = "middle";
    this.rows.forEach((row, r) => {
      const y = r * heatRow;
      pen.fillStyle = colours.ink;
      pen.textAlign = "right";
      pen.fillText("block " + this.experts.blocks[r], heatLeft - 8, y + heatRow / 2);
      pen.fillStyle = colours.lane;
      pen.fillRect(heatLeft, y + 1, this.width - heatLeft, heatRow - 2);
      pen.fillStyle = colours.accent;
      row.forEach((value, i) => {
        if (value === null) return;
        const from = this.x(this.edges[i]), to = this.x(this.edges[i + 1]);
        pen.globalAlpha = this.strength(value);
        pen.fillRect(from, y + 1, Math.max(to - from, 0.5), heatRow - 2);
      });
      pen.globalAlpha = 1;
    });
    pen.fillStyle = colours.dim;
    const edges = this.edges, first = edges[0], last = edges[edges.length - 1], ticks = this.width > 700 ? 6 : 2;
    for (let tick = 0; tick <= ticks; ++tick) {
      const place = first + (last - first) * tick / ticks;
      pen.textAlign = tick === 0 ? "left" : tick === ticks ? "right" : "center";
      pen.fillText(axes[axis].text(place) + (tick === ticks ? " " + (axis === "seconds" ? "" : axes[axis].name) : ""), this.x(place),
        height - heatAxis / 2);
    }
  }

  say(event) {
    const frame = this.canvas.getBoundingClientRect(), x = event.clientX - frame.left;
    const r = Math.floor((event.clientY - frame.top) / heatRow), i = this.edges.findIndex(edge => this.x(edge) > x) - 1;
    const value = this.rows[r] && i >= 0 ? this.rows[r][i] : undefined;
    if (value === undefined) return this.readout.textContent = "";
    const steps = this.experts.step;
    const place = steps[i] + 1 === steps[i + 1] ? `step ${steps[i + 1]}` : `steps ${steps[i] + 1} to ${steps[i + 1]}`;
    this.readout.textContent = `block ${this.experts.blocks[r]}, ${place}: ${significant(value)}`;
  }
}
