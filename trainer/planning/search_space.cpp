#include "trainer/planning/search_space.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <set>
#include <utility>

#include "parallel/pipeline/orders/orders.h"
#include "parallel/runtime/error.h"
#include "parallel/runtime/outside_text.h"
#include "trainer/config/config_conditions.h"
#include "trainer/config/config_messages.h"
#include "trainer/config/config_schema.h"
#include "trainer/config/config_sources.h"
#include "trainer/costs/topology.h"
#include "trainer/layout/stage_layout.h"
#include "trainer/planning/remedies.h"

namespace weft {
namespace {

constexpr const char* said_by = "weft plan --search: error: ";

constexpr std::string_view dispatch_key = "parallelism.expert_dispatch", nodes_key = "parallelism.expert_nodes";
constexpr std::string_view other_keys[] = {dispatch_key,      "training.microbatch_size", "pipeline.schedule",
                                           "pipeline.chunks", "shard.strategy",           "shard.residency",
                                           "shard.reduction", "training.recompute"};

std::string degree_key(const NamedDegree& degree) {
  return fmt::format("parallelism.{}", degree.name);
}

// In the order in which they are chosen.
std::vector<std::string> search_keys() {
  std::vector<std::string> keys;
  for (const NamedDegree& degree : named_degrees) keys.push_back(degree_key(degree));
  keys.insert(keys.end(), std::begin(other_keys), std::end(other_keys));
  return keys;
}

std::string short_name(const std::string& key) {
  return key.substr(key.find('.') + 1);
}

// The axis that a word names: by path, or by the name after the last dot.
std::optional<std::string> axis_named(const std::string& name) {
  for (const std::string& key : search_keys()) {
    if (key == name || short_name(key) == name) return key;
  }
  return std::nullopt;
}

std::string axis_names() {
  std::vector<std::string> names;
  for (const std::string& key : search_keys()) names.push_back(short_name(key));
  return fmt::format("{}", fmt::join(names, ", "));
}

std::vector<int> numbers_of(const std::vector<std::string>& texts) {
  std::vector<int> numbers;
  for (const std::string& text : texts) {
    int number = 0;
    std::from_chars(text.data(), text.data() + text.size(), number);
    numbers.push_back(number);
  }
  return numbers;
}

bool holds(const auto& values, const auto& value) {
  return std::ranges::find(values, value) != values.end();
}

std::vector<std::string> values_of(const SearchAxes& axes, std::string_view key, std::vector<std::string> otherwise) {
  const auto found = axes.find(std::string(key));
  return found == axes.end() ? std::move(otherwise) : found->second;
}

// The divisors of `ranks` among the given values of a degree; all divisors if none are given.
std::vector<int> degrees_of(const SearchAxes& axes, std::string_view key, int ranks) {
  const std::vector<int> wanted = numbers_of(values_of(axes, key, {}));
  std::vector<int> degrees;
  for (int degree = 1; degree <= ranks; ++degree) {
    if (ranks % degree == 0 && (wanted.empty() || holds(wanted, degree))) degrees.push_back(degree);
  }
  return degrees;
}

// The mesh with the dispatches of tokens to experts that it can have. A hierarchical one goes between the nodes that an
// expert group fills.
std::vector<Degrees> dispatches_of(const SearchAxes& axes, const Degrees& written, int node_ranks, Degrees mesh) {
  mesh.expert_dispatch = written.expert_dispatch;
  mesh.expert_nodes = written.expert_nodes;
  if (mesh.expert == 1) return {mesh};
  const int ranks = mesh.expert * mesh.expert_tensor, nodes = ranks % node_ranks == 0 ? ranks / node_ranks : 1;
  std::vector<Degrees> meshes;
  for (const std::string& name : values_of(axes, dispatch_key, {"all_to_all", "hierarchical"})) {
    Degrees& next = meshes.emplace_back(mesh);
    next.expert_dispatch = *value_named<ExpertDispatch>(name);  // checked as a value of its key
    if (next.expert_dispatch != ExpertDispatch::hierarchical) continue;
    next.expert_nodes = nodes;
    if (nodes == 1 || mesh.expert % nodes != 0) meshes.pop_back();
  }
  return meshes;
}

// Adds all expert degrees that the ranks of a stage can be laid out in.
void add_expert_degrees(const SearchAxes& axes, const Config& config, int node_ranks, Degrees dense,
                        std::vector<Degrees>& meshes) {
  if (!config.model.has(BlockKind::moe)) {
    meshes.push_back(dense);
    return;
  }
  const bool named = axes.contains("parallelism.expert_tensor");
  for (const int expert : degrees_of(axes, "parallelism.expert", dense.stage_ranks())) {
    for (const int tensor : degrees_of(axes, "parallelism.expert_tensor", dense.stage_ranks() / expert)) {
      if (!named && tensor != 1 && tensor != dense.tensor) continue;
      dense.expert = expert;
      dense.expert_tensor = tensor;
      for (const Degrees& mesh : dispatches_of(axes, config.parallelism, node_ranks, dense)) meshes.push_back(mesh);
    }
  }
}

std::vector<Degrees> meshes_of(const SearchAxes& axes, const Config& config, int world, int node_ranks) {
  std::vector<Degrees> meshes;
  for (const int tensor : degrees_of(axes, "parallelism.tensor", world)) {
    for (const int context : degrees_of(axes, "parallelism.context", world / tensor)) {
      const int left = world / tensor / context;
      for (const int pipeline : degrees_of(axes, "parallelism.pipeline", left)) {
        for (const int replicate : degrees_of(axes, "parallelism.data_replicate", left / pipeline)) {
          const int shard = left / pipeline / replicate;
          if (!holds(degrees_of(axes, "parallelism.data_shard", left / pipeline), shard)) continue;
          add_expert_degrees(axes, config, node_ranks,
                             {.pipeline = pipeline,
                              .data_replicate = replicate,
                              .data_shard = shard,
                              .context = context,
                              .tensor = tensor},
                             meshes);
        }
      }
    }
  }
  return meshes;
}

// `usual` and the configuration's own.
std::vector<std::string> sizes_with(std::set<std::int64_t> usual, std::int64_t own) {
  usual.insert(own);
  std::vector<std::string> texts;
  for (const std::int64_t size : usual) texts.push_back(std::to_string(size));
  return texts;
}

// A microbatch divides the batch.
std::vector<std::string> microbatches_of(const TrainingConfig& training) {
  constexpr std::int64_t most = 8;
  std::set<std::int64_t> sizes;
  for (std::int64_t size = 1; size <= most; ++size) {
    if (training.global_batch_size % size == 0) sizes.insert(size);
  }
  return sizes_with(std::move(sizes), training.microbatch_size);
}

// A schedule from a file has its own numbers and accepts any chunks.
std::vector<SearchedOrder> orders_of_axes(const SearchAxes& axes, int own_chunks) {
  const auto known = schedules();
  std::vector<std::string> names = {"1f1b"};
  for (const Schedule& schedule : known) {
    if (schedule.name != "1f1b" && schedule.name != "gpipe") names.emplace_back(schedule.name);
  }
  std::vector<SearchedOrder> orders;
  for (const std::string& name : values_of(axes, "pipeline.schedule", names)) {
    for (const int chunks : numbers_of(values_of(axes, "pipeline.chunks", sizes_with({1, 2, 4, 8}, own_chunks)))) {
      const auto row = std::ranges::find(known, std::string_view(name), &Schedule::name);
      // Chunks that the user gave are left to the rules, even if the schedule does not take them.
      if (axes.contains("pipeline.chunks") || row == known.end() || row->takes_chunks(chunks)) {
        orders.push_back({name, chunks});
      }
    }
  }
  return orders;
}

bool is_axis(const std::string& path) {
  // Families inherit the values of [shard].
  return path.starts_with("shard.") || holds(search_keys(), path);
}

ChoiceStep step_of(const ConfigRule& rule) {
  const auto looks_at = [&](std::string_view key) { return holds(rule.keys, key); };
  if (std::ranges::any_of(rule.keys, [](const std::string& key) { return key.starts_with("shard."); }) ||
      looks_at("training.recompute")) {
    return ChoiceStep::policy;
  }
  if (looks_at("pipeline.schedule") || looks_at("pipeline.chunks")) return ChoiceStep::order;
  return looks_at("training.microbatch_size") ? ChoiceStep::microbatch : ChoiceStep::mesh;
}

// Words that select the hardware's device.
Overrides device_words(const Config& config, const Hardware& hardware, int world) {
  Overrides words;
  const DeviceKind device = device_of(hardware);
  const bool alone = world <= config.run.ranks_per_device;
  const LaunchKind launch = device == DeviceKind::cpu ? LaunchKind::threads
                            : alone                   ? config.run.launch
                                                      : LaunchKind::processes;
  if (config.run.device != device) words.push_back(word("run.device", name_of(device)));
  if (config.run.launch != launch) words.push_back(word("run.launch", name_of(launch)));
  return words;
}

// Words that reset pipeline keys written for another number of stages and ranks.
Overrides fixed_words(const Config& config, const SearchAxes& axes) {
  Overrides words = {word("pipeline.layout", "auto")};
  if (config.pipeline.microbatch_group != 0) words.push_back(word("pipeline.microbatch_group", 0));
  if (config.pipeline.first_stage_blocks) words.push_back(word("pipeline.first_stage_blocks", "auto"));
  if (config.pipeline.last_stage_blocks) words.push_back(word("pipeline.last_stage_blocks", "auto"));
  if (config.memory_budget && !holds(values_of(axes, "shard.residency", {}), std::string_view("auto"))) {
    words.push_back(word("shard.memory_budget", "none"));
  }
  return words;
}

// "auto" if there is only one stage.
std::string layout_of(const SearchSpace& space, Config config) {
  if (config.stages() == 1) return "auto";
  config.pipeline.layout = "auto";
  return to_string(stage_layout(config, {.splits = space.splits.get()}), config.model);
}

}  // namespace

Faults value_faults(const ConfigKey& key, const std::string& value) {
  const ConfigSources sources = gather_sources("", "", {word(key.path(), value)});
  Faults faults = sources.faults;
  Config config;
  if (const auto entry = sources.entries.find(key.path()); entry != sources.entries.end()) {
    for (Fault& fault : key.read(config, entry->second.value)) faults.push_back(std::move(fault));
  }
  return faults;
}

SearchAxes parse_search_axes(const std::vector<std::string>& words) {
  SearchAxes axes;
  std::vector<std::string> faults;
  const std::vector<ConfigKey> schema = config_schema();
  for (const std::string& given : words) {
    const std::size_t equals = given.find('=');
    const std::string name = given.substr(0, equals);
    const auto path = axis_named(name);
    if (equals == std::string::npos || !path) {
      const std::string what = equals == std::string::npos ? "has no values; write KEY=VALUE,VALUE"
                                                           : fmt::format("is no axis; there are {}", axis_names());
      faults.push_back(fmt::format("{}--search {}: {} {}", said_by, given, name, what));
      continue;
    }
    const ConfigKey& key = *std::ranges::find(schema, *path, [](const ConfigKey& each) { return each.path(); });
    for (const std::string_view part : parts_between(std::string_view(given).substr(equals + 1), ',')) {
      const std::string value(part);
      auto& values = axes[*path];
      if (value.empty()) {
        faults.push_back(fmt::format("{}--search {}: a value is empty", said_by, given));
      } else if (holds(values, value)) {
        faults.push_back(fmt::format("{}--search names {} {} twice", said_by, name, value));
      } else {
        if (const Faults found = value_faults(key, value); !found.empty()) faults.push_back(format_faults(found));
        if (value.ends_with(".csv")) {
          faults.push_back(
              fmt::format("{}--search {}: a file has its own numbers of ranks and microbatches, which a "
                          "search would change; name schedules",
                          said_by, given));
        }
        values.push_back(value);
      }
    }
  }
  if (!faults.empty()) throw Error(ErrorKind::request, fmt::format("{}", fmt::join(faults, "\n")));
  return axes;
}

std::vector<std::size_t> SearchSpace::orders_of(int pipeline) const {
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < orders.size(); ++i) {
    if (pipeline > 1 || orders_given || (places.empty() && orders[i].chunks == 1)) places.push_back(i);
  }
  return places;
}

