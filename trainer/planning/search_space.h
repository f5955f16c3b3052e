// What a search chooses among: every way to lay a world of ranks out as a mesh, and for each the values of a few more
// keys. A choice is a handful of values; with them the configuration is one that the reader accepts, by its own rules
// (config_rules.h), each asked as soon as the keys it looks at are chosen.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "trainer/costs/hardware.h"
#include "trainer/resolve/config_reader.h"
#include "trainer/resolve/config_rules.h"

namespace weft {

// Values of a key as TOML or bare words, by its path. Keys that are not named take what search_space() says.
using SearchAxes = std::map<std::string, std::vector<std::string>>;
// The keys of an axis, in the order in which they are chosen.
std::vector<std::string> search_keys();
// From words such as "tensor=1,2,4" or "pipeline.schedule=1f1b,zbv". Throws Error (request) with everything wrong: no
// such axis, values that the key does not take, empty or repeated ones.
SearchAxes parse_search_axes(const std::vector<std::string>& words);

// Degrees, the sequences of a microbatch, and one value of each other axis, as a place in its list.
struct SearchChoice {
  Degrees mesh;
  int microbatch_size = 1;
  std::size_t order = 0;      // in SearchSpace::orders
  std::size_t policy = 0;     // in SearchSpace::policies
  std::size_t recompute = 0;  // in SearchSpace::recomputes

  bool operator==(const SearchChoice&) const = default;
};

struct SearchedOrder {
  std::string schedule;
  int chunks = 1;
  bool operator==(const SearchedOrder&) const = default;
};

// Layouts that were dealt already, by ranks, order, recompute and microbatches. For several threads.
class DealtLayouts {
 public:
  using Key = std::tuple<int, std::size_t, std::size_t, std::int64_t>;
  std::string find_or(const Key& key, const std::function<std::string()>& deal);

 private:
  std::mutex mutex_;
  std::map<Key, std::string> layouts_;
};

struct SearchedPolicy {
  std::string strategy, residency, reduction;
  Config base;  // with this policy, and everything else that is not chosen
};

// Rules are grouped by the step of a choice at which all that they look at is known.
enum class ChoiceStep : std::uint8_t { mesh, microbatch, order, policy, layout };
inline constexpr std::size_t choice_steps = 5;

struct SearchSpace {
  int world = 1;
  Hardware hardware;
  Overrides words;  // common to all choices, those given by the user included
  std::vector<Degrees> meshes;
  std::vector<int> microbatch_sizes;
  std::vector<SearchedOrder> orders;
  std::vector<SearchedPolicy> policies;
  std::vector<Recompute> recomputes;
  bool orders_given = false;  // by the user: then also for one pipeline rank
  bool across_nodes = false;  // as in SearchSetting
  std::array<std::vector<ConfigRule>, choice_steps> rules;
  std::shared_ptr<DealtLayouts> layouts = std::make_shared<DealtLayouts>();

  // Places in `orders` of those that a pipeline of so many ranks chooses among: of one rank, unless orders were given,
  // only the first with one chunk.
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
//   degrees        all with that product; expert and expert_tensor only where there are experts, the latter 1 or tensor
//   schedule       all but gpipe, which takes as long as 1f1b and more memory
//   chunks         1, 2, 4 and 8 where the schedule takes them
//   strategy, residency, reduction   full_shard or shard_grad_op; each_use or step; last_microbatch or each_microbatch
//   microbatch_size, recompute       1, 2, 4, 8; all
// Stages are dealt by cost, as pipeline.layout "auto" deals them to an unsplit mesh of so many pipeline ranks, once for
// each order, number of microbatches and recompute; that layout is written out in the words of a choice. The device is
// the hardware's. Throws Error (request) with what is wrong with the configuration whatever is chosen.
SearchSpace search_space(const std::string& file, const Overrides& given, const SearchSetting& setting);

// The configuration of a choice, up to `step` of it: what is chosen later stays as it happens to be. A layout can be
// dealt once no rule objects.
Config config_of(const SearchSpace& space, const SearchChoice& choice, ChoiceStep step = ChoiceStep::layout);
// What makes read_config() of the file give the same.
Overrides words_of(const SearchSpace& space, const SearchChoice& choice);
// The first message of the rules of that step, if any objects.
std::optional<std::string> refusal(const SearchSpace& space, ChoiceStep step, const Config& config);
// Whatever no rule forbids and yet is not worth looking at, said in words: groups of tensor or expert_tensor that leave
// a node, stages without a block. Of the step that it is known at.
std::optional<std::string> left_out(const SearchSpace& space, ChoiceStep step, const Config& config);

}  // namespace weft
