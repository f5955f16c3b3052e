#include "trainer/config/config_conditions.h"
#include "trainer/config/config_fields.h"

namespace weft::config_fields {
namespace {

void is_renaming(const std::string& text) {
  const std::size_t sign = text.find('=');
  const bool two =
      sign != std::string::npos && sign > 0 && sign + 1 < text.size() && text.find('=', sign + 1) == text.npos;
  if (!two) fail_request("\"{}\" is not \"name in the checkpoint=name here\"", text);
}

// Pieces below this size are too small for any disk.
constexpr std::int64_t least_host_memory = std::int64_t{16} << 20;

ConfigKey host_memory_key() {
  const auto field = fields_of("checkpoint", &Config::checkpoint);
  const auto read = [](const ConfigValue& value) {
    const auto bytes = read_bytes(value, "");
    if (bytes.value_or(0) < least_host_memory) fail_request("less than 16 MiB are too small a piece to write");
    return *bytes;
  };
  const auto write = [](std::int64_t bytes) { return toml_text(bytes); };
  return value_key(field("host_memory", &CheckpointConfig::host_memory), "a string or an integer",
                   "memory of the host, such as \"16 GiB\", for the copy of a rank's save; the rest is copied as files "
                   "are written, and the next update waits for it",
                   read, write);
}

}  // namespace

std::vector<ConfigKey> checkpoint_keys() {
  using C = CheckpointConfig;
  const auto field = fields_of("checkpoint", &Config::checkpoint);
  const KeyCondition by_interval{"interval is not 0", [](const Config& c) { return c.checkpoint.interval > 0; }};
  const KeyCondition starts_from{"start_from names a checkpoint",
                                 [](const Config& c) { return !c.checkpoint.start_from.empty(); }};
  const KeyCondition loads{"resume is true or start_from names a checkpoint",
                           [](const Config& c) { return c.checkpoint.resume || !c.checkpoint.start_from.empty(); }};
  const KeyCondition goes_on{"resume is true, or weights_only false for a start_from", [](const Config& c) {
                               const CheckpointConfig& checkpoint = c.checkpoint;
                               return checkpoint.resume || (!checkpoint.start_from.empty() && !checkpoint.weights_only);
                             }};
  return {
      string_key(field("directory", &C::directory),
                 "checkpoints go here, a folder each; empty: checkpoints in run.directory", any_text),
      integer_key(field("interval", &C::interval),
                  "steps between checkpoints; 0: none before the last step but those that signals ask for",
                  count_range),
      boolean_key(field("at_first_step", &C::at_first_step, {by_interval}),
                  "save after step 1 too, so that a place that cannot be written to is found early"),
      boolean_key(field("at_end", &C::at_end), "save after the last step, whatever the interval"),
      integer_key(field("keep_latest", &C::keep_latest), "so many of the newest checkpoints are kept; 0: all",
                  count_range),
      integer_key(field("keep_every", &C::keep_every), "those at multiples of so many steps are kept too; 0: none",
                  count_range),
      boolean_key(field("asynchronous", &C::asynchronous), "files are written while training goes on"),
      host_memory_key(),
      boolean_key(field("resume", &C::resume), "go on with the newest checkpoint of the directory, if there is one"),
      boolean_key(field("allow_new_data", &C::allow_new_data, {goes_on}),
                  "go on with a checkpoint of other data, and read these from their first sample"),
      string_key(field("start_from", &C::start_from),
                 "checkpoint to begin with where the directory has none: its folder, or that of a run", any_text),
      boolean_key(field("weights_only", &C::weights_only, {starts_from}),
                  "of start_from take the weights alone and count steps and samples from 0"),
      texts_key(field("rename", &C::rename, {loads}),
                "parameters that have another name in the checkpoint: \"name there=name here\"", is_renaming),
      texts_key(field("allow_missing", &C::allow_missing, {loads}),
                "tensors (names with * and ?) that begin anew where the checkpoint has none",
                not_empty("the name is empty")),
      texts_key(field("allow_unused", &C::allow_unused, {loads}),
                "tensors (names with * and ?) of the checkpoint that may be left out", not_empty("the name is empty")),
  };
}

}  // namespace weft::config_fields
