#include "trainer/data/dataset_files.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "parallel/runtime/error.h"
#include "parallel/runtime/input_file.h"

namespace weft {
namespace {

std::string resumption_name(const std::string& prefix) {
  return prefix + ".resume.json";
}

// The numbers of a place, by their keys in its file.
std::vector<std::pair<const char*, std::int64_t*>> numbers_of(Resumption& place) {
  return {{"texts", &place.texts},
          {"skipped", &place.skipped},
          {"text_bytes", &place.text_bytes},
          {"tokens", &place.written.tokens},
          {"documents", &place.written.documents}};
}

// The place that an earlier call left for the same work; the beginning if there is none.
Resumption find_resumption(const std::string& prefix, const std::string& work) {
  const std::string name = resumption_name(prefix);
  std::error_code ignored;
  if (!std::filesystem::exists(name, ignored)) return {};
  const nlohmann::json json = nlohmann::json::parse(read_whole_file(name), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || json.value("work", nlohmann::json()) != work) return {};
  Resumption place;
  for (const auto& [key, number] : numbers_of(place)) {
    const auto found = json.find(key);
    if (found == json.end() || !found->is_number_integer()) return {};
    *number = found->get<std::int64_t>();
    if (*number < 0) return {};
  }
  return place;
}

void keep_resumption(const std::string& prefix, const std::string& work, Resumption place) {
  nlohmann::ordered_json json = {{"work", work}};
  for (const auto& [key, number] : numbers_of(place)) json[key] = *number;
  write_small_file(resumption_name(prefix), json.dump(2) + "\n");
}

// Removes the place that any call left. What this call writes in its files is no beginning of that one's.
void forget_resumption(const std::string& prefix, const std::string& work) {
  std::error_code ignored;
  const std::string name = resumption_name(prefix);
  if (!std::filesystem::exists(name, ignored)) return;
  // On disk before the removal may be: where the power fails, a place of other work must not come back.
  keep_resumption(prefix, work, {});
  std::filesystem::remove(name, ignored);
}

// Whether the loss of any token but the first counts. Most data show one in the first piece.
bool has_counted(const ByteSource& losses) {
  constexpr std::int64_t piece = std::int64_t{1} << 20;
  std::vector<std::uint8_t> bytes;
  for (std::int64_t first = 1; first < losses.size; first += piece) {
    bytes.resize(static_cast<std::size_t>(std::min(piece, losses.size - first)));
    losses.read(first, bytes);
    if (std::ranges::any_of(bytes, [](std::uint8_t loss) { return loss != 0; })) return true;
  }
  return false;
}

}  // namespace

DatasetFiles::DatasetFiles(const TokenizeRequest& request, std::int64_t vocab_size, std::string work,
                           DocumentReader& documents, const std::function<void(const TokenizeProgress&)>& on_progress)
    : request_(request),
      work_(std::move(work)),
      documents_(documents),
      on_progress_(on_progress),
      place_(find_resumption(request.prefix, work_)) {
  if (place_.skipped > 0 && !documents.skips()) {
    fail_request(
        "an earlier call wrote {} documents and left out {} lines of these files: give --bad-lines skip again to go on "
        "behind them, or remove \"{}\" to begin anew",
        place_.written.documents, place_.skipped, resumption_name(request.prefix));
  }
  try {
    open(vocab_size);
  } catch (const Error& error) {
    if (place_.texts == 0 || error.kind() != ErrorKind::failure) throw;
    place_ = {};  // what an earlier call wrote is no longer there
    open(vocab_size);
  }
  if (place_.texts == 0) forget_resumption(request.prefix, work_);
  progress_ = {.bytes = documents.bytes(), .resumed = place_.written.documents};
  kept_ = place_.text_bytes;
}

void DatasetFiles::open(std::int64_t vocab_size) {
  writer_.emplace(request_.prefix, vocab_size, place_.written);
  if (request_.losses) losses_.emplace(request_.prefix + ".loss", place_.written.tokens);
}

void DatasetFiles::write(const TokenizedBatch& batch) {
  for (const TokenizedText& text : batch.texts) {
    if (!text.fault.empty()) {
      documents_.skip(text.fault);
      ++place_.skipped;
    }
    if (text.document.ids.empty()) continue;
    writer_->add_document(text.document.ids);
    if (losses_) losses_->write(text.document.counts);
    place_.text_bytes += text.bytes;
  }
  place_.texts += std::ssize(batch.texts);
  tell(batch.position);
  if (place_.text_bytes - kept_ >= request_.kept_bytes) keep_place();
}

void DatasetFiles::tell(std::int64_t position) {
  progress_.position = position;
  progress_.text_bytes = place_.text_bytes;
  progress_.documents = counts().documents;
  progress_.tokens = counts().tokens;
  progress_.empty = place_.texts - place_.skipped - progress_.documents;
  if (on_progress_) on_progress_(progress_);
}

void DatasetFiles::keep_place() {
  kept_ = place_.text_bytes;
  place_.written = writer_->flush();
  if (losses_) {
    losses_->flush();
    losses_->stay(true);
  }
  keep_resumption(request_.prefix, work_, place_);
}

void DatasetFiles::put_in_place(const TokenFacts& facts) {
  if (losses_ && !has_counted(losses_->written())) {
    fail_request("nothing to learn: losses count for none of the {} tokens", facts.tokens);
  }
  // All bytes are on the disk before the first file gets its name.
  writer_->complete();
  if (losses_) losses_->sync();
  // The facts come first: where the index is, they are there too.
  write_small_file(request_.prefix + ".json", format_token_facts(facts));
  if (losses_) losses_->put_in_place();
  writer_->put_in_place();
  forget_resumption(request_.prefix, work_);
}

}  // namespace weft
