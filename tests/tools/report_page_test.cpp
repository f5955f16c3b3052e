// The page of weft report in a browser, at three widths in both schemes. It runs without a fault or a request, fits,
// has drawn every plot, and says the key figures.
#ifdef WEFT_HAVE_DYGRAPHS
#include <fmt/format.h>

#include <filesystem>
#include <string>

#include "tests/tools/report_page.h"

namespace weft {
namespace {

// Stands in front of the page's scripts.
constexpr const char* listener = R"js(<script>
const faults = [];
addEventListener("error", event => faults.push("error: " + event.message));
addEventListener("securitypolicyviolation", event => faults.push("policy: " + event.violatedDirective + " " + event.blockedURI));
for (const name of ["error", "warn"]) console[name] = (...words) => faults.push(name + ": " + words.join(" "));
</script>)js";

constexpr const char* reader = R"js(
const seen = {faults, width: innerWidth, dark: matchMedia("(prefers-color-scheme: dark)").matches};
seen.scroll = document.documentElement.scrollWidth;
seen.wide = [...document.body.querySelectorAll("*")].filter(element =>
  !element.closest(".scroll") && !element.closest("[hidden]") && element.getBoundingClientRect().right > innerWidth + 0.5)
  .map(element => element.tagName + "." + element.className).filter(name => !name.startsWith("A.skip"));
// Most pixels that a canvas of the element has drawn and that count.
const pixels = (element, counts = () => true) => Math.max(0, ...[...element.querySelectorAll("canvas")].map(canvas => {
  const copy = document.createElement("canvas");
  copy.width = canvas.width;
  copy.height = canvas.height;
  const pen = copy.getContext("2d", {willReadFrequently: true});
  pen.drawImage(canvas, 0, 0);
  const points = pen.getImageData(0, 0, copy.width, copy.height).data;
  let count = 0;
  for (let i = 0; i < points.length; i += 4) {
    if (points[i + 3] > 0 && counts([points[i], points[i + 1], points[i + 2]])) ++count;
  }
  return count;
}));
const near = (one, other) => one.every((value, c) => Math.abs(other[c] - value) < 12);
// On the way from one colour to another, a tenth of it at least.
const between = (from, to) => point => {
  const along = to.map((value, c) => value - from[c]), length = along.reduce((sum, value) => sum + value * value, 0);
  const part = along.reduce((sum, value, c) => sum + value * (point[c] - from[c]), 0) / length;
  return part > 0.1 && near(point, from.map((value, c) => value + part * along[c]));
};
const rgb = name => {
  const hex = getComputedStyle(document.documentElement).getPropertyValue(name).trim().slice(1);
  const whole = hex.length === 3 ? [...hex].map(digit => digit + digit).join("") : hex;
  return [0, 2, 4].map(at => parseInt(whole.slice(at, at + 2), 16));
};
const light = ([r, g, b]) => [[r, 0.2126], [g, 0.7152], [b, 0.0722]].reduce((sum, [value, weight]) => {
  const part = value / 255;
  return sum + weight * (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
}, 0);
const contrast = (one, other) => {
  const [low, high] = [light(rgb(one)), light(rgb(other))].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
};
seen.ink = Math.min(...["--ink", "--dim"].flatMap(ink => [contrast(ink, "--panel"), contrast(ink, "--page")]));
seen.accents = Math.min(...Array.from({length: RUN_COLOURS}, (_, run) => contrast(`--run-${run}`, "--panel")));
seen.curves = [...document.querySelectorAll(".curve")].map(element => pixels(element));
seen.heats = [...document.querySelectorAll(".heat")].map(element => pixels(element));
seen.plots = [...document.querySelectorAll(".plot")].map(element => pixels(element));
seen.accent = runs.map((run, r) => [
  pixels(document.querySelector("#losses .curve"), point => near(point, rgb(`--run-${r}`))),
  pixels(document.querySelectorAll("#experts .heat")[r], between(rgb("--lane"), rgb(`--run-${r}`)))]);
seen.unnamed = [...document.querySelectorAll(".curve, .heat canvas, .plot")].filter(element =>
  element.getAttribute("role") !== "img" || !element.getAttribute("aria-label")).length;
seen.headings = [...document.querySelectorAll("h2")].map(element => element.textContent);
seen.links = [...document.querySelectorAll("nav a")].map(element => document.querySelector(element.getAttribute("href")) !== null);
seen.title = document.querySelector("h1").textContent;
seen.losses = document.querySelector("#losses .tables").textContent;
seen.memory = document.querySelector("#memory").textContent;
seen.steps = document.querySelector("#steps").textContent;
seen.differences = document.querySelector("#differences .tables").textContent;
seen.samples = document.querySelector("#samples").textContent;
seen.requests = performance.getEntriesByType("resource").map(entry => entry.name);
seen.hacked = window.hacked === undefined ? null : window.hacked;
// What a reader does.
seen.tokens = curves[0].graph.xAxisExtremes();
document.querySelector("input[value=step]").click();
seen.step = curves[0].graph.xAxisExtremes();
const point = (element, type, x, y) => {
  const frame = element.getBoundingClientRect();
  const more = {clientX: frame.left + x, clientY: frame.top + y, bubbles: true, pointerId: 1};
  element.dispatchEvent(type.startsWith("pointer") ? new PointerEvent(type, more) : new MouseEvent(type, more));
};
for (const canvas of curves[0].element.querySelectorAll("canvas")) point(canvas, "mousemove", canvas.clientWidth / 2, 60);
seen.readout = curves[0].readout.textContent;
point(heats[0].canvas, "pointermove", heatLeft + 3, 5);
seen.heat = heats[0].readout.textContent;
const plot = plots[0], of = row => plot.lanes.filter(lane => lane.row === row);
const box = of(1)[0].boxes.find(box => !(box[FLAGS] & (MARK | IDLE)));
point(plot.element, "pointermove", plot.x((box[START] + box[END]) / 2), of(1)[0].y + 5);
seen.tip = document.getElementById("tip").textContent;
seen.together = [0, 1].map(row => of(row)[1].y);
seen.lane = of(1)[0].y - of(0)[0].y;
document.documentElement.dataset.seen = JSON.stringify(seen);
)js";

class ReportPage : public ReportedRuns {
 protected:
  void look_at(std::string page, int width, bool dark) {
    const std::size_t title = page.find("<title>");
    page.insert(title, listener);
    seen = visit(page, reader, "", width, 1200, dark);
  }
  bool says(const char* part, const std::string& words) const {
    return seen[part].is_string() && seen[part].get<std::string>().find(words) != std::string::npos;
  }
  nlohmann::json seen;
};

TEST_F(ReportPage, ShowsTwoRunsAtEachWidthInBothSchemes) {
  if (browser().empty()) GTEST_SKIP() << "there is no Chromium here to look at the page with";
  train("--profiling.first_step=3 --profiling.last_step=4 --checkpoint.interval=3");
  const std::string hostile = "</script><script>window.hacked = 1</script><img src=x onerror='hacked=2'>";
  put("other.toml",
      fmt::format("include = [\"run.toml\"]\n[run]\nname = \"{}\"\ndirectory = \"out/other\"\nsteps = 4\n", hostile));
  const auto other = weft("train other.toml --optimizer.learning_rate=1e-4 --training.global_batch_size=16");
  ASSERT_EQ(other.exit_code, 0) << other.messages;
  const std::string page = page_of("out/tiny out/other --samples 1 --prompt '<b>warp' --max-tokens 3");
  const auto last = metrics("out/tiny").back();
  for (const int width : {420, 1200, 2400}) {
    for (const bool dark : {false, true}) {
      SCOPED_TRACE(fmt::format("{} pixels, {}", width, dark ? "dark" : "light"));
      look_at(page, width, dark);
      ASSERT_TRUE(seen.contains("faults"));
      EXPECT_EQ(seen["faults"], nlohmann::json::array());
      EXPECT_EQ(console.find("CONSOLE"), std::string::npos) << console;
      EXPECT_EQ(seen["requests"], nlohmann::json::array());
      EXPECT_TRUE(seen["hacked"].is_null());
      EXPECT_EQ(seen["title"], "tiny, " + hostile);

      EXPECT_EQ(seen["width"], width);
      EXPECT_EQ(seen["dark"], dark);
      EXPECT_LE(seen["scroll"], width);
      EXPECT_EQ(seen["wide"], nlohmann::json::array());
      EXPECT_GE(seen["ink"], 4.5);      // of text, as WCAG 2 asks
      EXPECT_GE(seen["accents"], 3.0);  // of graphics

      // Loss, throughput, operations, reading, norm, rate, and memory of each run; two heat maps and a step of each.
      EXPECT_EQ(seen["curves"].size(), 8u);
      EXPECT_EQ(seen["heats"].size(), 4u);
      EXPECT_EQ(seen["plots"].size(), 2u);
      for (const char* kind : {"curves", "heats", "plots"}) {
        for (const auto& pixels : seen[kind]) EXPECT_GT(pixels, 1000) << kind;
      }
      // A run has its colour in the curves and in the heat map.
      for (const auto& counts : seen["accent"]) {
        EXPECT_GT(counts[0], 50) << seen["accent"].dump();
        EXPECT_GT(counts[1], 50) << seen["accent"].dump();
      }
      EXPECT_EQ(seen["unnamed"], 0);
      EXPECT_EQ(seen["headings"], (nlohmann::json{"Runs", "Loss", "Throughput", "Gradient norm and learning rate",
                                                  "Memory", "Expert load", "The step, planned and measured",
                                                  "Differing keys", "Samples", "Configurations"}));
      for (const auto& leads : seen["links"]) EXPECT_TRUE(leads.get<bool>());

      EXPECT_TRUE(says("losses", fmt::format("{:.5g}", last["loss"].get<double>()))) << seen["losses"];
      EXPECT_TRUE(says("losses", fmt::format("{:.5g}", last["validation"]["loss"].get<double>()))) << seen["losses"];
      EXPECT_TRUE(says("memory", "sharded parameters"));
      EXPECT_TRUE(says("steps", "of the 2 recorded")) << seen["steps"];
      EXPECT_TRUE(says("steps", "profiling.first_step to profiling.last_step")) << seen["steps"];
      EXPECT_TRUE(says("differences", "training.global_batch_size816")) << seen["differences"];
      EXPECT_TRUE(says("samples", "<b>warp")) << seen["samples"];

      EXPECT_LT(seen["tokens"][0], 129);  // 128 tokens a step of the first run
      EXPECT_GE(seen["tokens"][1], 6 * 128);
      EXPECT_LT(seen["step"][1], 7.0);
      EXPECT_TRUE(says("readout", "steps ")) << seen["readout"];
      EXPECT_TRUE(says("heat", "block 1, step 1: ")) << seen["heat"];
      EXPECT_TRUE(says("tip", "rank 0, measured, at ")) << seen["tip"];
      EXPECT_EQ(seen["lane"], 25);  // the measured row touches the planned one, of 24 pixels
      EXPECT_GT(seen["together"][1], seen["together"][0]);
      EXPECT_LT(seen["together"][1].get<double>() - seen["together"][0].get<double>(), 16.0);
    }
  }
}

// Values that are not finite are a gap. A place where only another run has a value is none.
TEST_F(ReportPage, DrawsGapsAndConnectsTheRest) {
  if (browser().empty()) GTEST_SKIP() << "there is no Chromium here to look at the page with";
  train("--run.steps=1");
  nlohmann::json line = metrics("out/tiny").front();
  line.erase("validation");
  for (const char* name : {"tiny", "other"}) {
    const bool tiny = std::string(name) == "tiny";
    std::string lines;
    for (int step = 1; step <= (tiny ? 60 : 20); ++step) {
      line["step"] = step;
      line["tokens"] = tiny ? 100 : 300;
      line["loss"] = tiny ? 3.0 : 2.0;
      if (tiny && step > 20 && step < 40) line["loss"] = nullptr;
      lines += line.dump() + "\n";
    }
    std::filesystem::create_directories(folder_ / "out" / name);
    put(fmt::format("out/{}/config.toml", name), read("out/tiny/config.toml"));
    put(fmt::format("out/{}/metrics.jsonl", name), lines);
  }
  std::string page = page_of("out/tiny out/other");
  page.insert(page.find("<title>"), listener);
  seen = visit(page, R"js(
    const graph = curves[0].graph;
    const column = (tokens, run) => {
      const hex = accent(run).slice(1), wanted = [0, 2, 4].map(at => parseInt(hex.slice(at, at + 2), 16));
      return Math.max(...[...curves[0].element.querySelectorAll("canvas")].map(one => {
        const points = one.getContext("2d").getImageData(Math.round(graph.toDomXCoord(tokens)), 0, 1, one.height).data;
        let count = 0;
        for (let i = 0; i < points.length; i += 4) {
          count += points[i + 3] > 60 && wanted.every((value, c) => Math.abs(points[i + c] - value) < 12);
        }
        return count;
      }));
    };
    document.documentElement.dataset.seen = JSON.stringify({faults, before: column(1000, 0), gap: column(3000, 0),
      behind: column(5000, 0), other: [1000, 3050, 5000].map(tokens => column(tokens, 1))}))js",
               "", 1200, 900);
  EXPECT_EQ(seen["faults"], nlohmann::json::array());
  EXPECT_GT(seen["before"], 0);
  EXPECT_EQ(seen["gap"], 0);
  EXPECT_GT(seen["behind"], 0);
  for (const auto& count : seen["other"]) EXPECT_GT(count, 0) << seen["other"].dump();
}

