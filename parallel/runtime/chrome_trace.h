// Timelines for the viewers of Chrome's trace format (ui.perfetto.dev, chrome://tracing): of a measured run or of a
// simulated step.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace weft {

struct ChromeThread {
  int number = 0;  // also its position among the threads of the process
  std::string name;
};

struct ChromeProcess {
  int number = 0;  // also its position among the processes
  std::string name;
  std::vector<ChromeThread> threads;
};

using ChromeArguments = std::vector<std::pair<std::string, std::variant<std::int64_t, double, bool, std::string>>>;

struct ChromeEvent {
  int process = 0, thread = 0;
  std::string name, category;
  double begin = 0.0, end = 0.0;  // seconds
  ChromeArguments arguments = {};
};

// Values that hold from `time` on; the viewer draws them as one stacked curve.
struct ChromeCounter {
  int process = 0;
  std::string name;
  double time = 0.0;
  ChromeArguments values = {};
};

struct ChromeTrace {
  std::vector<ChromeProcess> processes = {};
  std::vector<ChromeEvent> events = {};
  std::vector<ChromeCounter> counters = {};
  ChromeArguments facts = {};  // of the whole trace; viewers show them as its metadata
};

// One JSON document.
std::string to_json(const ChromeTrace& trace);

}  // namespace weft
