#include "tools/bare_program.h"

#include <charconv>
#include <map>
#include <optional>

#include "parallel/pipeline/check.h"
#include "parallel/pipeline/passes.h"
#include "parallel/runtime/error.h"

namespace weft {
namespace {

int number_of(const std::map<std::string, std::string>& words, const std::string& key, std::optional<int> otherwise) {
  const auto found = words.find(key);
  if (found == words.end()) {
    if (otherwise) return *otherwise;
    fail_request("weft program: error: --world-only needs {}=N", key);
  }
  int value = 0;
  const char* end = found->second.data() + found->second.size();
  const auto [stop, error] = std::from_chars(found->second.data(), end, value);
  if (error != std::errc() || stop != end || value < 1) {
    fail_request("weft program: error: {}={} is not a number of at least 1", key, found->second);
  }
  return value;
}

}  // namespace

BareProgram bare_program(std::span<const std::string> given) {
  std::map<std::string, std::string> words;
  for (const std::string& word : given) {
    const std::size_t equals = word.find('=');
    const std::string key = word.substr(0, equals);
    if (equals == std::string::npos || (key != "pipeline" && key != "chunks" && key != "microbatches" &&
                                        key != "schedule" && key != "microbatch_group")) {
      fail_request(
          "weft program: error: --world-only takes pipeline=N chunks=N microbatches=N microbatch_group=N "
          "schedule=NAME, not {}",
          word);
    }
    words[key] = word.substr(equals + 1);
  }
  const OrderInput input{number_of(words, "pipeline", std::nullopt), number_of(words, "chunks", 1),
                         number_of(words, "microbatches", std::nullopt),
                         words.contains("microbatch_group") ? number_of(words, "microbatch_group", 0) : 0};
  const auto schedule = words.find("schedule");
  const Schedule& row = find_schedule(schedule == words.end() ? "1f1b" : schedule->second);
  BareProgram bare{
      fmt::format("{}, {} ranks{}, {} microbatches{}", row.name, input.ranks,
                  input.chunks > 1 ? fmt::format(" x {} chunks", input.chunks) : "", input.microbatches,
                  input.microbatch_group > 0 ? fmt::format(" in groups of {}", input.microbatch_group) : ""),
      compile(bare_tables(input.ranks, input.ranks * input.chunks, row.placement), row, input)};
  check(bare.program);
  return bare;
}

}  // namespace weft
