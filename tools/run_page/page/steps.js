// Steps, differences, samples, configurations; then the page as a whole.
function stepTable(parent, lanes) {
  const kinds = [["compute", "compute"], ["gathers", "waits for gathers"], ["reductions", "waits for reductions"],
    ["rows", "waits for rows of experts"], ["host", "waits for host memory"], ["bubble", "bubble"], ["update", "norm and optimizer"]];
  const measured = lanes.measured !== null;
  const rows = [["step", timeText(lanes.planned_seconds, false), measured ? timeText(lanes.measured_seconds, false) : "–"]];
  for (const rank of lanes.ranks) {
    for (const [key, name] of kinds) {
      const times = [rank.planned[key], rank.measured ? rank.measured[key] : 0];
      if (Math.max(...times) <= 0) continue;
      rows.push([`rank ${rank.rank}: ${name}`, timeText(times[0], false), rank.measured ? timeText(times[1], false) : "–"]);
    }
  }
  const details = make(parent, "details");
  make(details, "summary", `Times of the step by rank: planned ${rows[0][1]}` + (measured ? `, measured ${rows[0][2]}` : ""));
  plainTable(details, "", [["seconds of", true], ["planned", false], ["measured", false]], rows);
}

function addSteps() {
  view.common = false;
  if (data.variants.length > 0) fillControls(); else document.querySelector("#steps .help").remove();
  runs.forEach((run, r) => {
    const part = headed(area("steps"), r), lanes = run.lanes;
    if (!lanes) return make(part, "p", `The step could not be planned: ${run.unplanned}`, "note");
    let text = `Planned: costs ${lanes.costs}. `;
    if (lanes.measured !== null) {
      text += `Measured: step ${lanes.measured}, the median of the ${lanes.recorded.length} recorded.`;
    } else if (run.unmeasured) {
      text += `The recording could not be used: ${run.unmeasured}`;
    } else {
      text += "Nothing is measured: a run records the steps from profiling.first_step to profiling.last_step.";
    }
    make(part, "p", text, "note");
    const variant = data.variants[lanes.variant];
    legendOf(variant, part);
    plots.push(new Plot(variant, part));
    stepTable(part, lanes);
  });
  return true;
}

function addDifferences() {
  if (runs.length < 2) return false;
  if (report.differences.length === 0) {
    make(tables("differences"), "p", "There are none besides names and directories.", "note");
    return true;
  }
  runTable(tables("differences"), "Keys with different values; a key that follows another one is left out",
    report.differences.map(difference => [difference.key, run => difference.values[runs.indexOf(run)]]));
  return true;
}

function addSamples() {
  const told = runs.flatMap((run, r) => run.samples.length > 0 ? [r] : []);
  if (told.length === 0) return false;
  document.querySelector("#samples .note").textContent = "Texts from each kept checkpoint, with the prompt in front.";
  for (const r of told) {
    const part = headed(area("samples"), r);
    for (const {step, texts} of runs[r].samples) {
      make(part, "h3", `Step ${step}`);
      for (const text of texts) {
        const quote = make(make(part, "blockquote"), "pre");
        make(quote, "span", report.prompt, "prompt");
        quote.append(text);
      }
    }
  }
  return true;
}

function addConfigurations() {
  for (const run of runs) {
    const details = make(area("configurations"), "details");
    make(details, "summary", run.name);
    make(details, "pre", run.config);
  }
  return true;
}

function drawReport() {
  for (const curve of curves) curve.draw();
  for (const heat of heats) heat.draw();
}

function addContents(ids) {
  for (const id of ids) {
    make(document.getElementById("contents"), "a", document.querySelector(`#${id} h2`).textContent).href = "#" + id;
  }
}

document.querySelector("h1").textContent = report.title;
document.getElementById("made").textContent = `Made by weft ${report.version}. A curve has at most ${report.most_points} points: of a longer one, the least and the largest value of each stretch, so that a spike of one step stays.`;
readTheme();
addAxisSwitch();
const sections = [["runs", () => { addRuns(); return true; }], ["losses", addLosses], ["throughput", addThroughput],
  ["optimizer", addOptimizer], ["memory", addMemory], ["experts", addExperts], ["steps", addSteps], ["differences", addDifferences],
  ["samples", addSamples], ["configurations", addConfigurations]];
addContents(sections.filter(([id, add]) => add() || document.getElementById(id).remove()).map(([id]) => id));
drawReport();
drawAll();
let drawnWidth = document.body.clientWidth;
// Another width; dygraphs follows by itself.
new ResizeObserver(() => {
  if (document.body.clientWidth === drawnWidth) return;
  drawnWidth = document.body.clientWidth;
  patterns.clear();
  for (const heat of heats) heat.draw();
  drawAll();
}).observe(document.body);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { drawReport(); drawAll(); });