std::size_t SearchSpace::choices_of_mesh(const Degrees& mesh) const {
  return microbatch_sizes.size() * orders_of(mesh.pipeline).size() * policies.size() * recomputes.size();
}

std::size_t SearchSpace::choices() const {
  std::size_t count = 0;
  for (const Degrees& mesh : meshes) count += choices_of_mesh(mesh);
  return count;
}

SearchSpace search_space(const std::string& file, const Overrides& given, const SearchSetting& setting) {
  const SearchAxes& axes = setting.axes;
  SearchSpace space;
  space.across_nodes = setting.across_nodes;
  space.words = given;
  Overrides one_rank;
  for (const NamedDegree& degree : named_degrees) one_rank.push_back(word(degree_key(degree), 1));
  Overrides first = given;
  if (setting.world) first.insert(first.end(), one_rank.begin(), one_rank.end());
  const Config written = read_undecided(file, first, [](const std::string& path) {
    return is_axis(path) || path.starts_with("run.") || path.starts_with("pipeline.");
  });
  space.world = setting.world.value_or(written.parallelism.world());
  space.hardware = hardware_of(written);
  require_full_nodes(space.world, space.hardware.node_ranks());
  for (const Overrides& words : {device_words(written, space.hardware, space.world), fixed_words(written, axes)}) {
    space.words = merged_words(space.words, words);
  }
  space.meshes = meshes_of(axes, written, space.world, space.hardware.node_ranks());
  space.microbatch_sizes = numbers_of(values_of(axes, "training.microbatch_size", microbatches_of(written.training)));
  space.orders = orders_of_axes(axes, written.pipeline.chunks);
  space.orders_given = axes.contains("pipeline.schedule") || axes.contains("pipeline.chunks");
  std::vector<std::string> recomputes;
  for (const Recompute value : all_values<Recompute>) {
    const bool of_experts = value == Recompute::experts || value == Recompute::keep_dispatch;
    if (!of_experts || written.model.has(BlockKind::moe)) recomputes.emplace_back(name_of(value));
  }
  for (const std::string& text : values_of(axes, "training.recompute", recomputes)) {
    space.recomputes.push_back(*value_named<Recompute>(text));
  }
  for (const std::string& strategy : values_of(axes, "shard.strategy", {"full_shard", "shard_grad_op"})) {
    for (const std::string& residency : values_of(axes, "shard.residency", {"reshard_after_use", "step"})) {
      for (const std::string& reduction : values_of(axes, "shard.reduction", {"last_microbatch", "each_microbatch"})) {
        if (residency == "stage" || reduction == "auto") {
          fail_request(
              "weft plan --search: residency \"stage\" and reduction \"auto\" leave to Weft what a search is to find: "
              "name reshard_after_use, step, ... and last_microbatch, each_microbatch, ...");
        }
        Overrides words = space.words;
        words.insert(words.end(), one_rank.begin(), one_rank.end());
        words.push_back(word("shard.strategy", strategy));
        words.push_back(word("shard.residency", residency));
        words.push_back(word("shard.reduction", reduction));
        space.policies.push_back({strategy, residency, reduction, read_undecided(file, words, is_axis)});
      }
    }
  }
  for (ConfigRule& rule : config_rules()) {
    if (std::ranges::none_of(rule.keys, is_axis)) continue;  // checked already
    space.rules[static_cast<std::size_t>(step_of(rule))].push_back(std::move(rule));
  }
  return space;
}

