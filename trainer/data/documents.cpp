#include "trainer/data/documents.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <iterator>
#include <string_view>
#include <utility>

#include "parallel/runtime/error.h"
#include "parallel/runtime/input_file.h"
#include "trainer/data/json_places.h"
#include "trainer/data/text_file.h"
#include "trainer/tokenizer/unicode_text.h"

namespace weft {
namespace {

// In lower case, without the ending of a packing.
std::string name_unpacked(const std::string& file) {
  std::string name = file;
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  for (const std::string_view packed : {".gz", ".zst"}) {
    if (name.ends_with(packed)) name.resize(name.size() - packed.size());
  }
  return name;
}

bool has_json_lines(const std::string& file) {
  constexpr std::array<std::string_view, 3> endings = {".jsonl", ".ndjson", ".json"};
  const std::string name = name_unpacked(file);
  return std::ranges::any_of(endings, [&](std::string_view ending) { return name.ends_with(ending); });
}

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r\n\v\f") == std::string_view::npos;
}

// Throws if a file with JSON is one value over several lines, or a list of objects, by its beginning.
void require_lines(const std::string& name, std::string_view text) {
  if (text.starts_with(byte_order_mark)) text.remove_prefix(byte_order_mark.size());
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return;
  text.remove_prefix(first);
  const std::size_t end = text.find('\n');
  const bool list = text.front() == '[';
  if (!list && (text.front() != '{' || end == std::string_view::npos || !is_blank(text.substr(1, end - 1)))) return;
  fail_request("\"{}\": the file is {}, not JSON lines; write an object a line, as jq -c {} does", name,
               list ? "a list in JSON" : "an object over several lines", list ? "'.[]'" : "'.'");
}

// Throws for what is neither text nor JSON lines, as its name says, plain or packed.
void require_text(const std::string& name) {
  UnpackedFile file(name);
  const JsonLines json = has_json_lines(name) ? JsonLines::expected : JsonLines::refused;
  std::string_view text;
  if (const auto format = find_format([&](std::size_t most) { return text = file.beginning(most); }, json)) {
    fail_request(
        "\"{}\": the file is {}{}. Read are texts in UTF-8, and JSON lines in files called .jsonl, .ndjson or .json, "
        "plain or packed as .gz or .zst",
        name, *format, format == "JSON lines" ? ", by its name a text" : "");
  }
  if (name_unpacked(name).ends_with(".json")) require_lines(name, text);
}

}  // namespace

DocumentReader::DocumentReader(std::vector<std::string> files, DocumentRules rules, OnBadLine on_bad_line)
    : files_(std::move(files)), rules_(std::move(rules)), on_bad_line_(std::move(on_bad_line)), parser_(rules_) {
  std::string faults;
  for (const std::string& name : files_) {
    json_.push_back(has_json_lines(name));
    try {
      bytes_ += InputFile(name).size();
      require_text(name);
    } catch (const Error& error) {
      faults += (faults.empty() ? "" : "\n") + std::string(error.what());
    }
  }
  if (!faults.empty()) throw Error(ErrorKind::request, faults);
}

std::string DocumentReader::identity() const {
  std::string text = fmt::format("key {}, prompt {}, chat {}, text {}", rules_.key, rules_.prompt,
                                 rules_.chat == nullptr ? "" : rules_.chat->identity(), static_cast<int>(rules_.text));
  for (const std::string& name : files_) {
    std::error_code ignored;
    const auto time = std::filesystem::last_write_time(name, ignored).time_since_epoch().count();
    text += fmt::format("; {}, {} bytes, changed {}", name, InputFile(name).size(), time);
  }
  return text;
}

std::int64_t DocumentReader::position() const {
  return before_ + (file_ == nullptr ? 0 : file_->position());
}

bool DocumentReader::open_next() {
  if (file_ != nullptr) return true;
  if (next_file_ == files_.size()) return false;
  file_ = std::make_unique<UnpackedFile>(files_[next_file_]);
  if (!json_[next_file_++] && rules_.has_losses()) {
    fail_request("\"{}\": plain text has no \"{}\"; prompts, answers and messages come in JSON lines", file_->name(),
                 rules_.chat != nullptr ? rules_.key : rules_.prompt);
  }
  return true;
}

