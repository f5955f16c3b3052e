// A simulated step in Chrome's trace format: an event a box, at its time, on the thread that the trace of a run uses.
#include "tools/picture/picture_formats.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/tools/picture_fixture.h"

namespace weft {
namespace {

using SortedJson = nlohmann::json;

TEST(PictureTrace, HasAnEventForEveryBoxAndACounterForEverySample) {
  const Picture picture = hostile_picture();
  const SortedJson trace = SortedJson::parse(to_json(chrome_trace_of(picture)));
  std::map<int, std::vector<SortedJson>> events, counters;
  std::map<std::pair<int, int>, std::string> threads;
  std::map<int, std::string> processes;
  for (const SortedJson& event : trace["traceEvents"]) {
    const int process = event["pid"];
    if (event["ph"] == "X") events[process].push_back(event);
    if (event["ph"] == "C") counters[process].push_back(event);
    if (event["name"] == "thread_name") threads[{process, event["tid"]}] = event["args"]["name"];
    if (event["name"] == "process_name") processes[process] = event["args"]["name"];
  }
  EXPECT_EQ(processes, (std::map<int, std::string>{{0, "rank 0"}, {1, "rank 1"}}));
  EXPECT_EQ(threads.size(), picture.ranks.size() * picture.lanes.size());
  for (const PictureRank& rank : picture.ranks) {
    ASSERT_EQ(events[rank.rank].size(), rank.boxes.size());
    for (std::size_t i = 0; i < rank.boxes.size(); ++i) {
      const PictureBox& box = rank.boxes[i];
      const SortedJson& event = events[rank.rank][i];
      EXPECT_EQ(event["name"], box.action);
      EXPECT_EQ(event["cat"], name_of(box.kind));
      EXPECT_EQ(event["ts"].get<double>(), 1e6 * box.start);
      EXPECT_EQ(event["dur"].get<double>(), 1e6 * (box.end - box.start));
      EXPECT_EQ((threads.at({rank.rank, event["tid"]})), name_of(box.lane));
      const SortedJson& arguments = event["args"];
      EXPECT_EQ(arguments.value("microbatch", -1), box.microbatch.value_or(-1));
      EXPECT_EQ(arguments.value("stage", -1), box.stage.value_or(-1));
      EXPECT_EQ(arguments.value("bytes", std::int64_t{0}), box.bytes);
      EXPECT_EQ(arguments.value("waited_for", ""), box.waited_for);
      EXPECT_EQ(arguments.value("critical_path", false), box.critical);
    }
    ASSERT_EQ(counters[rank.rank].size(), rank.memory.size());
    for (std::size_t i = 0; i < rank.memory.size(); ++i) {
      const auto [held, parameters, gradients, communication, activations, workspace] = layers_of(rank.memory[i]);
      const SortedJson& counter = counters[rank.rank][i];
      EXPECT_EQ(counter["ts"].get<double>(), 1e6 * rank.memory[i].time);
      EXPECT_EQ(counter["args"], (SortedJson{{"shards, replicas and states", held},
                                             {"unsharded parameters", parameters},
                                             {"unsharded gradients", gradients},
                                             {"communication", communication},
                                             {"activations", activations},
                                             {"workspace", workspace}}));
    }
  }
}

}  // namespace
}  // namespace weft
