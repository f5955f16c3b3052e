// The events that the recorder in tests/nvtx heard of a run, against those of the program.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace weft {

struct RecordedRange {
  std::string name, category;
  std::int64_t bytes = 0;
  int microbatch = 0, step = 0, stage = -1;
  std::string phase = {}, family = {};

  bool operator==(const RecordedRange&) const = default;
};
inline void PrintTo(const RecordedRange& range, std::ostream* out) {
  *out << fmt::format("{} [{}, {} bytes, microbatch {}, step {}, stage {}, phase {}, family {}]", range.name,
                      range.category, range.bytes, range.microbatch, range.step, range.stage, range.phase,
                      range.family);
}

// Begin of a range, or, without one, the end of the innermost.
struct RecordedEvent {
  bool begins = false;
  RecordedRange range;

  bool operator==(const RecordedEvent&) const = default;
};

struct NvtxRecording {
  std::vector<std::string> domains, schemas, strings;
  std::map<int, std::string> categories;
  std::map<std::string, std::vector<RecordedEvent>> events;  // by the thread's name

  explicit NvtxRecording(std::istream& in) {
    std::map<std::string, std::string> thread_names;
    for (std::string line; std::getline(in, line);) {
      std::vector<std::string> field;
      std::istringstream fields(line);
      for (std::string text; std::getline(fields, text, '\t');) field.push_back(text);
      const std::string& what = field.at(0);
      if (what == "domain") domains.push_back(field.at(1));
      if (what == "schema") schemas.push_back(line);
      if (what == "string") strings.push_back(field.at(1));
      if (what == "category") categories[std::stoi(field.at(1))] = field.at(2);
      if (what == "thread") thread_names[field.at(1)] = field.at(2);
      if (what == "pop") events[thread_names[field.at(1)]].push_back({});
      if (what == "push") {
        events[thread_names[field.at(1)]].push_back(
            {true,
             {field.at(9), categories[std::stoi(field.at(2))], std::stoll(field.at(3)), std::stoi(field.at(4)),
              std::stoi(field.at(5)), std::stoi(field.at(6)), field.at(7), field.at(8)}});
      }
    }
  }
};

// The range of an action as `weft program --json` prints it.
inline RecordedRange range_of(const nlohmann::json& action, int step) {
  const std::string op = action["op"];
  const auto text = [&](const char* key) { return action[key].get<std::string>(); };
  const std::map<std::string, std::string> words = {
      {"UNSHARD", "unshard"}, {"RESHARD", "reshard"}, {"REDUCE_GRAD", "reduce_grad"}};
  std::string name;
  if (words.contains(op)) {
    name = words.at(op) + " " + text("unit");
  } else if (op == "GRAD_NORM" || op == "STEP") {
    name = op == "STEP" ? "optimizer" : "grad_norm";
  } else {
    name = fmt::format("PP:{}{}", action["stage"].get<int>(), op);
    if (!action["segment"].is_null()) name += " " + text("segment");
  }
  const auto number = [&](const char* key) { return action[key].is_null() ? -1 : action[key].get<int>(); };
  RecordedRange range{name, text("lane"), action["bytes"], number("microbatch"), step, number("stage")};
  const std::map<std::string, std::string> phases = {{"UNSHARD", "gather"},
                                                     {"RESHARD", "reshard"},
                                                     {"REDUCE_GRAD", "reduce"},
                                                     {"GRAD_NORM", "update"},
                                                     {"STEP", "update"}};
  range.phase = phases.contains(op) ? phases.at(op) : op.size() == 1 ? op : "message";
  const std::string part = words.contains(op) ? text("unit") : action["segment"].is_null() ? "" : text("segment");
  const std::string last = part.substr(part.rfind('.') + 1);
  range.family = part.empty() ? "-" : last == "attention" || last == "mlp" ? "dense" : last;
  return range;
}

// The work inside an action: of experts, in its order. `shared`: whether there is a shared expert.
inline std::vector<std::string> work_of(const nlohmann::json& action, bool shared) {
  if (action["segment"].is_null() || !action["segment"].get<std::string>().ends_with(".experts")) return {};
  const std::string op = action["op"];
  std::vector<std::string> work;
  if (op == "F" || op == "R") {
    work = {"route",    "permute",  "exchange", "shared",   "exchange",
            "products", "exchange", "exchange", "exchange", "combine"};
    if (op == "R") work.pop_back();  // nothing reads the sums again
  }
  if (op == "B" || op == "I") {
    work = {"combine",  "exchange", "shared",   "exchange", "products",
            "exchange", "exchange", "exchange", "route",    "permute"};
  }
  if (op == "B" || op == "W") work.insert(work.end(), {"products", "route", "shared"});
  if (!shared) std::erase(work, "shared");
  return work;
}

// What is wrong with the recording of a rank that took steps 1 to `steps` by the list `actions`; empty if nothing is.
inline std::string fault_of(const std::vector<RecordedEvent>& events, const nlohmann::json& actions, int steps,
                            bool shared = false) {
  std::vector<RecordedEvent> expected;
  for (int step = 1; step <= steps; ++step) {
    expected.push_back({true, {"step", "step", 0, -1, step, -1, "step", "-"}});
    for (const auto& action : actions) {
      expected.push_back({true, range_of(action, step)});
      for (const std::string& work : work_of(action, shared)) {
        RecordedRange inside = range_of(action, step);
        inside.name = work;
        inside.bytes = 0;
        expected.push_back({true, inside});
        expected.push_back({});
      }
      expected.push_back({});
    }
    expected.push_back({});
  }
  const auto describe = [](const std::vector<RecordedEvent>& list, std::size_t i) {
    if (i >= list.size()) return std::string("nothing");
    if (!list[i].begins) return std::string("an end");
    std::ostringstream out;
    PrintTo(list[i].range, &out);
    return out.str();
  };
  for (std::size_t i = 0; i < std::max(events.size(), expected.size()); ++i) {
    if (i < events.size() && i < expected.size() && events[i] == expected[i]) continue;
    return fmt::format("event {}: {}, expected {}", i, describe(events, i), describe(expected, i));
  }
  return {};
}

}  // namespace weft
