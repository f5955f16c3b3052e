#include "trainer/data/resumption.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "parallel/runtime/input_file.h"
#include "trainer/data/partial_file.h"

namespace weft {

std::string resumption_name(const std::string& prefix) {
  return prefix + ".resume.json";
}

Resumption find_resumption(const std::string& prefix, const std::string& work) {
  const std::string name = resumption_name(prefix);
  std::error_code ignored;
  if (!std::filesystem::exists(name, ignored)) return {};
  const nlohmann::json json = nlohmann::json::parse(read_whole_file(name), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || json.value("work", nlohmann::json()) != work) return {};
  const auto number = [&](const char* key) {
    const auto found = json.find(key);
    return found == json.end() || !found->is_number_integer() ? std::int64_t{-1} : found->get<std::int64_t>();
  };
  const Resumption place{number("texts"),
                         number("skipped"),
                         number("text_bytes"),
                         {number("tokens"), number("sequences"), number("documents")}};
  const bool whole = place.texts >= 0 && place.skipped >= 0 && place.text_bytes >= 0 && place.written.tokens >= 0 &&
                     place.written.sequences >= 0 && place.written.documents >= 0;
  return whole ? place : Resumption{};
}

void keep_resumption(const std::string& prefix, const std::string& work, const Resumption& place) {
  const nlohmann::ordered_json json = {{"work", work},
                                       {"texts", place.texts},
                                       {"skipped", place.skipped},
                                       {"text_bytes", place.text_bytes},
                                       {"tokens", place.written.tokens},
                                       {"sequences", place.written.sequences},
                                       {"documents", place.written.documents}};
  write_small_file(resumption_name(prefix), json.dump(2) + "\n");
}

void forget_resumption(const std::string& prefix, const std::string& work) {
  std::error_code ignored;
  const std::string name = resumption_name(prefix);
  if (!std::filesystem::exists(name, ignored)) return;
  // On disk before the removal may be: where the power fails, a place of other work must not come back.
  keep_resumption(prefix, work, {});
  std::filesystem::remove(name, ignored);
}

}  // namespace weft
