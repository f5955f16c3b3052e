
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "parallel/shard/wrap.h"
#include "trainer/config/config_conditions.h"
#include "trainer/config/config_fields.h"

namespace weft::config_fields {
namespace {

// The policy of a family, or the default policy. Reading a family's first key starts from the default policy, which
// stands earlier in the table and is therefore complete.
ShardPolicy& policy_of(Config& config, std::optional<Family> family) {
  if (!family) return config.shard;
  return config.shard_by_family.try_emplace(*family, config.shard).first->second;
}
const ShardPolicy& policy_of(const Config& config, std::optional<Family> family) {
  if (!family) return config.shard;
  const auto found = config.shard_by_family.find(*family);
  return found == config.shard_by_family.end() ? config.shard : found->second;
}

// A word, or a number of ranks. Throws Error (request) for anything else.
ResidencyChoice read_residency(const ConfigValue& value) {
  if (const bool* flag = std::get_if<bool>(&value.data)) {
    fail_request("{0} is no residency: reshard_after_forward {0} is called \"{1}\" here", toml_text(*flag),
                 *flag ? "reshard_after_use" : "keep_after_forward");
  }
  const auto* ranks = std::get_if<std::int64_t>(&value.data);
  return parse_residency(ranks ? toml_text(*ranks) : expect<std::string>(value, "a string or an integer"));
}

// A residency, or a list of them with one for each stage.
ConfigKey residency_key(const std::string& path, std::optional<Family> family) {
  ConfigKey key = make_key(path, "a string, an integer or an array of them",
                           "how long full parameters stay; a list has one entry a stage");
  key.read = [family](Config& config, const ConfigValue& value) -> Faults {
    const auto* list = std::get_if<std::vector<ConfigValue>>(&value.data);
    const std::vector<ConfigValue> written = elements_of(value);
    if (written.empty()) return {{value.place, "the list is empty; write one entry a stage"}};
    Faults faults;
    std::vector<ResidencyChoice> choices;
    for (const ConfigValue& element : written) {
      collect(faults, element, [&] { choices.push_back(read_residency(element)); });
    }
    if (!faults.empty()) return faults;
    ShardPolicy& policy = policy_of(config, family);
    policy.residency = choices.front();
    policy.residency_by_stage = list ? choices : std::vector<ResidencyChoice>{};
    return {};
  };
  key.write = [family](const Config& config) {
    const auto text = [](const ResidencyChoice& choice) {
      return choice.kind == Residency::island ? to_string(choice) : toml_text(to_string(choice));
    };
    const ShardPolicy& policy = policy_of(config, family);
    if (policy.residency_by_stage.empty()) return text(policy.residency);
    std::vector<std::string> texts;
    for (const ResidencyChoice& residency : policy.residency_by_stage) texts.push_back(text(residency));
    return fmt::format("[{}]", fmt::join(texts, ", "));
  };
  return key;
}

PrecisionConfig& precision_of(Config& config, std::optional<Family> family) {
  if (!family) return config.precision;
  return config.precision_by_family.try_emplace(*family, config.inherited_precision(*family)).first->second;
}
const PrecisionConfig& precision_of(const Config& config, std::optional<Family> family) {
  return family ? config.precision_of(*family) : config.precision;
}

// A file's name, or {path = "b.bin", weight = 0.3}.
Faults read_source(const ConfigValue& value, DataSource& source) {
  const auto read_path = [&](const ConfigValue& path) {
    source.path = expect<std::string>(path, "a string");
    if (source.path.empty()) fail_request("the name of a file is empty");
  };
  Faults faults;
  if (std::holds_alternative<std::string>(value.data)) {
    collect(faults, value, [&] { read_path(value); });
    return faults;
  }
  const auto* table = std::get_if<TableMark>(&value.data);
  if (!table || !table->fields) return {wrong_type("a string, or a table with path and weight", value)};
  bool has_path = false;
  for (const ConfigField& field : *table->fields) {
    collect(faults, field.value, [&] {
      if (field.name == "path") {
        has_path = true;
        read_path(field.value);
      } else if (field.name == "weight") {
        source.weight = read_number(field.value, "a number", non_negative);
      } else {
        fail_request("a file has a path and a weight, no {}", field.name);
      }
    });
  }
  if (!has_path) faults.push_back({value.place, "a table names no path"});
  return faults;
}

}  // namespace

ConfigKey layers_key() {
  ConfigKey key =
      string_key(KeyField{"model.layers", &Config::layers_text},
                 "pattern of blocks: d dense, e experts, d:w and e:w of width w, of one part A (attention), M "
                 "(Mamba-2), D and E, m a predictor of one more token, x*n and (..)*n, and (..)~n up to n blocks",
                 [](const std::string& text) { parse_layers(text); });
  key.read = [read_text = key.read](Config& config, const ConfigValue& value) {
    Faults faults = read_text(config, value);
    if (faults.empty()) {
      ModelLayers layers = parse_layers(config.layers_text);
      config.model.blocks = std::move(layers.blocks);
      config.model.mtp_depth = layers.mtp_depth;
    }
    return faults;
  };
  return key;
}

// -1 would divide a given world, but the world is the product of the degrees.
ConfigKey data_shard_key() {
  const auto field = fields_of("parallelism", &Config::parallelism);
  ConfigKey key =
      integer_key(field("data_shard", &Degrees::data_shard), "ranks that share the parameters", degree_range);
  key.read = [read_degree = key.read](Config& config, const ConfigValue& value) -> Faults {
    if (const auto* degree = std::get_if<std::int64_t>(&value.data); degree && *degree == -1) {
      return {
          {value.place,
           "-1 stands for what is left of the world, and the world is the product of the degrees: write the number"}};
    }
    return read_degree(config, value);
  };
  return key;
}

std::vector<ConfigKey> shard_keys(std::optional<Family> family) {
  const std::string section = family ? fmt::format("shard.{}", name_of(*family)) : "shard";
  const auto field = fields_of(
      section, [family](auto& config) -> auto& { return policy_of(config, family); });
  const KeyCondition several_stages{"a rank runs several stages",
                                    [](const Config& c) { return c.stages() > c.parallelism.pipeline; }};
  std::vector<ConfigKey> keys = {
      choice_key(field("strategy", &ShardPolicy::strategy),
                 "sharded state, as a choice of residency and reduction (ZeRO-3, ZeRO-2, ZeRO-1, none)"),
      residency_key(section + ".residency", family),
      parsed_key(field("wrap", &ShardPolicy::wrap),
                 "size of a unit: parameter, block, half_block, \"blocks K\", \"minimum_bytes N\", buckets (as DDP's) "
                 "or root (the whole stage, to diagnose)",
                 parse_wrap),
      integer_key(field("lookahead", &ShardPolicy::lookahead),
                  "how many segments ahead a gather starts, of those that need one", {0, 1024}),
      choice_key(field("backward_prefetch", &ShardPolicy::backward_prefetch),
                 "where gathers of a backward begin: pre, as lookahead says; post, behind the computation before their "
                 "use; none, behind its reductions too"),
      boolean_key(field("prefetch_within_stage", &ShardPolicy::prefetch_within_stage, {several_stages}),
                  "whether a gather never begins before a computation of another of the rank's stages"),
      choice_key(field("accumulation", &ShardPolicy::accumulation),
                 "how gradients are kept between reductions: unsharded, sharded, or auto: as the strategy says"),
      parsed_key(
          field("reduction", &ShardPolicy::reduction),
          "when gradients are reduced: each_microbatch, last_microbatch, \"every N\", or auto: as the strategy says",
          parse_reduction),
  };
  if (family) {
    for (ConfigKey& key : keys) {
      key.inherits = "shard." + key.name;
      add_conditions(key, of_family(*family, key.name));
    }
  } else {
    keys.push_back(integer_key(KeyField{"shard.reduce_inputs", &Config::reduce_inputs},
                               "full gradients being reduced beside the one being filled; families share them",
                               {0, 1024}));
    keys.push_back(texts_key(KeyField{"shard.replicate", &Config::replicate},
                             "parameters that every rank of a stage has whole, in float32: patterns of names with * "
                             "and ?, of vectors alone; weights of routers always are",
                             any_text));
    keys.push_back(integer_key(
        KeyField{"shard.replicate_below", &Config::replicate_below},
        "vectors of fewer elements that every rank of a stage has whole, in float32, experts' aside", count_range));
    keys.push_back(bytes_key(KeyField{"shard.memory_budget", &Config::memory_budget},
                             "of residency auto: memory of a rank that the step may take, such as \"12 GiB\", or none",
                             "none"));
  }
  return keys;
}

std::vector<ConfigKey> precision_keys(std::optional<Family> family) {
  const std::string section = family ? fmt::format("precision.{}", name_of(*family)) : "precision";
  const auto field = fields_of(
      section, [family](auto& config) -> auto& { return precision_of(config, family); });
  const std::vector<DType> used = {DType::float32, DType::bfloat16, DType::float16};
  std::vector<ComputeType> computed(used.begin(), used.end());
  // The default says float8 for dense and experts only.
  std::vector<std::string> no_compute = {"float64"};
  if (!family || offers_float8(*family)) {
    computed.insert(computed.end(), {ProductFormat::float8, ProductFormat::float8_blocks});
  } else {
    no_compute.insert(no_compute.begin(), {"float8", "float8_blocks"});
  }
  std::vector<ConfigKey> keys = {
      choice_key(field("parameters", &PrecisionConfig::parameters), "stored shards", {DType::float32, DType::bfloat16},
                 {"float16", "float64"}),
      choice_key(field("compute", &PrecisionConfig::compute),
                 family && !offers_float8(*family) ? "gathered and computed in"
                                                   : "gathered and computed in, on a GPU bfloat16 unless given; "
                                                     "float8, float8_blocks: bfloat16, with products of 8 bits",
                 computed, no_compute),
      choice_key(field("reduction", &PrecisionConfig::reduction), "gradients are reduced in", used, {"float64"}),
  };
  if (!family) {
    keys[1].absent = [](Config& config) {
      if (config.run.device == DeviceKind::cuda) config.precision.compute = DType::bfloat16;
    };
  } else {
    for (ConfigKey& key : keys) {
      key.inherits = "precision." + key.name;
      key.read_where = of_family(*family, key.name);
    }
  }
  return keys;
}

ConfigKey frozen_key() {
  ConfigKey key = make_key("training.frozen", "an array of strings", "families that are not trained");
  key.read = [](Config& config, const ConfigValue& value) -> Faults {
    std::vector<std::string> names, words;
    for (const Family family : all_values<Family>) {
      if (family != Family::helpers) names.emplace_back(name_of(family));
    }
    const auto check = [&](const std::string& word) {
      if (std::ranges::find(names, word) == names.end()) fail_request("{}", wrong_word(word, names, {}));
    };
    Faults faults = read_texts(value, check, words);
    if (!faults.empty()) return faults;
    config.training.frozen.clear();
    for (const std::string& word : words) config.training.frozen.insert(*value_named<Family>(word));
    return {};
  };
  key.write = [](const Config& config) {
    std::vector<std::string> names;
    for (const Family family : config.training.frozen) names.emplace_back(name_of(family));
    return toml_text(names);
  };
  return key;
}

ConfigKey sources_key() {
  ConfigKey key = make_key("data.train", "an array of strings or of tables with path and weight",
                           "files to train on: text, or tokens that weft data tokenize wrote; {path = \"b.bin\", "
                           "weight = 0.3} draws by weight; none where nothing is trained");
  key.read = [expected = key.type](Config& config, const ConfigValue& value) -> Faults {
    const bool one = std::holds_alternative<std::string>(value.data);
    if (!one && !std::holds_alternative<std::vector<ConfigValue>>(value.data)) return {wrong_type(expected, value)};
    Faults faults;
    std::vector<DataSource> sources;
    double weights = 0.0;
    for (const ConfigValue& element : elements_of(value)) {
      DataSource source;
      const Faults found = read_source(element, source);
      faults.insert(faults.end(), found.begin(), found.end());
      weights += source.weight.value_or(1.0);
      sources.push_back(source);
    }
    if (faults.empty() && !sources.empty() && weights == 0.0) {
      faults.push_back({value.place, "all weights are 0; give a file a weight above 0"});
    }
    if (faults.empty() && !std::isfinite(weights)) {
      faults.push_back({value.place, "the sum of all weights is no finite number; only their ratios count"});
    }
    if (faults.empty()) config.data.train = std::move(sources);
    return faults;
  };
  key.write = [](const Config& config) {
    std::vector<std::string> texts;
    for (const DataSource& source : config.data.train) {
      const std::string path = toml_text(source.path);
      texts.push_back(source.weight ? fmt::format("{{path = {}, weight = {}}}", path, toml_text(*source.weight))
                                    : path);
    }
    return fmt::format("[{}]", fmt::join(texts, ", "));
  };
  return key;
}

}  // namespace weft::config_fields
