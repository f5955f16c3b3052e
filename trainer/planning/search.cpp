#include "trainer/planning/search.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <limits>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <tuple>

#include "parallel/runtime/error.h"
#include "trainer/optimizer/muon_rows.h"
#include "trainer/planning/search_bounds.h"
#include "trainer/solved_timing.h"
#include "trainer/step_plan.h"
#include "trainer/unit_policy.h"

namespace weft {
namespace {

// How many are looked at at once, whatever the number of threads.
constexpr std::size_t wave = 32;

// Each dry run has its own addresses, of which a process has enough for so many (dry_device.cpp).
constexpr std::size_t most_threads = 6;

// What is known of a choice, or of all with its mesh and microbatch.
enum class Known : std::uint8_t { pieces, mean, bounds, seconds, all };

struct Node {
  Known known = Known::pieces;
  double seconds = 0.0;                   // at least; from Known::seconds on exactly
  std::int64_t bytes = 0;                 // at least; of Known::all exactly. Without what the hardware reserves
  std::array<std::size_t, 5> place = {};  // mesh, microbatch, order, policy, recompute: in the lists of the space
  std::size_t choices = 1;
  std::shared_ptr<const SearchedPlan> plan = {};  // from Known::seconds on

  auto key() const { return std::tuple(seconds, place, known); }
  bool operator<(const Node& other) const { return key() < other.key(); }
};

SearchChoice choice_at(const SearchSpace& space, const std::array<std::size_t, 5>& place) {
  return {.mesh = space.meshes[place[0]],
          .microbatch_size = space.microbatch_sizes[place[1]],
          .order = place[2],
          .policy = place[3],
          .recompute = place[4]};
}

// A message as the name of a reason: no two choices would be refused alike with their numbers.
std::string reason_of(std::string_view message) {
  std::string reason;
  for (const char c : message.substr(0, message.find('\n'))) {
    const bool digit = c >= '0' && c <= '9';
    if (!digit) {
      reason += c;
    } else if (reason.empty() || reason.back() != '#') {
      reason += '#';
    }
  }
  return reason;
}

void refuse(SearchCounts& counts, const std::string& message, std::size_t choices) {
  Refusals& refusals = counts.refused[reason_of(message)];
  if (refusals.choices == 0) refusals.example = message.substr(0, message.find('\n'));
  refusals.choices += choices;
}

void add(SearchCounts& sum, const SearchCounts& part) {
  for (const auto& [reason, refusals] : part.refused) {
    Refusals& all = sum.refused[reason];
    if (all.choices == 0) all.example = refusals.example;
    all.choices += refusals.choices;
  }
  for (const auto& [rule, choices] : part.left_out) sum.left_out[rule] += choices;
  sum.same += part.same;
  sum.static_bytes += part.static_bytes;
  sum.held_bytes += part.held_bytes;
  sum.slower += part.slower;
  sum.simulated += part.simulated;
  sum.unfit += part.unfit;
  sum.planned += part.planned;
}

bool can_fit(const Hardware& hardware, std::int64_t bytes) {
  BucketBytes all;
  all[Bucket::workspace] = bytes;
  return judge(hardware, all).fits();
}

// Runs `work` of 0 .. count - 1 on so many threads. Throws what the first of them that failed threw.
void for_each(std::size_t count, std::size_t threads, const std::function<void(std::size_t)>& work) {
  std::atomic<std::size_t> next = 0;
  std::vector<std::exception_ptr> thrown(count);
  const auto loop = [&] {
    for (std::size_t i = next++; i < count; i = next++) {
      try {
        work(i);
      } catch (...) {
        thrown[i] = std::current_exception();
      }
    }
  };
  std::vector<std::thread> others;
  for (std::size_t t = 1; t < std::min({threads, count, most_threads}); ++t) others.emplace_back(loop);
  loop();
  for (std::thread& other : others) other.join();
  for (const std::exception_ptr& each : thrown) {
    if (each) std::rethrow_exception(each);
  }
}

// What of the policies a program is compiled from: choices in which it is the same come to the same.
std::string policy_text(const Config& config) {
  std::string text;
  const bool by_stage = std::ranges::any_of(config.shard_by_family,
                                            [](const auto& entry) { return !entry.second.residency_by_stage.empty(); });
  for (int stage = 0; stage < (by_stage ? config.stages() : 1); ++stage) {
    std::map<std::string, std::size_t> merged;  // families of one key may share a unit
    const WrapRules wrap = wrap_rules(config, stage);
    for (const auto& [family, shard] : config.shard_by_family) {
      const UnitPolicy policy = resolve_policy(config, family, stage);
      text += fmt::format("{} {} {} {} {} {} {} {} {};", name_of(policy.residency), policy.window_stages,
                          policy.island_ranks, policy.lookahead, policy.reduce_every, policy.accumulate_sharded,
                          shard.strategy == ShardStrategy::no_shard, shard.wrap,
                          merged.try_emplace(wrap.merge_key.at(family), merged.size()).first->second);
    }
  }
  return text;
}

struct Memory {
  BucketBytes peak;
  bool complete = true;
};

// Of the fullest rank; with `stop` only as far as it shows that the hardware has too little.
Memory walked(const Config& config, const Mesh& mesh, const Hardware& hardware, bool stop) {
  Memory memory;
  std::map<std::int64_t, Program> programs;
  for (const RankClass& ranks : rank_classes(config, mesh)) {
    const std::int64_t rows = balanced_part(config.model.vocab_size, config.parallelism.tensor, ranks.at.tp).count;
    auto found = programs.find(rows);
    if (found == programs.end()) found = programs.emplace(rows, step_program(config, mesh, ranks.at)).first;
    const BucketBytes peak = dry_run(config, mesh, found->second, ranks.first).peak;
    if (peak.total() > memory.peak.total()) memory.peak = peak;
    if (!stop || judge(hardware, memory.peak).fits()) continue;
    memory.complete = false;
    return memory;
  }
  return memory;
}

void solve(Config& config, const Mesh& mesh) {
  if (is_solved(config) && !config.timing) config.timing = std::make_shared<TimingPlan>(solve_timing(config, mesh));
}

// What looking at a node comes to.
struct Step {
  std::vector<Node> nodes;
  SearchCounts counts;
  std::vector<Node> too_large;  // by what they are known to take
};

class Search {
 public:
  Search(const SearchSpace& space, const SearchOptions& options, const std::function<void(const SearchProgress&)>& told)
      : space_(space), options_(options), told_(told) {}

