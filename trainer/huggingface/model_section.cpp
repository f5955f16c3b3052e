#include "trainer/huggingface/model_section.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "parallel/runtime/error.h"
#include "trainer/config/config_conditions.h"
#include "trainer/config/config_messages.h"
#include "trainer/config/config_schema.h"
#include "trainer/config/config_sources.h"

namespace weft {
namespace {

std::vector<ConfigKey> model_schema() {
  std::vector<ConfigKey> schema = config_schema();
  std::erase_if(schema, [](const ConfigKey& key) { return !key.path().starts_with("model."); });
  return schema;
}

// Of a key that is written, if it has this type.
template <typename T>
std::optional<T> value_in(const ConfigSources& sources, const std::string& path) {
  const auto entry = sources.entries.find(path);
  const T* value = entry == sources.entries.end() ? nullptr : std::get_if<T>(&entry->second.value.data);
  return value == nullptr ? std::nullopt : std::optional(*value);
}

}  // namespace

ModelSection read_model_section(const std::filesystem::path& file) {
  ConfigSources sources = gather_sources(file, read_text(file), {});
  Config config;
  Faults faults = std::move(sources.faults);
  const auto schema = model_schema();
  for (const ConfigKey& key : schema) {
    const auto entry = sources.entries.find(key.path());
    if (entry != sources.entries.end()) {
      for (Fault& fault : key.read(config, entry->second.value)) {
        faults.push_back({std::move(fault.place), key.path() + ": " + fault.text});
      }
    } else if (key.required && !missing_for(key, config)) {
      faults.push_back(
          {Place{.source = sources.file}, fmt::format("{} is required: {} ({})", key.path(), key.type, key.help)});
    }
  }
  const auto known = [&](const std::string& path) {
    return std::ranges::any_of(schema, [&](const ConfigKey& key) { return key.path() == path || key.section == path; });
  };
  for (const auto& [path, entry] : sources.entries) {
    if (path.starts_with("model.") && !known(path)) {
      faults.push_back({entry.key, fmt::format("unknown key {}", path)});
    }
  }
  sort_by_place(faults);
  if (!faults.empty()) throw Error(ErrorKind::request, format_faults(faults));
  return {config.model, value_in<std::int64_t>(sources, "training.sequence_length"),
          value_in<std::string>(sources, "data.tokenizer").value_or(""),
          value_in<bool>(sources, "data.padded_vocab").value_or(false),
          value_in<std::string>(sources, "data.documents").value_or("")};
}

std::string model_section_toml(const ModelConfig& model) {
  Config config;
  config.model = model;
  config.layers_text = layers_text({model.blocks, model.mtp_depth});
  return write_config(config, model_schema(), [](const ConfigKey&) { return ""; });
}

std::string layers_text(const ModelLayers& layers) {
  std::vector<std::pair<std::string, int>> runs;  // of equal blocks
  for (std::size_t i = 0; i < layers.blocks.size(); ++i) {
    const ModelBlock& block = layers.blocks[i];
    const bool predicts = i + static_cast<std::size_t>(layers.mtp_depth) >= layers.blocks.size();
    std::string symbol = predicts ? "m" : block_symbol(block);
    if (runs.empty() || runs.back().first != symbol) runs.emplace_back(std::move(symbol), 0);
    ++runs.back().second;
  }
  std::string text;
  for (const auto& [symbol, count] : runs) {
    if (!text.empty()) text += ' ';
    text += count == 1 ? symbol : fmt::format("{}*{}", symbol, count);
  }
  return text;
}

}  // namespace weft
