#include "trainer/diagnosis/trace_sum.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <tuple>
#include <utility>

#include "parallel/runtime/error.h"
#include "parallel/runtime/medians.h"
#include "parallel/runtime/outside_text.h"

namespace weft {
namespace {

constexpr std::pair<std::string_view, std::string_view> unit_phases[] = {
    {"unshard", "gather"},  {"reshard", "reshard"},    {"scatter_grad", "reduce"}, {"reduce_grad", "reduce"},
    {"tie_grad", "reduce"}, {"wait_reduce", "reduce"}, {"grad_norm", "update"},    {"optimizer", "update"}};

// The last part of a segment's or unit's name.
std::string_view family_of(std::string_view part) {
  const std::string_view last = part.substr(part.rfind('.') + 1);  // npos + 1 is 0
  if (last == "attention" || last == "state_space" || last == "mlp") return "dense";
  return last;
}

// "PP:2SEND_F", "PP:2F blocks.3.experts".
ActionLabels of_stage(std::string_view name) {
  ActionLabels labels;
  name.remove_prefix(3);
  const std::size_t digits = std::min(name.find_first_not_of("0123456789"), name.size());
  const std::size_t space = std::min(name.find(' '), name.size());
  const std::string_view op = name.substr(digits, space - std::min(space, digits));
  const bool message = op.starts_with("SEND_") || op.starts_with("RECV_");
  const bool rows = op.starts_with("ROWS_"), host = op.ends_with("LOAD");
  const bool compute = op.size() == 1 && std::string_view("FBIWR").find(op) != std::string_view::npos;
  if (digits == 0 || (!message && !rows && !host && !compute)) return {};
  labels.stage = name.substr(0, digits);
  labels.phase = message ? "message" : rows ? "rows" : host ? "offload" : op;
  if (space < name.size()) {
    labels.part = name.substr(space + 1);
    labels.family = family_of(labels.part);
  }
  return labels;
}

TimedSpan timed_span(int rank, const TraceSpan& span) {
  return {.name = span.name,
          .lane = std::string(span.lane ? name_of(*span.lane) : "host"),
          .rank = rank,
          .step = span.step,
          .microbatch = span.microbatch,
          .bytes = span.bytes,
          .seconds = span.end - span.begin};
}

// The labels of a span by all keys, in their order.
std::array<std::string, all_values<TraceKey>.size()> texts_of(const TimedSpan& span) {
  const ActionLabels action = labels_of(span.name);
  const auto text = [](const std::optional<std::int64_t>& number) {
    return number ? fmt::format("{}", *number) : std::string("-");
  };
  return {span.lane == "host" ? span.lane : std::string(action.phase),
          std::string(action.family),
          std::string(action.part),
          std::string(action.stage),
          text(span.microbatch),
          text(span.step),
          span.lane,
          fmt::format("{}", span.rank),
          span.name,
          span.kernel,
          span.work};
}

}  // namespace

ActionLabels labels_of(std::string_view name) {
  if (name.starts_with("PP:")) return of_stage(name);
  const std::size_t space = std::min(name.find(' '), name.size());
  const std::string_view word = name.substr(0, space);
  const auto found = std::ranges::find(unit_phases, word, [](const auto& entry) { return entry.first; });
  if (found == std::end(unit_phases)) return {};
  ActionLabels labels{.phase = found->second};
  if (space == name.size()) return labels;
  labels.part = name.substr(space + 1);
  labels.family = family_of(labels.part);
  // "stage.2.root"; names of blocks do not contain their stage.
  constexpr std::string_view stage = "stage.";
  if (labels.part.starts_with(stage)) {
    const std::string_view behind = labels.part.substr(stage.size());
    labels.stage = behind.substr(0, behind.find('.'));
  }
  return labels;
}

std::vector<TimedSpan> timed_spans(std::span<const RankTrace> traces) {
  std::vector<TimedSpan> spans;
  for (const RankTrace& trace : traces) {
    // A computation in parts has several actions of one name.
    using Key = std::tuple<std::int64_t, std::optional<int>, std::string_view>;
    std::multimap<Key, std::pair<const TraceSpan*, std::size_t>> actions;  // and their places in `spans`
    for (const TraceSpan& span : trace.spans) {
      if (!span.lane && span.name == "step") continue;
      actions.emplace(Key(span.step, span.microbatch, span.name), std::pair(&span, spans.size()));
      spans.push_back(timed_span(trace.rank, span));
    }
    for (const TraceSpan& work : trace.work) {
      // The middle, because a file rounds begin and end.
      const double middle = (work.begin + work.end) / 2.0;
      const auto [first, last] = actions.equal_range({work.step, work.microbatch, work.inside});
      const auto around = std::find_if(first, last, [&](const auto& entry) {
        return entry.second.first->begin <= middle && middle <= entry.second.first->end;
      });
      // Work is timed on the compute lane. Work in an action of another lane may lie beside the action's span.
      if (around == last) continue;
      TimedSpan timed = timed_span(trace.rank, work);
      timed.name = work.inside;
      timed.work = work.name;
      timed.is_work = true;
      spans[around->second.second].work_seconds += timed.seconds;
      spans.push_back(std::move(timed));
    }
  }
  return spans;
}

std::vector<TraceKey> parse_trace_keys(std::string_view text) {
  std::vector<TraceKey> keys;
  for (const std::string_view word : parts_between(text, ',')) {
    const auto key = value_named<TraceKey>(word);
    if (!key) {
      fail_request("spans are not told apart by \"{}\"; by any of {}", word, fmt::join(names_of_all<TraceKey>, ", "));
    }
    if (std::ranges::find(keys, *key) != keys.end()) fail_request("spans are told apart by {} twice", word);
    keys.push_back(*key);
  }
  return keys;
}

std::vector<TraceSum> sum_spans(std::span<const TimedSpan> spans, std::span<const TraceKey> keys) {
  const bool by_work = std::ranges::find(keys, TraceKey::work) != keys.end();
  std::map<std::vector<std::string>, std::vector<const TimedSpan*>> groups;
  for (const TimedSpan& span : spans) {
    if (span.is_work && !by_work) continue;
    const auto all = texts_of(span);
    std::vector<std::string> labels;
    for (const TraceKey key : keys) labels.push_back(all[static_cast<std::size_t>(key)]);
    groups[std::move(labels)].push_back(&span);
  }
  std::vector<TraceSum> sums;
  for (auto& [labels, members] : groups) {
    TraceSum sum{.labels = labels, .count = std::ssize(members)};
    std::vector<double> seconds;
    for (const TimedSpan* span : members) {
      sum.bytes += span->bytes;
      seconds.push_back(span->seconds - (by_work ? span->work_seconds : 0.0));
      sum.seconds += seconds.back();
    }
    std::ranges::sort(seconds);
    sum.least = seconds.front();
    sum.median = median_of(seconds);
    sum.most = seconds.back();
    sums.push_back(std::move(sum));
  }
  std::ranges::stable_sort(sums, std::ranges::greater{}, &TraceSum::seconds);
  return sums;
}

}  // namespace weft