  SearchResult run() {
    result_.counts.choices = space_.choices();
    begin();
    while (!finished()) {
      const std::vector<Node> next = take();
      for (const Step& step : looked_at(next)) account(step);
      tell();
    }
    for (const Node& node : queue_) leave(node);
    if (result_.plans.empty()) result_.least = least();
    mark_front(result_.plans);
    return std::move(result_);
  }

 private:
  // Meshes and microbatches that the rules accept.
  void begin() {
    std::vector<Node> all;
    for (std::size_t mesh = 0; mesh < space_.meshes.size(); ++mesh) {
      const std::size_t below = space_.choices_of_mesh(space_.meshes[mesh]);
      const Config config = config_of(space_, choice_at(space_, {mesh}), ChoiceStep::mesh);
      if (!accepted(ChoiceStep::mesh, config, below, result_.counts)) continue;
      for (std::size_t size = 0; size < space_.microbatch_sizes.size(); ++size) {
        const std::size_t choices = below / space_.microbatch_sizes.size();
        const Config sized = config_of(space_, choice_at(space_, {mesh, size}), ChoiceStep::microbatch);
        if (!accepted(ChoiceStep::microbatch, sized, choices, result_.counts)) continue;
        all.push_back({.known = Known::pieces, .place = {mesh, size}, .choices = choices});
      }
    }
    std::vector<Step> steps(all.size());
    for_each(all.size(), options_.threads, [&](std::size_t i) { steps[i] = weigh(all[i]); });
    for (const Step& step : steps) account(step);
    tell();
  }

  bool accepted(ChoiceStep step, const Config& config, std::size_t choices, SearchCounts& counts) const {
    if (const auto message = refusal(space_, step, config)) {
      refuse(counts, *message, choices);
      return false;
    }
    if (const auto rule = left_out(space_, step, config)) {
      counts.left_out[*rule] += choices;
      return false;
    }
    return true;
  }

