#include "trainer/config/config_conditions.h"
#include "trainer/config/config_fields.h"
#include "trainer/config/config_special_keys.h"

namespace weft::config_fields {
namespace {

std::string anything(const std::string&) {
  return {};
}
std::string is_pattern(const std::string& text) {
  return text.empty() ? "the name is empty" : "";
}
std::string is_renaming(const std::string& text) {
  const std::size_t sign = text.find('=');
  const bool two =
      sign != std::string::npos && sign > 0 && sign + 1 < text.size() && text.find('=', sign + 1) == text.npos;
  return two ? "" : fmt::format("\"{}\" is not \"name in the checkpoint=name here\"", text);
}

// `check` looks at one text of the list.
template <typename Access>
ConfigKey texts_key(const std::string& path, std::string help, Access access,
                    std::string (*check)(const std::string&)) {
  ConfigKey key = make_key(path, "an array of strings", std::move(help));
  key.read = [=, expected = key.type](Config& config, const ConfigValue& value) -> Faults {
    const auto* elements = std::get_if<std::vector<ConfigValue>>(&value.data);
    if (!elements) return {wrong_type(expected, value)};
    Faults faults;
    std::vector<std::string> texts;
    for (const ConfigValue& element : *elements) {
      const auto* text = std::get_if<std::string>(&element.data);
      if (!text) {
        faults.push_back(wrong_type("a string", element));
      } else if (const std::string complaint = check(*text); !complaint.empty()) {
        faults.push_back({element.place, complaint});
      } else {
        texts.push_back(*text);
      }
    }
    if (faults.empty()) access(config) = std::move(texts);
    return faults;
  };
  key.write = [=](const Config& config) { return toml_text(access(config)); };
  return key;
}

// Pieces below this size are too small for any disk.
constexpr std::int64_t least_host_memory = std::int64_t{16} << 20;

ConfigKey host_memory_key() {
  ConfigKey key =
      make_key("checkpoint.host_memory", "a string or an integer",
               "memory of the host, such as \"16 GiB\", for the copy of a rank's save; the rest is copied as files are "
               "written, and the next update waits for it");
  key.read = [](Config& config, const ConfigValue& value) -> Faults {
    std::optional<std::int64_t> bytes;
    if (Faults faults = read_bytes(value, "", bytes); !faults.empty()) return faults;
    if (bytes.value_or(0) < least_host_memory)
      return {{value.place, "less than 16 MiB are too small a piece to write"}};
    config.checkpoint.host_memory = *bytes;
    return {};
  };
  key.write = [](const Config& config) { return toml_text(config.checkpoint.host_memory); };
  return key;
}

}  // namespace

std::vector<ConfigKey> checkpoint_keys() {
  const KeyCondition by_interval{"interval is not 0", [](const Config& c) { return c.checkpoint.interval > 0; }};
  const KeyCondition starts_from{"start_from names a checkpoint",
                                 [](const Config& c) { return !c.checkpoint.start_from.empty(); }};
  return {
      string_key(
          "checkpoint.directory", "checkpoints go here, a folder each; empty: checkpoints in run.directory",
          [](auto& c) -> auto& { return c.checkpoint.directory; }, anything),
      integer_key(
          "checkpoint.interval", "steps between checkpoints; 0: none but those that signals ask for", count_range,
          [](auto& c) -> auto& { return c.checkpoint.interval; }),
      only_where({by_interval}, boolean_key(
                                    "checkpoint.at_first_step",
                                    "save after step 1 too, so that a place that cannot be written to is found early",
                                    [](auto& c) -> auto& { return c.checkpoint.at_first_step; })),
      only_where({by_interval}, boolean_key(
                                    "checkpoint.at_end", "save after the last step too, where an interval is given",
                                    [](auto& c) -> auto& { return c.checkpoint.at_end; })),
      integer_key(
          "checkpoint.keep_latest", "so many of the newest checkpoints are kept; 0: all", count_range,
          [](auto& c) -> auto& { return c.checkpoint.keep_latest; }),
      integer_key(
          "checkpoint.keep_every", "those at multiples of so many steps are kept too; 0: none", count_range,
          [](auto& c) -> auto& { return c.checkpoint.keep_every; }),
      boolean_key(
          "checkpoint.asynchronous", "files are written while training goes on",
          [](auto& c) -> auto& { return c.checkpoint.asynchronous; }),
      host_memory_key(),
      boolean_key(
          "checkpoint.resume", "go on with the newest checkpoint of the directory, if there is one",
          [](auto& c) -> auto& { return c.checkpoint.resume; }),
      boolean_key(
          "checkpoint.allow_new_data", "go on with a checkpoint of other data, and read these from their first sample",
          [](auto& c) -> auto& { return c.checkpoint.allow_new_data; }),
      string_key(
          "checkpoint.start_from",
          "checkpoint to begin with where the directory has none: its folder, or that of a run",
          [](auto& c) -> auto& { return c.checkpoint.start_from; }, anything),
      only_where({starts_from}, boolean_key(
                                    "checkpoint.weights_only",
                                    "of start_from take the weights alone and count steps and samples from 0",
                                    [](auto& c) -> auto& { return c.checkpoint.weights_only; })),
      texts_key(
          "checkpoint.rename", "parameters that have another name in the checkpoint: \"name there=name here\"",
          [](auto& c) -> auto& { return c.checkpoint.rename; }, is_renaming),
      texts_key(
          "checkpoint.allow_missing", "tensors (* for any characters) that begin anew where the checkpoint has none",
          [](auto& c) -> auto& { return c.checkpoint.allow_missing; }, is_pattern),
      texts_key(
          "checkpoint.allow_unused", "tensors (* for any characters) of the checkpoint that may be left out",
          [](auto& c) -> auto& { return c.checkpoint.allow_unused; }, is_pattern),
  };
}

}  // namespace weft::config_fields
