// The sections of the page, each from the runs that have its data.
const area = id => document.querySelector(`#${id} .plots`);
const tables = id => document.querySelector(`#${id} .tables`);
// A heading for a run's own plot, where there are several runs.
function headed(parent, run) {
  const part = make(parent, "div");
  if (runs.length > 1) {
    const heading = make(part, "h3");
    swatch(heading, `var(${accentName(run)})`);
    heading.append(runs[run].name);
  }
  return part;
}
const figure = (key, text) => run => run.figures[key] === null ? "–" : text(run.figures[key]);

function addRuns() {
  const names = [...new Set(runs.flatMap(run => run.facts.map(([name]) => name)))];
  const fact = name => run => (run.facts.find(([other]) => other === name) || [name, "–"])[1];
  runTable(tables("runs"), runs.length > 1 ? "A colour is a run, in every plot" : "", [
    ...names.map(name => [name, fact(name)]),
    ["tokens", figure("tokens", shortCount)], ["time in steps", figure("seconds", duration)],
    ["last training loss", figure("loss_last", significant)], ["least validation loss", figure("validation_least", significant)],
    ["tokens a second", figure("tokens_per_second", shortCount)], ["peak memory of a rank", figure("peak_bytes", sizeText)]]);
}

function addLosses() {
  const train = seriesOf("loss"), held = seriesOf("validation.loss", {dashed: true});
  const named = [...train, ...held].map(one => ({...one, name: one.name + (one.dashed ? ", validation" : ", training")}));
  if (named.length === 0) return false;
  const marks = runs.flatMap((run, r) => run.spikes.step.length > 0 ? [{run: r, places: run.spikes}] : []);
  legendOfRuns(area("losses"), named);
  new Curves(area("losses"), named, {label: "Loss", text: value => significant(value, 4), marks});
  addPredictors();
  const at = (key, step) => run => run.figures[key] === null ? "–" :
    `${significant(run.figures[key])} at step ${run.figures[step]}`;
  runTable(tables("losses"), "Nats a token", [
    ["training, first step", figure("loss_first", significant)], ["training, last step", figure("loss_last", significant)],
    ["training, least", at("loss_least", "loss_least_step")], ["validation, last", figure("validation_last", significant)],
    ["validation, least", at("validation_least", "validation_least_step")],
    ["perplexity of the least", figure("validation_least", loss => significant(Math.exp(loss)))],
    ["spikes", figure("spikes", count => count === 0 ? "–" : String(count))]]);
  if (held.length === 0) document.querySelector(".of-validation").remove();
  if (marks.length === 0) document.querySelector(".of-spikes").remove();
  return true;
}

// The losses of predictors, which stand above the loss by as much as tokens further on are harder to tell.
function addPredictors() {
  const named = [];
  for (let predictor = 1, series; (series = seriesOf(`mtp_losses.${predictor}`, {dashed: predictor > 1})).length > 0; ++predictor) {
    named.push(...series.map(one => ({...one, name: `${one.name}, predictor ${predictor}`})));
  }
  if (named.length === 0) return;
  const part = make(area("losses"), "div");
  make(part, "h3", "Loss of predictors");
  legendOfRuns(part, named);
  new Curves(part, named, {label: "Loss of predictors", text: value => significant(value, 4)});
}

function addThroughput() {
  const fields = [["tokens_per_second", "Tokens a second", shortCount], ["tflops", "TFLOP/s of a device", value => significant(value, 4)],
    ["mfu", "Model FLOP utilisation", value => significant(value, 4)], ["data_seconds", "Seconds reading data", value => timeText(value, false)]];
  const told = fields.filter(([field]) => seriesOf(field).length > 0);
  if (told.length === 0) return false;
  const parent = area("throughput");
  legendOfRuns(parent, seriesOf(told[0][0]));
  const side = make(parent, "div", "", told.length > 1 ? "side" : "");
  for (const [field, label, text] of told) {
    const part = make(side, "div");
    if (told.length > 1) make(part, "h3", label);
    new Curves(part, seriesOf(field), {label, text, from0: true, low: true});
  }
  runTable(tables("throughput"), "Medians over the steps", [
    ...fields.map(([field, label, text]) => [label, figure(field, text)]), ["Time of all steps", figure("seconds", duration)]]);
  return true;
}

