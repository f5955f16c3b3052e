#include "trainer/config_special_keys.h"

#include "parallel/runtime/error.h"
#include "trainer/config_fields.h"

namespace weft::config_fields {
namespace {

// What `parse` throws about a text, or nothing.
template <typename Parse>
std::string complaint_of(Parse parse) {
  try {
    parse();
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

// The policy of a family, or the default policy. Reading a family's first key starts from the default, which stands
// earlier in the table and is therefore complete.
ShardPolicy& policy_of(Config& config, std::optional<Family> family) {
  if (!family) return config.shard;
  return config.shard_by_family.try_emplace(*family, config.shard).first->second;
}
const ShardPolicy& policy_of(const Config& config, std::optional<Family> family) {
  if (!family) return config.shard;
  const auto found = config.shard_by_family.find(*family);
  return found == config.shard_by_family.end() ? config.shard : found->second;
}

}  // namespace

ConfigKey layers_key() {
  ConfigKey key = string_key(
      "model.layers", "pattern of blocks: d dense, e experts, x*n and (..)*n",
      [](auto& c) -> auto& { return c.layers_text; },
      [](const std::string& text) { return complaint_of([&] { parse_layers(text); }); });
  key.read = [read_text = key.read](Config& config, const ConfigValue& value) {
    Faults faults = read_text(config, value);
    if (faults.empty()) config.model.blocks = parse_layers(config.layers_text);
    return faults;
  };
  return key;
}

// -1 needs a world to divide; the ranks of one process have no other than the product of the degrees.
ConfigKey data_shard_key() {
  ConfigKey key = integer_key(
      "parallelism.data_shard", "ranks over which parameters are sharded", degree_range,
      [](auto& c) -> auto& { return c.parallelism.data_shard; });
  key.read = [read_degree = key.read](Config& config, const ConfigValue& value) -> Faults {
    if (const auto* degree = std::get_if<std::int64_t>(&value.data); degree && *degree == -1) {
      return {{value.place,
               "-1 stands for what is left of the world, but with run.launch = \"threads\" the world is the product "
               "of the degrees: write the number"}};
    }
    return read_degree(config, value);
  };
  return key;
}

ConfigKey schedule_key() {
  ConfigKey key = choice_key<std::string>(
      "pipeline.schedule", "order of forwards and backwards", {{"gpipe", "gpipe"}, {"1f1b", "1f1b"}},
      {"interleaved", "looped_bfs", "zb1p", "zbv", "dualpipev"}, [](auto& c) -> auto& { return c.pipeline.schedule; });
  key.read = [read_word = key.read](Config& config, const ConfigValue& value) -> Faults {
    if (const auto* word = std::get_if<std::string>(&value.data); word && word->ends_with(".csv")) {
      return {{value.place, "schedules from files are not available in this version; use \"gpipe\" or \"1f1b\""}};
    }
    return read_word(config, value);
  };
  return key;
}

std::vector<ConfigKey> shard_keys(std::optional<Family> family) {
  const std::string section = family ? fmt::format("shard.{}", name_of(*family)) : "shard";
  std::vector<ConfigKey> keys = {
      choice_key<ShardStrategy>(
          section + ".strategy", "whether parameters are sharded over data_shard",
          {{"full_shard", ShardStrategy::full_shard}, {"no_shard", ShardStrategy::no_shard}},
          {"shard_grad_op"}, [family](auto& c) -> auto& { return policy_of(c, family).strategy; }),
      choice_key<std::string>(
          section + ".residency", "when full parameters exist",
          {{"stage", "stage"}, {"each_use", "each_use"}, {"visit", "visit"}, {"step", "step"}},
          {}, [family](auto& c) -> auto& { return policy_of(c, family).residency; }),
      integer_key(
          section + ".lookahead", "how many actions ahead of its use a gather starts",
          {0, 1024}, [family](auto& c) -> auto& { return policy_of(c, family).lookahead; }),
      string_key(
          section + ".reduction", "when gradients are reduced: each_microbatch, last_microbatch or \"every N\"",
          [family](auto& c) -> auto& { return policy_of(c, family).reduction; },
          [](const std::string& text) {
            ShardPolicy policy;
            policy.reduction = text;
            return complaint_of([&] { policy.reduce_every(); });
          }),
  };
  if (family) {
    for (ConfigKey& key : keys) key.inherits = "shard." + key.name;
  }
  return keys;
}

ConfigKey train_key() {
  ConfigKey key = make_key("data.train", "an array of strings", "files to train on");
  key.read = [expected = key.type](Config& config, const ConfigValue& value) -> Faults {
    const auto* elements = std::get_if<std::vector<ConfigValue>>(&value.data);
    if (!elements) return {wrong_type(expected, value)};
    if (elements->empty()) return {{value.place, "the list is empty; name at least one file"}};
    Faults faults;
    std::vector<std::string> files;
    for (const ConfigValue& element : *elements) {
      const auto* file = std::get_if<std::string>(&element.data);
      if (!file) {
        faults.push_back(wrong_type("a string", element));
      } else if (file->empty()) {
        faults.push_back({element.place, "the name of a file is empty"});
      } else {
        files.push_back(*file);
      }
    }
    if (faults.empty()) config.data.train = std::move(files);
    return faults;
  };
  key.write = [](const Config& config) { return toml_text(config.data.train); };
  return key;
}

}  // namespace weft::config_fields