// Rates, spikes, predictors and entropies are shown where a run writes them.
TEST_F(ReportPage, ShowsTheFieldsThatSomeRunsHave) {
  if (browser().empty()) GTEST_SKIP() << "there is no Chromium here to look at the page with";
  train();
  std::string lines;
  for (nlohmann::json line : metrics("out/tiny")) {
    line["tflops"] = 312.5;
    line["mfu"] = 0.375;
    line["data_seconds"] = 0.002;
    line["mtp_losses"] = {4.0, 4.5};
    if (line["step"] == 4) line["spike"] = {{"what", "loss"}, {"value", 9.0}, {"limit", 5.0}};
    line["moe"][0]["entropy"] = line["step"] == 3 ? 0.5 : 1.0;
    lines += line.dump() + "\n";
  }
  put("out/tiny/metrics.jsonl", lines);
  std::string page = page_of("out/tiny");
  page.insert(page.find("<title>"), listener);
  seen = visit(page, R"js(
    const graph = curves[0].graph, tokens = runs[0].spikes.tokens;
    document.documentElement.dataset.seen = JSON.stringify({faults, mark: [...document.querySelectorAll("#losses canvas")].map(one =>
      [tokens[0], tokens[0] + 64].map(place => {
        const points = one.getContext("2d").getImageData(Math.round(graph.toDomXCoord(place)) - 1, 0, 2, one.height).data;
        let count = 0;
        for (let i = 3; i < points.length; i += 4) count += points[i] > 0;
        return count / one.height;
      })), heats: heats.length, table: document.querySelector("#throughput .tables").textContent,
      losses: document.querySelector("#losses").textContent, experts: document.querySelector("#experts").textContent,
      curves: document.querySelectorAll("#throughput .curve").length,
      ofLosses: document.querySelectorAll("#losses .curve").length}))js",
               "", 1200, 900);
  EXPECT_EQ(seen["faults"], nlohmann::json::array());
  EXPECT_EQ(seen["curves"], 4);
  EXPECT_EQ(seen["ofLosses"], 2);
  EXPECT_TRUE(says("losses", "tiny, predictor 2")) << seen["losses"];
  EXPECT_EQ(seen["heats"], 2);
  for (const char* words : {"312.5", "0.375", "2 ms"}) EXPECT_TRUE(says("table", words)) << seen["table"];
  EXPECT_TRUE(says("losses", "steps that the run calls spikes"));
  EXPECT_TRUE(says("losses", "spikes1")) << seen["losses"];
  EXPECT_TRUE(says("experts", "10.51")) << seen["experts"];  // block 1, most uneven 0.5, last 1
  // A line through the plot at the spike, and none half a step behind it.
  double at_spike = 0.0, behind = 1.0;
  for (const auto& canvas : seen["mark"]) {
    if (canvas[0].get<double>() <= at_spike) continue;
    at_spike = canvas[0];
    behind = canvas[1];
  }
  EXPECT_GT(at_spike, behind + 0.5) << seen["mark"].dump();
}