function addOptimizer() {
  const fields = [["grad_norm", "Gradient norm"], ["lr", "Learning rate"]].filter(([field]) => seriesOf(field).length > 0);
  if (fields.length === 0) return false;
  legendOfRuns(area("optimizer"), seriesOf(fields[0][0]));
  const side = make(area("optimizer"), "div", "", "side");
  for (const [field, label] of fields) {
    const part = make(side, "div");
    make(part, "h3", label);
    new Curves(part, seriesOf(field), {label, text: value => significant(value, 3), from0: true, low: true});
  }
  runTable(tables("optimizer"), "", [["median gradient norm", figure("grad_norm", significant)],
    ["last learning rate", figure("lr_last", significant)]]);
  return true;
}

function addMemory() {
  runs.forEach((run, r) => {
    const memory = run.memory;
    if (!memory) return;
    const part = headed(area("memory"), r), both = make(part, "div", "", "beside"), left = make(both, "div");
    // dygraphs stacks its last series lowest; colours are those of memory in the pictures of steps, and shades of them.
    const layers = memory.buckets.filter(bucket => bucket.bytes.some(bytes => bytes > 0)).map(bucket =>
      ({run: r, name: bucket.name, points: {...memory, value: bucket.bytes}, colour: bucketColour(bucket.name)})).reverse();
    const sums = memory.step.map((_, at) => memory.buckets.reduce((sum, bucket) => sum + (bucket.bytes[at] || 0), 0));
    const most = Math.max(memory.planned || 0, ...sums);
    new Curves(left, layers, {label: `Memory by bucket of ${run.name}`, text: sizeText, stacked: true, from0: true, plan: memory.planned,
      range: [0, 1.12 * most]});
    const share = (bytes, whole) => cell => {
      cell.textContent = sizeText(bytes);
      const bar = make(cell, "i", "", "bar");
      bar.style.width = `${whole > 0 ? 100 * (bytes || 0) / whole : 0}%`;
    };
    const whole = Math.max(...memory.buckets.map(bucket => Math.max(bucket.measured, bucket.planned || 0)));
    const rows = memory.buckets.map(bucket => [cell => {
      swatch(cell, `var(${bucketColour(bucket.name)})`, "area");
      cell.append(bucket.name);
    }, memory.planned === null ? "–" : share(bucket.planned, whole), share(bucket.measured, whole)]);
    rows.push(["sum", sizeText(memory.planned), sizeText(run.figures.peak_bytes)]);
    plainTable(both, `Plan, and the highest peak, of step ${memory.highest_step}`,
      [["bucket", true], ["plan", false], ["measured", false]], rows);
    if (memory.planned === null) make(part, "p", `There is no plan: ${run.unplanned}`, "note");
  });
  return area("memory").childElementCount > 0;
}
const bucketColour = name => "--bucket-" + name.replaceAll(" ", "-");

function addExperts() {
  const fields = [["max_over_mean", "Fullest expert over the mean", true], ["entropy", "Entropy of the load over that of equal shares", false]];
  for (const [field, label, upwards] of fields) {
    const told = runs.flatMap((run, r) => run.experts && run.experts.fields[field] ? [r] : []);
    if (told.length === 0) continue;
    // One scale for all runs. An even load is 1 in both.
    const values = told.flatMap(r => runs[r].experts.fields[field].rows.flat()).filter(value => value !== null);
    const even = 1, worst = values.reduce((worst, value) => upwards ? Math.max(worst, value) : Math.min(worst, value), upwards ? 1.01 : 0.99);
    for (const r of told) {
      const part = headed(area("experts"), r), experts = runs[r].experts;
      if (field !== "max_over_mean") make(part, "h3", label);
      const both = make(part, "div", "", "beside");
      new Heat(make(both, "div"), r, field, {label, even, worst});
      const extreme = row => row.reduce((most, value) => value === null ? most : most === null ? value :
        upwards ? Math.max(most, value) : Math.min(most, value), null);
      plainTable(both, label, [["block", true], ["most uneven", false], ["last step", false]], experts.blocks.map((block, b) =>
        [String(block), significant(extreme(experts.fields[field].rows[b]), 4), significant(experts.fields[field].last[b], 4)]));
    }
  }
  return area("experts").childElementCount > 0;
}