  bool fits(std::int64_t bytes) const { return can_fit(space_.hardware, bytes); }

  // The least of any strategy and recompute.
  Step weigh(Node node) const {
    node.seconds = std::numeric_limits<double>::infinity();
    node.bytes = std::numeric_limits<std::int64_t>::max();
    for (const auto& [key, pieces] : pieces_of(node)) {
      const LeastTaken least =
          least_of_any_layout(config_of(space_, choice_at(space_, node.place), ChoiceStep::policy), pieces);
      node.seconds = std::min(node.seconds, least.seconds);
      node.bytes = std::min(node.bytes, least.static_bytes);
    }
    Step step;
    if (fits(node.bytes)) {
      step.nodes.push_back(std::move(node));
    } else {
      step.counts.static_bytes = node.choices;
      step.too_large.push_back(std::move(node));
    }
    return step;
  }

  // By place of the recompute and by strategy.
  using Pieces = std::map<std::pair<std::size_t, std::string>, ModelPieces>;
  Pieces pieces_of(const Node& node) const {
    Pieces pieces;
    for (std::size_t recompute = 0; recompute < space_.recomputes.size(); ++recompute) {
      for (std::size_t policy = 0; policy < space_.policies.size(); ++policy) {
        const std::pair key(recompute, kind_of(policy));
        if (pieces.contains(key)) continue;
        auto place = node.place;
        place[3] = policy;
        place[4] = recompute;
        pieces.emplace(key,
                       model_pieces(config_of(space_, choice_at(space_, place), ChoiceStep::policy), space_.hardware));
      }
    }
    return pieces;
  }
  // Policies whose pieces are the same.
  std::string kind_of(std::size_t policy) const {
    const SearchedPolicy& row = space_.policies[policy];
    return row.strategy + " " + row.reduction + (row.residency == "auto" ? " auto" : "");
  }

  // What a mesh and a microbatch can be combined with.
  Step expand(const Node& node) const {
    Step step;
    const Pieces pieces = pieces_of(node);
    const std::size_t below = space_.policies.size() * space_.recomputes.size();
    for (const std::size_t order : space_.orders_of(space_.meshes[node.place[0]].pipeline)) {
      auto place = node.place;
      place[2] = order;
      const Config ordered = config_of(space_, choice_at(space_, place), ChoiceStep::order);
      if (!accepted(ChoiceStep::order, ordered, below, step.counts)) continue;
      std::set<std::string> known;
      for (std::size_t policy = 0; policy < space_.policies.size(); ++policy) {
        place[3] = policy;
        place[4] = 0;
        const Config config = config_of(space_, choice_at(space_, place), ChoiceStep::policy);
        if (!accepted(ChoiceStep::policy, config, space_.recomputes.size(), step.counts)) continue;
        if (!known.insert(policy_text(config)).second) {
          step.counts.same += space_.recomputes.size();
          continue;
        }
        for (place[4] = 0; place[4] < space_.recomputes.size(); ++place[4]) {
          const LeastTaken least = least_of_any_layout(config, pieces.at({place[4], kind_of(policy)}));
          add_leaf({.known = Known::mean, .seconds = least.seconds, .bytes = least.bytes, .place = place},
                   least.static_bytes, step);
        }
      }
    }
    return step;
  }

  void add_leaf(Node node, std::int64_t static_bytes, Step& step) const {
    if (!fits(static_bytes)) {
      ++step.counts.static_bytes;
      step.too_large.push_back(std::move(node));
    } else if (!fits(node.bytes)) {
      ++step.counts.held_bytes;
      step.too_large.push_back(std::move(node));
    } else {
      step.nodes.push_back(std::move(node));
    }
  }

  Config planned(const Node& node) const { return config_of(space_, choice_at(space_, node.place)); }

  Step tighten(Node node) const {
    const Config config = planned(node);
    const LeastTaken least = least_taken(config, model_pieces(config, space_.hardware));
    node.known = Known::bounds;
    node.seconds = std::max(node.seconds, least.seconds);
    node.bytes = std::max(node.bytes, least.bytes);
    Step step;
    add_leaf(std::move(node), least.static_bytes, step);
    return step;
  }

