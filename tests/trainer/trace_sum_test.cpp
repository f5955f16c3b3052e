#include "trainer/diagnosis/trace_sum.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "parallel/pipeline/execute/execute.h"
#include "parallel/runtime/error.h"
#include "tests/trainer/tiny_layout.h"
#include "trainer/resolve/resolved_run.h"

namespace weft {
namespace {

std::string phase_of(Op op) {
  if (is_compute(op)) return std::string(name_of(op));
  if (is_gather(op)) return "gather";
  if (is_reshard(op)) return "reshard";
  if (takes_unit(op)) return "reduce";
  if (is_row_exchange(op)) return "rows";
  return is_send(op) || is_receive(op) ? "message" : "update";
}

std::string family_of(const ModelPart& part) {
  return part.kind == PartKind::attention || part.kind == PartKind::mlp ? "dense" : std::string(name_of(part.kind));
}

// What names say against the actions that they are names of, in programs with every kind of action.
TEST(TraceLabels, AreThoseOfTheActions) {
  std::set<std::string> phases, families;
  for (const TinyLayout& layout :
       {TinyLayout{.layers = "d e d e",
       .degrees = {.pipeline = 2, .data_shard = 2, .expert = 2},
       .residency = "reshard_after_use"},
        TinyLayout{.layers = "d e", .degrees = {.data_shard = 2}, .wrap = "root", .recompute = Recompute::full},
        TinyLayout{.layers = "d d d d", .degrees = {.pipeline = 2, .data_shard = 2}, .schedule = "zb_h1", .tied = true},
        TinyLayout{.layers = "d e d e",
        .degrees = {.pipeline = 2, .data_shard = 2, .expert = 2},
        .schedule = "dualpipev",
        .chunks = 2},
        TinyLayout{.layers = "d", .degrees = {.pipeline = 4}}}) {
    const ResolvedRun run(config_of(layout));
    const Program program = step_program(run, {});
    for (const auto& actions : program.ranks) {
      const std::vector<std::string> names = range_names(program, actions);
      for (std::size_t i = 0; i < names.size(); ++i) {
        const Action& action = actions[i];
        const ActionLabels labels = labels_of(names[i]);
        EXPECT_EQ(labels.phase, phase_of(action.op)) << names[i];
        phases.emplace(labels.phase);
        if (action.segment) {
          const ProgramSegment& segment = program.segments[static_cast<std::size_t>(*action.segment)];
          EXPECT_EQ(labels.part, segment.name);
          EXPECT_EQ(labels.family, family_of(segment.part)) << names[i];
          EXPECT_EQ(labels.stage, std::to_string(segment.stage));
          families.emplace(name_of(segment.part.kind));
        } else if (action.unit) {
          const ProgramUnit& unit = program.units[static_cast<std::size_t>(*action.unit)];
          EXPECT_EQ(labels.part, unit.name);
          EXPECT_EQ(labels.family, name_of(unit.family)) << names[i];
        } else {
          EXPECT_EQ(labels.part, "-");
          EXPECT_EQ(labels.stage, action.stage ? std::to_string(*action.stage) : "-");
        }
      }
    }
  }
  EXPECT_EQ(phases.size(), 11u);   // five of computation, and gather, reshard, reduce, message, rows, update
  EXPECT_EQ(families.size(), 6u);  // every kind of part
}

TEST(TraceLabels, AreOtherForOtherNames) {
  for (const char* name : {"", "PP:", "PP:F blocks.0.mlp", "PP:3X", "PP:3", "data", "checkpoint", "unsharded x"}) {
    EXPECT_EQ(labels_of(name), ActionLabels{}) << name;
  }
}

TimedSpan span(const std::string& name, int rank, std::int64_t microbatch, double seconds, std::int64_t bytes = 0) {
  TimedSpan span{.name = name, .lane = "compute"};
  span.rank = rank;
  span.step = 2;
  span.microbatch = microbatch;
  span.seconds = seconds;
  span.bytes = bytes;
  return span;
}

TEST(TraceSums, AddUpWhatLabelsDoNotTellApart) {
  const std::vector<TimedSpan> spans = {span("PP:0F blocks.0.mlp", 0, 0, 1.0), span("PP:0F blocks.0.mlp", 0, 1, 3.0),
                                        span("PP:1F blocks.1.mlp", 1, 0, 8.0), span("PP:0B blocks.0.mlp", 0, 0, 5.0),
                                        span("unshard blocks.0.dense", 0, -1, 0.5, 64)};
  const auto by = [&](const char* keys) { return sum_spans(spans, parse_trace_keys(keys)); };
  const std::vector<TraceSum> phases = by("phase");
  ASSERT_EQ(phases.size(), 3u);
  EXPECT_EQ(phases[0].labels, std::vector<std::string>{"F"});
  EXPECT_EQ(phases[0].count, 3);
  EXPECT_EQ(phases[0].seconds, 12.0);
  EXPECT_EQ(phases[0].least, 1.0);
  EXPECT_EQ(phases[0].median, 3.0);
  EXPECT_EQ(phases[0].most, 8.0);
  EXPECT_EQ(phases[2].bytes, 64);
  EXPECT_EQ(by("stage")[0].median, 3.0);
  EXPECT_EQ(by("family,phase").size(), 3u);
  EXPECT_EQ(by("stage").size(), 3u);
  EXPECT_EQ(by("rank").size(), 2u);
  EXPECT_EQ(by("microbatch,rank").size(), 4u);
  EXPECT_EQ(by("kernel").front().labels, std::vector<std::string>{"-"});
  // Whatever tells them apart, together they are all.
  for (const char* keys :
       {"phase", "family", "part", "stage", "microbatch", "step", "lane", "rank", "name", "name,rank"}) {
    double all = 0.0;
    for (const TraceSum& sum : by(keys)) all += sum.seconds;
    EXPECT_EQ(all, 17.5) << keys;
  }
}

// Told apart from the rest of its action, or part of it: 10 seconds of experts either way.
TEST(TraceSums, CountWorkOnce) {
  const auto lasting = [](const char* name, int step, double seconds, const char* inside) {
    return TraceSpan{name, Lane::compute, step, 0, 0, 1.0, 1.0 + seconds, inside};
  };
  RankTrace trace{3, {}};
  for (int step : {1, 2}) {
    trace.spans.push_back(lasting("PP:0F blocks.0.experts", step, 5.0, ""));
    trace.spans.push_back(lasting("PP:0F blocks.1.mlp", step, 7.0, ""));
    trace.work.push_back(lasting("exchange", step, step, "PP:0F blocks.0.experts"));
    trace.work.push_back(lasting("exchange", step, 0.5, "PP:0F blocks.0.experts"));
  }
  const std::vector<TimedSpan> spans = timed_spans({&trace, 1});
  const auto by = [&](const char* keys) {
    std::map<std::string, double> seconds;
    for (const TraceSum& sum : sum_spans(spans, parse_trace_keys(keys))) seconds[sum.labels.back()] += sum.seconds;
    return seconds;
  };
  using Seconds = std::map<std::string, double>;
  EXPECT_EQ(by("family"), (Seconds{{"experts", 10.0}, {"dense", 14.0}}));
  EXPECT_EQ(by("work"), (Seconds{{"exchange", 4.0}, {"-", 20.0}}));
  EXPECT_EQ(by("work,family"), (Seconds{{"experts", 10.0}, {"dense", 14.0}}));
  EXPECT_EQ(by("work,step"), (Seconds{{"1", 12.0}, {"2", 12.0}}));
}

// A forward in two parts, and between them an exchange of rows on a lane of its own.
TEST(TraceSums, CountWorkInThePartAroundIt) {
  RankTrace trace;
  const auto add = [](std::vector<TraceSpan>& spans, const char* name, Lane lane, double begin, double end,
                      const char* inside = "") {
    spans.push_back({name, lane, 2, 0, 0, begin, end, inside});
  };
  const char *experts = "PP:0F blocks.0.experts", *rows = "PP:0ROWS_F blocks.0.experts";
  add(trace.spans, experts, Lane::compute, 1.0, 3.0);
  add(trace.spans, rows, Lane::exchange, 3.5, 6.5);
  add(trace.spans, experts, Lane::compute, 7.0, 12.0);
  add(trace.work, "route", Lane::compute, 1.0, 2.5, experts);
  add(trace.work, "exchange", Lane::compute, 3.0, 3.25, rows);
  add(trace.work, "products", Lane::compute, 7.5, 10.5, experts);
  add(trace.work, "combine", Lane::compute, 11.0, 12.0, experts);
  const std::vector<TimedSpan> spans = timed_spans({&trace, 1});
  const std::vector<TraceSum> sums = sum_spans(spans, parse_trace_keys("phase,work"));
  std::map<std::vector<std::string>, double> seconds;
  for (const TraceSum& sum : sums) {
    seconds[sum.labels] = sum.seconds;
    EXPECT_GE(sum.least, 0.0) << sum.labels.back();
  }
  EXPECT_EQ(seconds, (std::map<std::vector<std::string>, double>{{{"F", "route"}, 1.5},
                                                                 {{"F", "products"}, 3.0},
                                                                 {{"F", "combine"}, 1.0},
                                                                 {{"F", "-"}, 1.5},
                                                                 {{"rows", "-"}, 3.0}}));
}

TEST(TraceSums, AreByLabelsThatThereAre) {
  for (const char* keys : {"", "phases", "phase,", "phase,,family", " phase"}) {
    EXPECT_THROW(parse_trace_keys(keys), Error) << keys;
  }
}

}  // namespace
}  // namespace weft
