#include "parallel/runtime/chrome_trace.h"

#include <nlohmann/json.hpp>

namespace weft {
namespace {

using Json = nlohmann::ordered_json;

Json object_of(const ChromeArguments& arguments) {
  Json object = Json::object();
  for (const auto& [name, value] : arguments) {
    std::visit([&, &key = name](const auto& held) { object[key] = held; }, value);
  }
  return object;
}

}  // namespace

std::string to_json(const ChromeTrace& trace) {
  Json events = Json::array();
  const auto name_it = [&](const char* what, int process, int thread, const Json& arguments) {
    events.push_back({{"name", what}, {"ph", "M"}, {"pid", process}, {"tid", thread}, {"args", arguments}});
  };
  for (const ChromeProcess& process : trace.processes) {
    name_it("process_name", process.number, 0, {{"name", process.name}});
    name_it("process_sort_index", process.number, 0, {{"sort_index", process.number}});
    for (const ChromeThread& thread : process.threads) {
      name_it("thread_name", process.number, thread.number, {{"name", thread.name}});
      name_it("thread_sort_index", process.number, thread.number, {{"sort_index", thread.number}});
    }
  }
  // Microseconds.
  for (const ChromeEvent& event : trace.events) {
    events.push_back({{"name", event.name},
                      {"cat", event.category},
                      {"ph", "X"},
                      {"ts", 1e6 * event.begin},
                      {"dur", 1e6 * (event.end - event.begin)},
                      {"pid", event.process},
                      {"tid", event.thread},
                      {"args", object_of(event.arguments)}});
  }
  for (const ChromeCounter& counter : trace.counters) {
    events.push_back({{"name", counter.name},
                      {"ph", "C"},
                      {"ts", 1e6 * counter.time},
                      {"pid", counter.process},
                      {"args", object_of(counter.values)}});
  }
  Json document = {{"displayTimeUnit", "ms"}};
  if (!trace.facts.empty()) document["otherData"] = object_of(trace.facts);
  document["traceEvents"] = std::move(events);
  return document.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace weft