  Step simulated(Node node) const {
    Step step;
    Config config = planned(node);
    const Mesh mesh(config.parallelism);
    SearchedPlan plan{.choice = choice_at(space_, node.place)};
    try {
      solve(config, mesh);
      plan.layout = to_string(stage_layout(config), config.model);
      plan.time = step_time(config, mesh, step_program(config, mesh, mesh.coordinates(0)), space_.hardware);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::request) throw;
      refuse(step.counts, error.what(), 1);
      return step;
    }
    node.known = Known::seconds;
    node.seconds = plan.time.seconds;
    node.plan = std::make_shared<const SearchedPlan>(std::move(plan));
    step.nodes.push_back(std::move(node));
    return step;
  }

  Step walk(Node node, bool stop) const {
    Config config = planned(node);
    const Mesh mesh(config.parallelism);
    solve(config, mesh);
    const Memory memory = walked(config, mesh, space_.hardware, stop);
    SearchedPlan plan = *node.plan;
    plan.peak = memory.peak;
    plan.verdict = judge(space_.hardware, memory.peak);
    node.bytes = std::max(node.bytes, memory.peak.total());
    if (memory.complete) node.known = Known::all;
    node.plan = std::make_shared<const SearchedPlan>(std::move(plan));
    Step step;
    if (node.plan->verdict.fits()) {
      ++step.counts.planned;
      step.nodes.push_back(std::move(node));
    } else {
      ++step.counts.unfit;
      step.too_large.push_back(std::move(node));
    }
    return step;
  }

  Step look(const Node& node) const {
    switch (node.known) {
      case Known::pieces:
        return expand(node);
      case Known::mean:
        return tighten(node);
      case Known::bounds:
        return simulated(node);
      default:
        return walk(node, true);
    }
  }

  // Plans at the front of the queue are found: nothing that is left can be faster. The rest may still be on the front.
  bool finished() {
    while (!queue_.empty()) {
      const Node& first = *queue_.begin();
      const bool enough = result_.plans.size() >= options_.top;
      if (enough && first.seconds > options_.front_within * best_seconds()) return true;
      if (enough && (options_.front_within == 0.0 || first.bytes >= least_bytes_)) {
        leave(first);
      } else if (first.known == Known::all) {
        result_.plans.push_back(*first.plan);
        least_bytes_ = std::min(least_bytes_, first.bytes);
      } else {
        return false;
      }
      queue_.erase(queue_.begin());
    }
    return true;
  }
  double best_seconds() const { return result_.plans.empty() ? 0.0 : result_.plans.front().time.seconds; }
  void leave(const Node& node) {
    if (node.known == Known::all) return;  // counted as planned
    (node.known >= Known::seconds ? result_.counts.simulated : result_.counts.slower) += node.choices;
  }

  // The next ones in the queue that are not planned, as long as they can matter by what is known now.
  std::vector<Node> take() {
    std::vector<Node> next;
    std::size_t found = result_.plans.size();
    for (auto node = queue_.begin(); node != queue_.end() && next.size() < wave;) {
      if (node->known == Known::all) {
        ++found;
        ++node;
        if (found >= options_.top && options_.front_within == 0.0) break;
      } else {
        next.push_back(*node);
        node = queue_.erase(node);
      }
    }
    return next;
  }

  std::vector<Step> looked_at(const std::vector<Node>& nodes) const {
    std::vector<Step> steps(nodes.size());
    for_each(nodes.size(), options_.threads, [&](std::size_t i) { steps[i] = look(nodes[i]); });
    return steps;
  }

  void account(const Step& step) {
    add(result_.counts, step.counts);
    queue_.insert(step.nodes.begin(), step.nodes.end());
    too_large_.insert(too_large_.end(), step.too_large.begin(), step.too_large.end());
  }

  void tell() const {
    if (!told_) return;
    SearchProgress progress{.counts = result_.counts, .waiting = queue_.size()};
    if (!result_.plans.empty()) progress.best_seconds = best_seconds();
    told_(progress);
  }

