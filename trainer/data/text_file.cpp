#include "trainer/data/text_file.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <string_view>

#include "parallel/runtime/error.h"

namespace weft {
namespace {

using std::string_view_literals::operator""sv;

struct Signature {
  std::string_view bytes;  // the first bytes of a file
  const char* what;
};

// The first bytes by the specification of each format, enough of them that no text begins so.
constexpr std::array signatures = {
    Signature{"MMIDIDX\0\0"sv, "the index of a dataset of Megatron"},
    Signature{"\x1f\x8b"sv, "compressed with gzip; unpack it first"},
    Signature{"\x28\xb5\x2f\xfd"sv, "compressed with zstd; unpack it first"},
    Signature{"BZh91AY&SY"sv, "compressed with bzip2; unpack it first"},
    Signature{"\xfd"
              "7zXZ\0"sv,
              "compressed with xz; unpack it first"},
    Signature{"PK\x03\x04"sv, "a zip archive; unpack it first"},
    Signature{"PAR1\x15"sv, "a table in Parquet"},
    Signature{"ARROW1\0\0"sv, "a table in Arrow"},
    Signature{"\x93NUMPY"sv, "an array of NumPy"},
    Signature{"\xff\xfe"sv, "text in UTF-16; convert it to UTF-8 first"},
    Signature{"\xfe\xff"sv, "text in UTF-16; convert it to UTF-8 first"},
};

constexpr std::size_t first_bytes = 8000, longest_line = std::size_t{1} << 24;
constexpr std::string_view blanks = " \t\r\n";

// Whether the first line is a whole JSON object. An object that spans several lines counts as text.
bool begins_as_json_lines(std::string_view text) {
  std::string_view line = text.substr(0, text.find('\n'));
  const std::size_t end = line.find_last_not_of(blanks);
  if (!line.starts_with('{') || end == std::string_view::npos || line[end] != '}') return false;
  const std::size_t key = line.find_first_not_of(blanks, 1);
  return line[key] == '"' || key == end;
}

}  // namespace

std::optional<std::string> find_format(const std::function<std::string_view(std::size_t most)>& beginning,
                                       JsonLines json_lines) {
  std::string_view text = beginning(first_bytes);
  // A line of JSON may be as long as a document.
  const bool long_line = text.starts_with('{') && text.find('\n') == std::string_view::npos;
  if (json_lines == JsonLines::refused && long_line) text = beginning(longest_line);
  for (const Signature& signature : signatures) {
    if (text.starts_with(signature.bytes)) return signature.what;
  }
  if (json_lines == JsonLines::refused && begins_as_json_lines(text)) return "JSON lines";
  // The test by which git tells binary files from text. Ids of 16 or 32 bits have a zero byte within few tokens.
  const std::size_t at = text.substr(0, first_bytes).find('\0');
  return at == std::string_view::npos ? std::nullopt : std::optional(fmt::format("not text: byte {} is NUL", at));
}

InputFile open_text(const std::string& name) {
  InputFile file(name);
  std::string text;
  const auto beginning = [&](std::size_t most) -> std::string_view {
    text.resize(std::min(most, static_cast<std::size_t>(file.size())));
    file.read(0, {reinterpret_cast<std::uint8_t*>(text.data()), text.size()});
    return text;
  };
  if (auto format = find_format(beginning, JsonLines::refused)) {
    std::error_code ignored;
    if (format == "JSON lines") *format += "; \"weft data tokenize\" reads them";
    if (format->starts_with("not text") &&
        std::filesystem::exists(std::filesystem::path(name).replace_extension(".idx"), ignored)) {
      format = "the token ids of a dataset of Megatron, beside its index";
    }
    fail_request("\"{}\": the file is {}. Weft reads plain text, a byte a token", name, *format);
  }
  return file;
}

}  // namespace weft