// Its bytes; 0 at the end of the file.
std::int64_t DocumentReader::read_piece(std::int64_t most, RawBatch& batch) {
  const std::size_t file = next_file_ - 1;
  if (!json_[file] && rules_.text == TextDocuments::file) {
    std::string whole = file_->rest();
    const std::int64_t bytes = std::ssize(whole);
    if (whole.starts_with(byte_order_mark)) whole.erase(0, byte_order_mark.size());
    if (bytes > 0) batch.texts.push_back({.file = file, .text = {}, .whole = std::move(whole)});
    return bytes;
  }
  std::int64_t line = file_->lines();
  std::vector<std::string_view> lines;
  std::string& piece = batch.pieces.emplace_back();
  if (!file_->next_lines(static_cast<std::size_t>(most), piece, lines)) return 0;
  for (std::string_view text : lines) {
    if (++line == 1 && !json_[file] && text.starts_with(byte_order_mark)) text.remove_prefix(byte_order_mark.size());
    if (!is_blank(text)) batch.texts.push_back({.file = file, .line = line, .text = text});
  }
  return std::ssize(piece);
}

RawBatch DocumentReader::read(std::int64_t most) {
  RawBatch batch;
  // Half, since a piece ends with a line, and the rest has room for a part of the next alone.
  for (std::int64_t bytes = 0; 2 * bytes < most && open_next();) {
    const std::int64_t piece = read_piece(most - bytes, batch);
    bytes += piece;
    // What has no line with a text is forgotten: a batch without one is the end.
    if (batch.texts.empty()) {
      batch.pieces.clear();
      bytes = 0;
    }
    if (piece > 0) continue;
    before_ += file_->position();
    file_.reset();
  }
  batch.position = position();
  return batch;
}

RawBatch DocumentReader::pass_over(std::int64_t texts, std::int64_t skipped, std::int64_t most) {
  RawBatch batch = read(most);
  for (; texts >= std::ssize(batch.texts) && !batch.texts.empty(); batch = read(most)) texts -= std::ssize(batch.texts);
  if (texts > std::ssize(batch.texts)) fail_request("the files have {} texts less than they had", texts);
  batch.texts.erase(batch.texts.begin(), batch.texts.begin() + texts);
  skipped_ += skipped;
  return batch;
}

std::optional<Document> DocumentReader::parse(RawText& raw, DocumentParser& parser, std::string& fault) const {
  if (!json_[raw.file]) {
    const std::string_view text = raw.whole.empty() ? raw.text : std::string_view(raw.whole);
    const std::size_t zero = text.find('\0'), fault_at = std::min(malformed_at(text).value_or(zero), zero);
    if (fault_at == std::string_view::npos) {
      return Document{{{raw.whole.empty() ? std::string(raw.text) : std::move(raw.whole)}}};
    }
    const std::string_view before = text.substr(0, fault_at);
    const std::size_t begin = before.rfind('\n') + 1;  // npos + 1 is 0
    RawText at{.file = raw.file, .line = raw.line + std::ranges::count(before, '\n'), .text = {}};
    fault = refused(at, fmt::format("{}: {}", column_of(text.substr(begin), fault_at - begin),
                                    fault_at == zero ? "a zero byte is no text" : "the text is not UTF-8"));
    return std::nullopt;
  }
  std::string of_line;
  if (auto document = parser.parse(raw.text, of_line)) return document;
  fault = refused(raw, of_line);
  return std::nullopt;
}

std::string DocumentReader::refused(const RawText& raw, std::string_view why) const {
  std::string fault = fmt::format("\"{}\":{}:{}", files_[raw.file], raw.line, why);
  const bool whole = !json_[raw.file] && rules_.text == TextDocuments::file;
  if (rules_.bad_lines == BadLines::skip && !whole) return fault;
  fail_request("{}; {}--bad-lines skip leaves such lines out and counts them", fault, whole ? "--documents line " : "");
}

void DocumentReader::skip(const std::string& fault) {
  ++skipped_;
  if (on_bad_line_) on_bad_line_(fault);
}

std::optional<Document> DocumentReader::next() {
  constexpr std::int64_t most = std::int64_t{1} << 20;
  while (true) {
    if (taken_ == batch_.texts.size()) {
      batch_ = read(most);
      taken_ = 0;
      if (batch_.texts.empty()) return std::nullopt;
    }
    std::string fault;
    if (auto document = parse(batch_.texts[taken_++], parser_, fault)) return document;
    skip(fault);
  }
}

}  // namespace weft