// A dense run of one step, without validation, checkpoints or traces: the sections that it has nothing for are absent.
TEST_F(ReportPage, LeavesOutWhatARunHasNot) {
  if (browser().empty()) GTEST_SKIP() << "there is no Chromium here to look at the page with";
  train("--run.steps=1");
  nlohmann::json line = metrics("out/tiny").front();
  line.erase("moe");
  line.erase("validation");
  line["loss"] = nullptr;
  put("out/tiny/metrics.jsonl", line.dump() + "\n");
  std::string page = page_of("out/tiny");
  page.insert(page.find("<title>"), listener);
  const auto shown = visit(page, R"js(document.documentElement.dataset.seen = JSON.stringify({faults,
    headings: [...document.querySelectorAll("h2")].map(element => element.textContent),
    notes: document.querySelector("#losses .note").textContent.includes("Dashed")}))js",
                           "", 420, 900);
  EXPECT_EQ(shown["faults"], nlohmann::json::array());
  EXPECT_FALSE(shown["notes"].get<bool>());
  EXPECT_EQ(shown["headings"], (nlohmann::json{"Runs", "Loss", "Throughput", "Gradient norm and learning rate",
                                               "Memory", "The step, planned and measured", "Configurations"}));
}

}  // namespace
}  // namespace weft
#endif
