#include "trainer/data/json_texts.h"

#include "trainer/data/json_places.h"
#include "trainer/data/unpacked_file.h"

#ifdef WEFT_HAVE_SIMDJSON
#include <simdjson.h>
#endif

namespace weft {

#ifdef WEFT_HAVE_SIMDJSON
namespace {

static_assert(UnpackedFile::padding >= simdjson::SIMDJSON_PADDING);
// Above this the parser would take more memory than a batch of documents.
constexpr std::size_t longest_quick_line = std::size_t{1} << 24;

bool find_text(simdjson::dom::element value, const std::vector<std::string>& path, std::string& text) {
  for (const std::string& key : path) {
    simdjson::dom::object object;
    if (value.get(object) != simdjson::SUCCESS) return false;
    bool found = false;
    for (const auto field : object) {
      if (field.key != key) continue;
      value = field.value;
      found = true;
    }
    if (!found) return false;
  }
  std::string_view characters;
  if (value.get(characters) != simdjson::SUCCESS) return false;
  text = characters;
  return true;
}

}  // namespace

struct JsonTexts::Parser : simdjson::dom::parser {};

bool JsonTexts::find(std::string_view line, std::span<const std::vector<std::string>> paths,
                     std::vector<std::string>& texts) {
  if (line.size() > longest_quick_line) return false;
  if (line.size() > parser_->capacity() && parser_->allocate(2 * line.size(), deepest_line) != simdjson::SUCCESS) {
    return false;
  }
  simdjson::dom::element object;
  if (parser_->parse(line.data(), line.size(), /*realloc_if_needed=*/false).get(object) != simdjson::SUCCESS) {
    return false;
  }
  texts.resize(paths.size());
  for (std::size_t p = 0; p < paths.size(); ++p) {
    if (!find_text(object, paths[p], texts[p])) return false;
  }
  return true;
}
#else
struct JsonTexts::Parser {};

bool JsonTexts::find(std::string_view, std::span<const std::vector<std::string>>, std::vector<std::string>&) {
  return false;
}
#endif

JsonTexts::JsonTexts() : parser_(std::make_unique<Parser>()) {}
JsonTexts::~JsonTexts() = default;
JsonTexts::JsonTexts(JsonTexts&&) noexcept = default;

}  // namespace weft
