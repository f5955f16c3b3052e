// weft report against the files of the runs, read independently. tests/tools/report_page_test.cpp looks at the page in
// a browser.
#ifdef WEFT_HAVE_DYGRAPHS
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "tests/tools/report_page.h"

namespace weft {
namespace {

using ReportCommand = ReportedRuns;
using PageJson = nlohmann::json;

double six_digits(double value) {
  return std::strtod(fmt::format("{:.6g}", value).c_str(), nullptr);
}

TEST_F(ReportCommand, CurvesAndFiguresAreThoseOfTheMetrics) {
  train();
  const PageJson run = page_json(page_of("out/tiny"), "report")["runs"][0];
  const auto steps = metrics("out/tiny");
  ASSERT_EQ(steps.size(), 6u);
  const PageJson &loss = run["curves"]["loss"], &held = run["curves"]["validation.loss"];
  ASSERT_EQ(loss["value"].size(), 6u);
  double seconds = 0.0, least = 1e9;
  std::int64_t tokens = 0;
  std::vector<double> held_out;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    seconds += steps[i]["seconds"].get<double>();
    tokens += steps[i]["tokens"].get<std::int64_t>();
    least = std::min(least, steps[i]["loss"].get<double>());
    EXPECT_EQ(loss["step"][i], i + 1);
    EXPECT_EQ(loss["tokens"][i], tokens);
    EXPECT_EQ(loss["seconds"][i].get<double>(), six_digits(seconds));
    EXPECT_EQ(loss["value"][i].get<double>(), six_digits(steps[i]["loss"]));
    EXPECT_EQ(run["curves"]["grad_norm"]["value"][i].get<double>(), six_digits(steps[i]["grad_norm"]));
    EXPECT_EQ(run["curves"]["lr"]["value"][i].get<double>(), six_digits(steps[i]["lr"]));
    if (steps[i].contains("validation")) held_out.push_back(six_digits(steps[i]["validation"]["loss"]));
    EXPECT_EQ(run["experts"]["fields"]["max_over_mean"]["rows"][0][i].get<double>(),
              six_digits(steps[i]["moe"][0]["max_over_mean"]));
  }
  EXPECT_EQ(held["step"], (PageJson{2, 4, 6}));
  EXPECT_EQ(held["value"], PageJson(held_out));
  EXPECT_EQ(run["experts"]["blocks"], PageJson{1});
  EXPECT_EQ(run["experts"]["step"], (PageJson{0, 1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(run["figures"]["tokens"], tokens);
  EXPECT_EQ(run["figures"]["loss_least"], least);
  EXPECT_EQ(run["figures"]["loss_last"], steps.back()["loss"]);
  EXPECT_EQ(run["figures"]["lr_last"], steps.back()["lr"]);
  std::vector<double> norms;
  for (const PageJson& step : steps) norms.push_back(step["grad_norm"]);
  std::ranges::sort(norms);
  EXPECT_EQ(run["figures"]["grad_norm"], (norms[2] + norms[3]) / 2.0);
  EXPECT_EQ(run["figures"]["validation_last"], steps.back()["validation"]["loss"]);
  for (const char* field : {"tflops", "data_seconds"}) {
    EXPECT_EQ(run["curves"][field]["value"].back().get<double>(), six_digits(steps.back()[field])) << field;
  }
  // A field that no line has is no curve.
  EXPECT_FALSE(run["curves"].contains("mfu"));
}

TEST_F(ReportCommand, EachPredictorHasACurve) {
  train("--model.layers='d e m*2' --run.directory=out/ahead");
  train();
  const PageJson runs = page_json(page_of("out/ahead out/tiny"), "report")["runs"];
  const auto steps = metrics("out/ahead");
  for (std::size_t predictor = 0; predictor < 2; ++predictor) {
    const PageJson& curve = runs[0]["curves"][fmt::format("mtp_losses.{}", predictor + 1)];
    ASSERT_EQ(curve["value"].size(), steps.size());
    for (std::size_t i = 0; i < steps.size(); ++i) {
      EXPECT_EQ(curve["value"][i].get<double>(), six_digits(steps[i]["mtp_losses"][predictor]));
    }
  }
  EXPECT_FALSE(runs[0]["curves"].contains("mtp_losses.3"));
  EXPECT_FALSE(runs[1]["curves"].contains("mtp_losses.1"));
}

// summary.json has the prediction and the measurement of every rank.
TEST_F(ReportCommand, MemoryStandsBesideThePlanOfItsRank) {
  train();
  const PageJson memory = page_json(page_of("out/tiny"), "report")["runs"][0]["memory"];
  const PageJson summary = PageJson::parse(read("out/tiny/summary.json"));
  const auto steps = metrics("out/tiny");
  const auto highest =
      std::ranges::max_element(steps, {}, [](const PageJson& step) { return step["peak_bytes"].get<std::int64_t>(); });
  EXPECT_EQ(memory["highest_step"], (*highest)["step"]);
  std::map<std::string, PageJson> buckets;
  std::int64_t planned = 0;
  for (const PageJson& bucket : memory["buckets"]) {
    std::string name = bucket["name"];
    std::ranges::replace(name, ' ', '_');
    EXPECT_EQ(bucket["measured"], (*highest)["memory"][name]) << name;
    for (std::size_t i = 0; i < steps.size(); ++i) EXPECT_EQ(bucket["bytes"][i], steps[i]["memory"][name]) << name;
    planned += bucket["planned"].get<std::int64_t>();
    buckets[name] = bucket;
  }
  EXPECT_EQ(memory["planned"], planned);
  EXPECT_TRUE(std::ranges::any_of(summary["ranks"], [&](const PageJson& rank) {
    return std::ranges::all_of(rank["buckets"].items(), [&](const auto& entry) {
      const PageJson bytes = entry.value()["predicted"];
      const auto found = buckets.find(entry.key());
      return found == buckets.end() ? bytes == 0 : found->second["planned"] == bytes;
    });
  })) << memory.dump();
  for (const char* bytes_at_rest : {"sharded_parameters", "sharded_gradients", "optimizer_state"}) {
    EXPECT_EQ(buckets[bytes_at_rest]["planned"], buckets[bytes_at_rest]["measured"]) << bytes_at_rest;
  }
}

// Fields of a box (picture_formats.h).
constexpr std::size_t box_start = 0, box_end = 1, box_flags = 3, box_what = 4;
constexpr int idle_flag = 2;

// The boxes of a row's actions.
std::vector<PageJson> boxes_of(const PageJson& variant, std::size_t row) {
  std::vector<PageJson> boxes;
  for (const PageJson& lane : variant["lanes"]) {
    if (lane["row"] != row) continue;
    for (const PageJson& box : lane["boxes"]) {
      if ((box[box_flags].get<int>() & idle_flag) == 0) boxes.push_back(box);
    }
  }
  return boxes;
}
std::string action_of(const PageJson& box) {
  const std::string what = box[box_what];
  return what.substr(0, what.find('\n'));
}

TEST_F(ReportCommand, PlannedAndMeasuredStepShareTheirLanes) {
  train("--profiling.first_step=3 --profiling.last_step=5");
  const std::string page = page_of("out/tiny");
  const PageJson lanes = page_json(page, "report")["runs"][0]["lanes"], data = page_json(page, "data");
  ASSERT_EQ(data["variants"].size(), 1u);
  const PageJson& variant = data["variants"][0];
  ASSERT_EQ(variant["rows"].size(), 4u);  // 2 stages, planned and measured
  EXPECT_EQ(lanes["recorded"], (PageJson{3, 4, 5}));
  const std::int64_t step = lanes["measured"];

  // Starts and ends of the step's actions from the trace of rank 0 and of the rank with its second stage.
  const PageJson mesh = PageJson::parse(weft("mesh run.toml --json").output);
  std::vector<std::int64_t> ranks;
  for (const PageJson& rank : mesh["dense"]["pp"][0]) ranks.push_back(rank);
  ASSERT_EQ(ranks.size(), 2u);
  EXPECT_EQ(ranks[0], 0);
  double first = 1e300, last = 0.0;
  std::map<std::int64_t, std::multimap<double, double>> spans;  // by step: of both ranks
  std::vector<std::multiset<double>> lengths(2);                // by stage, of the chosen step, in microseconds
  std::map<std::int64_t, std::pair<double, double>> whole;
  for (std::size_t stage = 0; stage < 2; ++stage) {
    const PageJson trace = PageJson::parse(read(fmt::format("out/tiny/trace_rank{}.json", ranks[stage])));
    for (const PageJson& event : trace["traceEvents"]) {
      if (event["ph"] != "X" || event["cat"] == "host" || event["args"].contains("inside")) continue;
      const double begin = event["ts"], length = event["dur"];
      const auto [found, fresh] = whole.try_emplace(event["args"]["step"], begin, begin + length);
      found->second = {std::min(found->second.first, begin), std::max(found->second.second, begin + length)};
      if (event["args"]["step"] != step || length <= 0.0) continue;
      const std::string name = event["name"];
      if (name.find("reshard") == std::string::npos) lengths[stage].insert(length);
      first = std::min(first, begin);
      last = std::max(last, begin + length);
    }
  }
  std::vector<double> seconds;
  for (const auto& [number, ends] : whole) seconds.push_back(ends.second - ends.first);
  std::ranges::sort(seconds);
  ASSERT_EQ(seconds.size(), 3u);
  EXPECT_NEAR(1e6 * lanes["measured_seconds"].get<double>(), seconds[1], 1.0);  // the median
  EXPECT_NEAR(1e6 * lanes["measured_seconds"].get<double>(), last - first, 1.0);
  for (std::size_t stage = 0; stage < 2; ++stage) {
    const PageJson &planned = variant["rows"][2 * stage], &measured = variant["rows"][2 * stage + 1];
    EXPECT_EQ(planned["name"], fmt::format("rank {}, planned,", stage));
    EXPECT_EQ(measured["name"], fmt::format("rank {}, measured,", stage));
    EXPECT_EQ(planned["rank"], stage);
    EXPECT_EQ(measured["rank"], stage);
    std::multiset<double> drawn;
    std::set<std::string> actions;
    for (const PageJson& box : boxes_of(variant, 2 * stage + 1)) {
      const std::string action = action_of(box);
      actions.insert(action);
      if (action.find("RESHARD") != std::string::npos) continue;
      drawn.insert(1e6 * (box[box_end].get<double>() - box[box_start].get<double>()));
    }
    ASSERT_EQ(drawn.size(), lengths[stage].size()) << stage;
    EXPECT_TRUE(std::ranges::equal(drawn, lengths[stage], [](double one, double other) {
      return std::abs(one - other) < 0.01;
    })) << stage;
    // What the plan does, the run did.
    for (const PageJson& box : boxes_of(variant, 2 * stage)) {
      EXPECT_TRUE(actions.contains(action_of(box))) << action_of(box);
    }
  }
  // The axis holds both.
  EXPECT_EQ(variant["seconds"], std::max(lanes["planned_seconds"], lanes["measured_seconds"]));
}

// One rank needs more bytes than each of eight, so the highest peak of all steps is not that of the last layout.
TEST_F(ReportCommand, ARunUnderTwoLayoutsIsMeasuredUnderItsLast) {
  train(
      "--run.steps=4 --parallelism.pipeline=1 --parallelism.data_shard=1 --parallelism.tensor=1 "
      "--parallelism.expert=1");
  train();
  const auto steps = metrics("out/tiny");
  ASSERT_EQ(steps.size(), 6u);
  const auto peak_of = [&](std::size_t step) { return steps[step - 1]["peak_bytes"].get<std::int64_t>(); };
  ASSERT_GT(peak_of(4), peak_of(6));
  const PageJson run = page_json(page_of("out/tiny"), "report")["runs"][0];
  EXPECT_EQ(run["figures"]["peak_bytes"], std::max(peak_of(5), peak_of(6)));
  EXPECT_EQ(run["memory"]["highest_step"], peak_of(6) > peak_of(5) ? 6 : 5);
  EXPECT_EQ(run["figures"]["tokens_per_second"],
            (steps[4]["tokens_per_second"].get<double>() + steps[5]["tokens_per_second"].get<double>()) / 2.0);
  EXPECT_EQ(run["curves"]["loss"]["step"].size(), 6u);
  EXPECT_NE(run["facts"].dump().find("; this configuration since step 5, and peak, medians and plan are of this part"),
            std::string::npos)
      << run["facts"];
}

TEST_F(ReportCommand, WithoutARecordingThereIsThePlanAndNoPair) {
  train();
  const std::string page = page_of("out/tiny");
  const PageJson run = page_json(page, "report")["runs"][0];
  EXPECT_TRUE(run["lanes"]["measured"].is_null());
  EXPECT_EQ(run["unmeasured"], "");
  EXPECT_EQ(page_json(page, "data")["variants"][0]["rows"][0]["name"], "rank 0");
  // A recording of another program is told, and the plan stays.
  train("--profiling.first_step=3 --profiling.last_step=3 --run.directory=out/traced");
  std::string config = read("out/traced/config.toml");
  const std::string batch = "global_batch_size = 8";
  config.replace(config.find(batch), batch.size(), "global_batch_size = 16");
  put("out/traced/config.toml", config);
  const PageJson other = page_json(page_of("out/traced"), "report")["runs"][0];
  EXPECT_TRUE(other["lanes"]["measured"].is_null());
  EXPECT_NE(other["unmeasured"].get<std::string>().find("trace"), std::string::npos) << other["unmeasured"];
}

TEST_F(ReportCommand, DifferencesAreTheKeysThatDiffer) {
  train();
  train(
      "--run.directory=out/other --training.global_batch_size=16 --optimizer.learning_rate=1e-4 "
      "--model.layers='d e e'");
  const PageJson report = page_json(page_of("out/tiny out/other"), "report");
  std::map<std::string, PageJson> differences;
  for (const PageJson& difference : report["differences"]) differences[difference["key"]] = difference["values"];
  EXPECT_EQ(differences.size(), 3u) << report["differences"].dump();
  EXPECT_EQ(differences["training.global_batch_size"], (PageJson{"8", "16"}));
  EXPECT_EQ(differences["model.layers"], (PageJson{"\"d e\"", "\"d e e\""}));
  ASSERT_TRUE(differences.contains("optimizer.learning_rate"));
  EXPECT_EQ(differences["optimizer.learning_rate"][1], "0.0001");
  // Runs of one name are told apart by directory.
  EXPECT_EQ(report["runs"][0]["name"], "tiny (out/tiny)");
  EXPECT_EQ(report["runs"][1]["name"], "tiny (out/other)");
  EXPECT_EQ(report["runs"][1]["experts"]["blocks"], (PageJson{1, 2}));
}

// A curve of 10,000 steps keeps a spike of one step, a gap, and a page that a browser opens at once.
TEST_F(ReportCommand, LongRunsStaySmallAndKeepTheirSpikes) {
  train();
  PageJson line = metrics("out/tiny").front();
  std::string lines;
  constexpr int spike = 6173, gap = 3001, uneven = 7777;
  for (int step = 1; step <= 10'000; ++step) {
    line["step"] = step;
    line["loss"] = 2.0 + 3.0 * std::exp(-step / 2000.0) + 0.1 * std::sin(static_cast<double>(step) * step);
    line["grad_norm"] = 1.0 + 0.3 * std::sin(1.7 * step * step);
    line["lr"] = 1e-3 * (1.0 - step / 10'001.0);
    line["tokens_per_second"] = 1000.0 + 100.0 * std::cos(2.3 * step * step);
    line["moe"][0]["max_over_mean"] = step == uneven ? 3.75 : 1.25;
    line["mfu"] = 0.4;
    if (step == spike) line["loss"] = 17.25;
    if (step == gap) line["loss"] = nullptr;
    lines += line.dump() + "\n";
  }
  put("out/tiny/metrics.jsonl", lines);
  const std::string page = page_of("out/tiny");
  EXPECT_LT(page.size(), 900'000u);
  const PageJson run = page_json(page, "report")["runs"][0];
  const PageJson& loss = run["curves"]["loss"];
  EXPECT_LE(loss["value"].size(), 2001u);
  const auto place = [&](int step) { return std::ranges::find(loss["step"], PageJson(step)) - loss["step"].begin(); };
  ASSERT_LT(place(spike), std::ssize(loss["step"]));
  EXPECT_EQ(loss["value"][static_cast<std::size_t>(place(spike))], 17.25);
  ASSERT_LT(place(gap), std::ssize(loss["step"]));
  EXPECT_TRUE(loss["value"][static_cast<std::size_t>(place(gap))].is_null());
  EXPECT_EQ(run["curves"]["mfu"]["value"][0], 0.4);
  EXPECT_EQ(run["figures"]["mfu"], 0.4);
  const PageJson& row = run["experts"]["fields"]["max_over_mean"]["rows"][0];
  EXPECT_EQ(row.size(), 240u);
  EXPECT_EQ(std::ranges::count(row, PageJson(3.75)), 1);
  EXPECT_NE(run["state"].get<std::string>().find("complete"), std::string::npos);
}

TEST_F(ReportCommand, ARunThatGoesOnIsShownAsFarAsItIs) {
  train();
  const std::string lines = read("out/tiny/metrics.jsonl");
  put("out/tiny/metrics.jsonl", lines.substr(0, lines.size() - 40));
  std::filesystem::remove(folder_ / "out/tiny/summary.json");
  const PageJson run = page_json(page_of("out/tiny"), "report")["runs"][0];
  EXPECT_EQ(run["figures"]["step"], 5);
  EXPECT_EQ(run["state"],
            "at step 5 of 6: it runs, or has stopped; the last line of metrics.jsonl is cut off and left out");
  EXPECT_TRUE(run["memory"]["planned"].is_number());
}

TEST_F(ReportCommand, ThePageNeedsNothingElseAndNamesAreText) {
  const std::string hostile = "</script><script>alert(1)</script> & WEFT_DATA <!--";
  put("hostile.toml", fmt::format("include = [\"run.toml\"]\n[run]\nname = '{}'\n", hostile));
  ASSERT_EQ(weft("train hostile.toml --run.steps=2").exit_code, 0);
  const std::string page = page_of("out/tiny");
  EXPECT_EQ(page_json(page, "report")["runs"][0]["name"], hostile);
  EXPECT_EQ(page_json(page, "data")["title"], hostile);
  // No character of the data can open a tag or a comment, which a script's end is looked for behind.
  for (const char* id : {"data", "report"}) {
    const std::size_t begin = page.find(fmt::format("id=\"{}\">", id));
    ASSERT_NE(begin, std::string::npos);
    EXPECT_EQ(page.find('<', begin), page.find("</script>\n", begin)) << id;
  }
  EXPECT_NE(page.find("<title>&lt;/script&gt;"), std::string::npos);
  EXPECT_NE(page.find("content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; base-uri "
                      "'none'; form-action 'none'\""),
            std::string::npos);
  for (const char* outside : {"<script src", "<link", "<img", "<iframe", "url(http", "@import", "sourceMappingURL"}) {
    EXPECT_EQ(page.find(outside), std::string::npos) << outside;
  }
  EXPECT_NE(page.find("Permission is hereby granted, free of charge"), std::string::npos);
}

TEST_F(ReportCommand, SamplesComeFromEachKeptCheckpoint) {
  train("--checkpoint.interval=3");
  const std::string words = " --prompt 'warp ' --samples 2 --max-tokens 5 --temperature 0.5 --seed 3";
  const PageJson report = page_json(page_of("out/tiny" + words), "report");
  const PageJson& samples = report["runs"][0]["samples"];
  EXPECT_EQ(report["prompt"], "warp ");
  ASSERT_EQ(samples.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    const int step = 3 * static_cast<int>(i + 1);
    EXPECT_EQ(samples[i]["step"], step);
    const auto generated = weft(fmt::format("generate out/tiny/checkpoints/step-{:08}{} --json", step, words));
    ASSERT_EQ(generated.exit_code, 0) << generated.messages;
    const PageJson expected = PageJson::parse(generated.output)["samples"];
    for (std::size_t s = 0; s < 2; ++s) EXPECT_EQ(samples[i]["texts"][s], expected[s]["text"]);
  }
  EXPECT_EQ(page_json(page_of("out/tiny"), "report")["runs"][0]["samples"], PageJson::array());
}

// Those in the directory of the run are of the run before it.
TEST_F(ReportCommand, SamplesComeFromWhereTheRunSaves) {
  train("--checkpoint.interval=3");
  train("--checkpoint.directory=saved --run.steps=2");
  const std::string words = " --samples 1 --prompt warp --max-tokens 1";
  const PageJson samples = page_json(page_of("out/tiny" + words), "report")["runs"][0]["samples"];
  ASSERT_EQ(samples.size(), 1u);
  EXPECT_EQ(samples[0]["step"], 2);
  for (const std::string command : {"checkpoint inspect", "checkpoint verify"}) {
    const auto found = weft(command + " out/tiny --json");
    EXPECT_EQ(found.exit_code, 0) << found.messages;
    EXPECT_EQ(found.output, weft(command + " saved --json").output) << command;
  }
  std::filesystem::rename(folder_ / "saved", folder_ / "moved");
  EXPECT_EQ(weft("report" + words + " out/tiny").exit_code, 2);
  const auto refused = weft("checkpoint inspect out/tiny");
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_NE(refused.messages.find("out/tiny/config.toml says that its run saves to saved (checkpoint.directory)"),
            std::string::npos)
      << refused.messages;
}

TEST_F(ReportCommand, RefusesByName) {
  train("--checkpoint.at_end=false");
  std::filesystem::create_directories(folder_ / "empty");
  std::filesystem::create_directories(folder_ / "bare");
  put("bare/config.toml", read("out/tiny/config.toml"));
  put("bare/metrics.jsonl", "");
  put("note.html", "a letter");
  ASSERT_EQ(mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  const auto refused = [&](const std::string& arguments, const std::string& words) {
    const auto result = weft("report " + arguments);
    EXPECT_EQ(result.exit_code, 2) << arguments << ": " << result.messages;
    EXPECT_NE(result.messages.find(words), std::string::npos) << arguments << ": " << result.messages;
    EXPECT_EQ(result.output, "") << arguments;
  };
  refused("", "RUN is required");
  refused("nowhere", "nowhere is no directory");
  refused("empty", "empty is not the directory of a run: it has no config.toml");
  refused("bare", "bare/metrics.jsonl holds no whole step");
  refused("out/tiny out/../out/tiny", "out/../out/tiny is given twice");
  refused("out/tiny --output note.html", "note.html exists and is no page of weft report");
  refused("out/tiny --output pipe", "pipe exists and is no page of weft report");
  refused("nowhere --output absent/page.html", "absent/page.html cannot be written");
  refused("out/tiny --samples 1", "--samples needs --prompt");
  refused("out/tiny --prompt a", "--prompt is for --samples N");
  refused("out/tiny --run.device=cpu", "keys are for --samples");
  refused("out/tiny --samples 1 --prompt a", "--samples: none of the runs keeps a checkpoint");
  EXPECT_EQ(read("note.html"), "a letter");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "absent"));
  // A page of its own is replaced.
  EXPECT_EQ(weft("report out/tiny --output page.html").exit_code, 0);
  const std::string before = read("page.html");
  ASSERT_GT(before.size(), 100'000u);
  train("--run.steps=7 --checkpoint.at_end=false");
  EXPECT_EQ(weft("report out/tiny --output page.html").exit_code, 0);
  EXPECT_EQ(page_json(read("page.html"), "report")["runs"][0]["figures"]["step"], 7);
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    EXPECT_EQ(entry.path().string().find("page.html."), std::string::npos) << entry.path();
  }
}

}  // namespace
}  // namespace weft
#else
#include "tests/tools/tiny_training.h"

namespace weft {
namespace {

using ReportCommand = TinyTraining;

TEST_F(ReportCommand, ABuildWithoutDygraphsSaysSo) {
  ASSERT_EQ(weft("train run.toml").exit_code, 0);
  const auto result = weft("report out/tiny");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.messages.find("install libjs-dygraphs"), std::string::npos) << result.messages;
}

}  // namespace
}  // namespace weft
#endif