Config config_of(const SearchSpace& space, const SearchChoice& choice, ChoiceStep step) {
  Config config = space.policies[step >= ChoiceStep::policy ? choice.policy : 0].base;
  config.parallelism = space.meshes[choice.mesh];
  if (step == ChoiceStep::mesh) return config;
  config.training.microbatch_size = space.microbatch_sizes[choice.microbatch];
  if (step == ChoiceStep::microbatch) return config;
  config.pipeline.schedule = space.orders[choice.order].schedule;
  config.pipeline.own_order = std::nullopt;
  config.pipeline.chunks = space.orders[choice.order].chunks;
  if (step == ChoiceStep::order) return config;
  config.training.recompute = space.recomputes[choice.recompute];
  if (step == ChoiceStep::layout) config.pipeline.layout = layout_of(space, config);
  return config;
}

Overrides words_of(const SearchSpace& space, const SearchChoice& choice) {
  Overrides words;
  const Degrees& d = space.meshes[choice.mesh];
  for (const NamedDegree& named : named_degrees) words.push_back(word(degree_key(named), d.*named.degree));
  if (d.expert > 1) words.push_back(word(dispatch_key, name_of(d.expert_dispatch)));
  if (d.expert_relay() > 1 && d.expert_dispatch == ExpertDispatch::hierarchical) {
    words.push_back(word(nodes_key, d.expert_nodes));
  }
  const SearchedPolicy& policy = space.policies[choice.policy];
  words.push_back(word("training.microbatch_size", space.microbatch_sizes[choice.microbatch]));
  words.push_back(word("pipeline.schedule", space.orders[choice.order].schedule));
  words.push_back(word("pipeline.chunks", space.orders[choice.order].chunks));
  // Dealt layouts are stored as text.
  words.push_back(word("pipeline.layout", std::get<std::string>(config_of(space, choice).pipeline.layout)));
  words.push_back(word("shard.strategy", policy.strategy));
  words.push_back(word("shard.residency", policy.residency));
  words.push_back(word("shard.reduction", policy.reduction));
  words.push_back(word("training.recompute", name_of(space.recomputes[choice.recompute])));
  Overrides given = space.words;
  // A given word that the choice leaves without effect would be refused.
  const Config config = config_of(space, choice);
  for (const ConfigKey& key : config_schema()) {
    if (!missing_for(key, config)) continue;
    std::erase_if(given, [&](const std::string& one) { return one.starts_with("--" + key.path() + "="); });
  }
  return merged_words(given, words);
}

std::optional<std::string> refusal(const SearchSpace& space, ChoiceStep step, const Config& config) {
  for (const ConfigRule& rule : space.rules[static_cast<std::size_t>(step)]) {
    if (auto messages = rule.check(config); !messages.empty()) return std::move(messages.front());
  }
  return std::nullopt;
}

std::optional<std::string> left_out(const SearchSpace& space, ChoiceStep step, const Config& config) {
  if (step == ChoiceStep::mesh && !space.across_nodes) {
    const Mesh mesh(config.parallelism);
    for (const Group group : {Group::tp, Group::etp}) {
      if (!group_links(mesh, group, space.hardware.node_ranks()).crosses_nodes()) continue;
      return fmt::format("{} groups would leave a node (--across-nodes lets them)",
                         group == Group::tp ? "tensor" : "expert_tensor");
    }
  }
  // Embedding and head may each stand alone.
  if (step == ChoiceStep::order && config.stages() > config.model.layers() + 2) {
    return "more stages than blocks, embedding and head: some would be empty";
  }
  return std::nullopt;
}

}  // namespace weft