  // Of what does not fit, what takes least: best first by bytes.
  std::optional<SearchedPlan> least() {
    std::set<std::pair<std::tuple<std::int64_t, std::array<std::size_t, 5>, Known>, std::size_t>> order;
    const auto put = [&](std::size_t i) {
      order.insert({std::tuple(too_large_[i].bytes, too_large_[i].place, too_large_[i].known), i});
    };
    for (std::size_t i = 0; i < too_large_.size(); ++i) put(i);
    while (!order.empty()) {
      std::vector<Node> next;
      while (!order.empty() && next.size() < wave) {
        const Node& first = too_large_[order.begin()->second];
        if (first.known == Known::all) {
          if (next.empty()) return *first.plan;
          break;
        }
        next.push_back(first);
        order.erase(order.begin());
      }
      std::vector<Step> steps(next.size());
      for_each(next.size(), options_.threads, [&](std::size_t i) { steps[i] = look_for_bytes(next[i]); });
      for (Step& step : steps) {
        for (auto* nodes : {&step.nodes, &step.too_large}) {
          for (Node& node : *nodes) {
            too_large_.push_back(std::move(node));
            put(too_large_.size() - 1);
          }
        }
      }
    }
    return std::nullopt;
  }

  Step look_for_bytes(const Node& node) const {
    if (node.known == Known::pieces) return expand(node);
    if (node.known == Known::mean) return tighten(node);
    if (node.known == Known::seconds) return walk(node, false);
    Step step = simulated(node);
    if (step.nodes.empty()) return step;
    return walk(std::move(step.nodes.front()), false);
  }

  const SearchSpace& space_;
  const SearchOptions& options_;
  const std::function<void(const SearchProgress&)>& told_;
  SearchResult result_;
  std::set<Node> queue_;
  std::vector<Node> too_large_;
  std::int64_t least_bytes_ = std::numeric_limits<std::int64_t>::max();
};

}  // namespace

SearchResult search_plans(const SearchSpace& space, const SearchOptions& options,
                          const std::function<void(const SearchProgress&)>& progress) {
  return Search(space, options, progress).run();
}

JudgedChoice judge_choice(const SearchSpace& space, const SearchChoice& choice) {
  JudgedChoice judged;
  for (const ChoiceStep step : {ChoiceStep::mesh, ChoiceStep::microbatch, ChoiceStep::order, ChoiceStep::policy}) {
    const Config config = config_of(space, choice, step);
    auto message = refusal(space, step, config);
    if (!message) message = left_out(space, step, config);
    if (!message) continue;
    judged.refused = *message;
    return judged;
  }
  const RunPlan plan = plan_run(config_of(space, choice), space.hardware);
  judged.plan = SearchedPlan{choice, plan.layout, plan.time, plan.peak(), plan.verdict};
  return judged;
}

std::vector<SearchChoice> all_choices(const SearchSpace& space) {
  std::vector<SearchChoice> choices;
  for (std::size_t mesh = 0; mesh < space.meshes.size(); ++mesh) {
    for (std::size_t size = 0; size < space.microbatch_sizes.size(); ++size) {
      for (const std::size_t order : space.orders_of(space.meshes[mesh].pipeline)) {
        for (std::size_t policy = 0; policy < space.policies.size(); ++policy) {
          for (std::size_t recompute = 0; recompute < space.recomputes.size(); ++recompute) {
            choices.push_back(choice_at(space, {mesh, size, order, policy, recompute}));
          }
        }
      }
    }
  }
  return choices;
}

void mark_front(std::vector<SearchedPlan>& plans) {
  std::optional<std::int64_t> least;
  for (std::size_t begin = 0; begin < plans.size();) {
    std::size_t end = begin;
    std::int64_t fewest = std::numeric_limits<std::int64_t>::max();
    while (end < plans.size() && plans[end].time.seconds == plans[begin].time.seconds) {
      fewest = std::min(fewest, plans[end++].peak.total());
    }
    for (; begin < end; ++begin) {
      plans[begin].front = plans[begin].peak.total() == fewest && (!least || fewest < *least);
    }
    if (!least || fewest < *least) least = fewest;
  }
}

}  // namespace weft
