// The choices of a search: every mesh of a world of ranks, and for each mesh the values of a few more keys. A choice is
// a handful of values. The reader's own rules (config_rules.h) check the configuration of a choice; each rule runs as
// soon as the keys that it reads are chosen.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trainer/config/config_schema.h"
#include "trainer/costs/hardware.h"
#include "trainer/layout/chunked_layout.h"
#include "trainer/resolve/config_reader.h"
#include "trainer/resolve/config_rules.h"

namespace weft {

// Values of each key, by its path, as TOML or bare words. Keys without an entry take the defaults of search_space().
using SearchAxes = std::map<std::string, std::vector<std::string>>;
// The faults of a value of a key by itself, as of one on the command line.
Faults value_faults(const ConfigKey& key, const std::string& value);

// Parses words such as "tensor=1,2,4" or "pipeline.schedule=1f1b,zbv". Throws Error (request) with all faults: unknown
// axes, values that the key does not take, empty or repeated values.
SearchAxes parse_search_axes(const std::vector<std::string>& words);

// Indices into the lists of a SearchSpace.
struct SearchChoice {
  std::size_t mesh = 0, microbatch = 0, order = 0, policy = 0, recompute = 0;

  auto operator<=>(const SearchChoice&) const = default;
};

struct SearchedOrder {
  std::string schedule;
  int chunks = 1;
};

struct SearchedPolicy {
  std::string strategy, residency, reduction;
  Config base;  // with this policy and every key that is not searched
};

// Rules are grouped by the step of a choice after which all keys that they read are known.
enum class ChoiceStep : std::uint8_t { mesh, microbatch, order, policy, layout };
inline constexpr std::size_t choice_steps = 5;

struct SearchSpace {
  int world = 1;
  Hardware hardware;
  Overrides words;  // common to all choices, including the user's
  std::vector<Degrees> meshes;
  std::vector<int> microbatch_sizes;
  std::vector<SearchedOrder> orders;
  std::vector<SearchedPolicy> policies;
  std::vector<Recompute> recomputes;
  bool orders_given = false;  // by the user: then used for one pipeline rank as well
  bool across_nodes = false;  // as in SearchSetting
  std::array<std::vector<ConfigRule>, choice_steps> rules;
  std::shared_ptr<KnownSplits> splits = std::make_shared<KnownSplits>();

  // Indices into `orders` for a pipeline of so many ranks. For one rank only the first order with one chunk, unless
  // orders were given.
  std::vector<std::size_t> orders_of(int pipeline) const;
  std::size_t choices_of_mesh(const Degrees& mesh) const;
  std::size_t choices() const;
};

struct SearchSetting {
  std::optional<int> world = {};  // otherwise the configuration's
  SearchAxes axes = {};
  bool across_nodes = false;  // whether groups of tensor and expert_tensor may leave a node
};

// Axes without values of their own have
//   degrees        all with that product; expert and expert_tensor only with experts, the latter 1 or tensor
//   expert_dispatch  all_to_all, and hierarchical where an expert group fills several nodes
//   schedule       all except gpipe, which takes as long as 1f1b and more memory
//   chunks         1, 2, 4, 8 and the configuration's own, if the schedule takes them
//   strategy       full_shard or shard_grad_op
//   residency      reshard_after_use or step
//   reduction      last_microbatch or each_microbatch
//   microbatch_size  the configuration's own, and all that divide the batch up to 8
//   recompute      all, "experts" and "keep_dispatch" only with experts
//
// Stages are dealt as pipeline.layout "auto" deals them for the choice; its words contain the resulting layout. The
// device is the hardware's. Throws Error (request) with the faults of the configuration that no choice can repair.
SearchSpace search_space(const std::string& file, const Overrides& given, const SearchSetting& setting);

// The configuration of a choice up to `step`; keys of later steps have arbitrary values. A layout can be dealt once no
// rule objects.
Config config_of(const SearchSpace& space, const SearchChoice& choice, ChoiceStep step = ChoiceStep::layout);
// Overrides with which read_config() of the file returns the same configuration.
Overrides words_of(const SearchSpace& space, const SearchChoice& choice);
// The message of the first rule of that step that objects; absent if none does.
std::optional<std::string> refusal(const SearchSpace& space, ChoiceStep step, const Config& config);
// The reason, in words, to skip a choice that no rule of this step forbids. Groups of tensor or expert_tensor go across
// nodes, or stages have no block.
std::optional<std::string> left_out(const SearchSpace& space, ChoiceStep step, const Config& config);

}  // namespace weft
