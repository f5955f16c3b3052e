#include <fmt/ranges.h>

#include <algorithm>

#include "parallel/pipeline/orders/orders.h"
#include "parallel/runtime/input_file.h"
#include "trainer/config/config_fields.h"
#include "trainer/config/layout_text.h"

namespace weft::config_fields {
namespace {

constexpr IntegerRange blocks_range{0, 100'000};

// An array of texts, or of numbers.
Faults read_list(Config& config, const std::vector<ConfigValue>& elements, const ConfigValue& value) {
  if (elements.empty()) return {{value.place, "the list is empty; write one entry a stage"}};
  std::vector<std::string> texts;
  std::vector<std::int64_t> counts;
  const bool numbers = std::holds_alternative<std::int64_t>(elements.front().data);
  Faults faults;
  for (const ConfigValue& element : elements) {
    const auto* text = std::get_if<std::string>(&element.data);
    const auto* count = std::get_if<std::int64_t>(&element.data);
    if (!(numbers ? count != nullptr : text != nullptr)) {
      faults.push_back(
          wrong_type(numbers ? "an integer, as the first entry is" : "a string, as the first entry is", element));
      if (&element == &elements.front()) faults.back() = wrong_type("a string or an integer", element);
    } else if (count) {
      collect(faults, element, [&] { counts.push_back(read_number(element, "an integer", blocks_range)); });
    } else {
      texts.push_back(*text);
    }
  }
  if (!faults.empty()) return faults;
  if (numbers) {
    config.pipeline.layout = std::move(counts);
    return {};
  }
  for (const LayoutFault& fault : read_layout(texts).faults) {
    faults.push_back({elements[fault.text].place, fault.message});
  }
  if (faults.empty()) config.pipeline.layout = std::move(texts);
  return faults;
}

// Throws Error (request) if no schedule has the name.
void require_schedule(const std::string& name) {
  if (name == "dualpipe") find_schedule(name);  // known elsewhere, and refused for a reason
  std::vector<std::string> names;
  for (const Schedule& schedule : schedules()) names.emplace_back(schedule.name);
  if (std::ranges::find(names, name) != names.end()) return;
  fail_request("{}{}", wrong_word(name, names, {}), own_schedule_text);
}

}  // namespace

ConfigKey schedule_key() {
  ConfigKey key = make_key("pipeline.schedule", "a string",
                           "order of forwards and backwards: a name, a .csv file in PyTorch's compute-only form, or "
                           "the lines of one, as a run's config.toml has them");
  key.read = [](Config& config, const ConfigValue& value) {
    Faults faults;
    collect(faults, value, [&] {
      const auto word = expect<std::string>(value, "a string");
      const bool is_file = word.ends_with(".csv");
      std::string lines = is_file ? InputFile(word).text() : word.find(',') == std::string::npos ? std::string() : word;
      std::optional<UserOrder> own_order;
      if (is_file || !lines.empty()) {
        own_order = order_from_csv(lines);
      } else {
        require_schedule(word);
      }
      config.pipeline.schedule = lines == word ? "own" : word;
      config.pipeline.own_order = std::move(own_order);
      config.pipeline.order_lines = std::move(lines);
    });
    return faults;
  };
  // A run goes on, and its checkpoints are read, without the file.
  key.write = [](const Config& config) {
    const PipelineConfig& pipeline = config.pipeline;
    return toml_text(pipeline.order_lines.empty() || !pipeline.own_order ? pipeline.schedule : pipeline.order_lines);
  };
  return key;
}

ConfigKey layout_key() {
  ConfigKey key = make_key(
      "pipeline.layout", "a string or an array",
      "blocks of each stage: auto (by cost), \"Ed|(e|)*3eL\", or a list with a text or a number of blocks a stage");
  key.read = [expected = key.type](Config& config, const ConfigValue& value) -> Faults {
    if (const auto* elements = std::get_if<std::vector<ConfigValue>>(&value.data)) {
      return read_list(config, *elements, value);
    }
    const auto* text = std::get_if<std::string>(&value.data);
    if (!text) return {wrong_type(expected, value)};
    Faults faults;
    if (*text != "auto") {
      for (const LayoutFault& fault : read_layout(*text).faults) faults.push_back({value.place, fault.message});
    }
    if (faults.empty()) config.pipeline.layout = *text;
    return faults;
  };
  key.write = [](const Config& config) {
    const auto& layout = config.pipeline.layout;
    if (const auto* text = std::get_if<std::string>(&layout)) return toml_text(*text);
    if (const auto* texts = std::get_if<std::vector<std::string>>(&layout)) return toml_text(*texts);
    return fmt::format("[{}]", fmt::join(std::get<std::vector<std::int64_t>>(layout), ", "));
  };
  return key;
}

ConfigKey stage_blocks_key(const std::string& which) {
  return integer_key(fields_of("pipeline", &Config::pipeline)(
                         which + "_stage_blocks",
                         which == "first" ? &PipelineConfig::first_stage_blocks : &PipelineConfig::last_stage_blocks),
                     "blocks of the " + which + " stage, the other stages getting equally many; auto: by layout",
                     blocks_range);
}

}  // namespace weft::config_fields
