// `weft bench data`: rates of encoding text, of reading JSON lines and of reading samples, and the time to open a large
// index.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>

#include "parallel/runtime/error.h"
#include "parallel/runtime/input_file.h"
#include "parallel/runtime/medians.h"
#include "parallel/runtime/spread_work.h"
#include "tools/command/commands.h"
#include "tools/report/report_parts.h"
#include "trainer/data/data.h"
#include "trainer/data/indexed_writer.h"
#include "trainer/data/megatron_index.h"
#include "trainer/data/tokenize.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

struct DataBench {
  std::string text, directory;
  std::vector<std::string> tokenizers;
  std::int64_t length = 1024, samples = 2000, index_bytes = std::int64_t{10} << 30;
  int rounds = 5;
  bool json = false;
};

struct DataRate {
  std::string what, unit;
  double value = 0.0;  // median of the rounds
};

double median_of_rounds(int rounds, const std::function<void()>& action) {
  std::vector<double> seconds;
  for (int round = 0; round < rounds; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    action();
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return median_of(std::move(seconds));
}

// Encodes the lines of the text as documents, by one thread. `take` gets the ids of each, in memory that the next takes
// over.
template <typename Take>
void encode_lines(const Tokenizer& tokenizer, std::string_view text, Take take) {
  std::vector<std::int32_t> ids;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size() - 1) + 1;
    ids.clear();
    tokenizer.append(text.substr(begin, end - begin), SpecialTokens::recognised, ids);
    take(ids);
    begin = end;
  }
}

// An index of `bytes` bytes: sequences without tokens and a last one of one token. The file is sparse: it takes no room
// on disk, and what opening reads is written.
std::string write_large_index(const fs::path& prefix, std::int64_t bytes) {
  const std::int64_t header = 34, of_sequence = 4 + 8 + 8;  // length, offset, boundary of documents
  const std::int64_t sequences = std::max<std::int64_t>(1, (bytes - header - 8) / of_sequence);
  std::ofstream index(prefix.string() + ".idx", std::ios::binary), tokens(prefix.string() + ".bin", std::ios::binary);
  const auto put = [&](const void* data, std::size_t size, std::int64_t at) {
    index.seekp(at).write(static_cast<const char*>(data), static_cast<std::streamsize>(size));
  };
  const std::vector<std::uint8_t> head = megatron_header({TokenType::uint16, sequences, sequences});
  const std::int32_t one = 1;
  put(head.data(), head.size(), 0);
  put(&one, sizeof one, header + 4 * (sequences - 1));
  put(&sequences, sizeof sequences, header + 12 * sequences + 8 * sequences);
  if (!index.flush() || !tokens.write("\0\0", 2).flush()) fail("the index {}.idx cannot be written", prefix.string());
  return prefix.string();
}

// The text as JSON lines, 4 KiB of it in each: cut into lines, made documents, and written as tokens of bytes.
void measure_json_lines(std::string_view text, int rounds, const fs::path& directory, std::vector<DataRate>& rows) {
  const std::string name = (directory / "lines.jsonl").string();
  std::ofstream file(name, std::ios::binary);
  std::int64_t bytes = 0;
  for (std::size_t begin = 0, size = 4096; begin < text.size(); begin += size) {
    const Json object = {{"id", begin}, {"text", text.substr(begin, size)}, {"score", 0.5}};
    const std::string line = object.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
    bytes += std::ssize(line);
    file << line;
  }
  if (!file.flush()) fail("\"{}\" cannot be written", name);
  const auto add = [&](const std::string& what, const std::function<void()>& action) {
    rows.push_back({what, "MB/s", static_cast<double>(bytes) / 1e6 / median_of_rounds(rounds, action)});
  };
  add("cut JSON lines", [&] {
    DocumentReader documents({name}, {});
    while (!documents.read(std::int64_t{8} << 20).texts.empty()) {
    }
  });
  add("cut and parse JSON lines", [&] {
    DocumentReader documents({name}, {});
    while (documents.next()) {
    }
  });
  for (const std::size_t threads : {std::size_t{1}, host_cores()}) {
    int round = 0;
    add(fmt::format("tokenize JSON lines, byte, {} {}", threads, threads == 1 ? "thread" : "threads"), [&] {
      DocumentReader documents({name}, {});
      tokenize(documents, {.tokenizer = "byte",
                           .prefix = (directory / fmt::format("tokens-{}-{}", threads, round++)).string(),
                           .threads = threads});
    });
    if (host_cores() == 1) break;
  }
}

// `documents` are those of the dataset `prefix`.
void measure_orders(const DataBench& request, const std::string& prefix, std::int64_t documents,
                    const fs::path& directory, std::vector<DataRate>& rows) {
  for (const DataOrder order : all_values<DataOrder>) {
    for (const Documents each : all_values<Documents>) {
      if (each == Documents::pack && order == DataOrder::megatron) continue;
      const std::string name = fmt::format("order {}, documents {}", name_of(order), name_of(each));
      const auto open = [&](const std::string& cache) {
        // Every id of the file lies in this vocabulary, so that none is looked at.
        return TokenDataset({.sources = {prefix},
                             .order = order,
                             .documents = each,
                             .sequence_length = request.length,
                             .seed = 1,
                             .samples = request.samples,
                             .index_cache = cache},
                            {nullptr, "none", std::int64_t{1} << 31});
      };
      const TokenDataset data = open("");
      if (order == DataOrder::megatron ? each == Documents::join : each == Documents::pack) {
        rows.push_back({"make the tables of " + name, "ns a document",
                        1e9 * median_of_rounds(request.rounds, [&] { open(""); }) / static_cast<double>(documents)});
        const std::string cache = (directory / "tables").string();
        open(cache);
        rows.push_back(
            {"find the tables of " + name, "ms", 1e3 * median_of_rounds(request.rounds, [&] { open(cache); })});
      }
      const TextParts parts{each != Documents::join};
      std::vector<std::int32_t> numbers(static_cast<std::size_t>(parts.count() * request.length));
      const double seconds = median_of_rounds(request.rounds, [&] {
        for (std::int64_t sample = 0; sample < request.samples; ++sample) data.read(sample, parts_of(numbers, parts));
      });
      rows.push_back(
          {"read, " + name, "ns a token", 1e9 * seconds / static_cast<double>(request.samples * request.length)});
    }
  }
}

std::vector<DataRate> measure_data(const DataBench& request, const fs::path& directory) {
  std::vector<DataRate> rows;
  const std::string text = read_whole_file(request.text);
  if (text.empty()) fail_request("{} is empty", request.text);
  const double megabytes = static_cast<double>(text.size()) / 1e6;
  std::shared_ptr<const Tokenizer> tokenizer;
  for (const std::string& name : request.tokenizers) {
    tokenizer = open_text_tokenizer(name);
    std::int64_t tokens = 0;
    const double seconds = median_of_rounds(
        request.rounds, [&] { encode_lines(*tokenizer, text, [&](const auto& ids) { tokens += std::ssize(ids); }); });
    require(tokens > 0, "a text has tokens");
    rows.push_back({fmt::format("encode, {}", name), "MB/s", megabytes / seconds});
  }
  measure_json_lines(text, request.rounds, directory, rows);
  const std::int64_t vocabulary = tokenizer->vocab_size();
  const std::string prefix = (directory / "samples").string();
  IndexedWriter writer(prefix, vocabulary);
  encode_lines(*tokenizer, text, [&](const auto& ids) { writer.add_document(ids); });
  writer.finish();
  measure_orders(request, prefix, writer.counts().documents, directory, rows);
  const std::string large = write_large_index(directory / "large", request.index_bytes);
  rows.push_back({fmt::format("open an index of {:.1f} GB", static_cast<double>(request.index_bytes) / 1e9), "ms",
                  1e3 * median_of_rounds(request.rounds, [&] { TokenFile(large).document_of(0); })});
  return rows;
}

void print_rates(const std::vector<DataRate>& rows, bool json) {
  if (json) {
    Json document;
    for (const DataRate& row : rows) document.push_back({{"what", row.what}, {"unit", row.unit}, {"value", row.value}});
    return fmt::print("{}\n", document.dump(2));
  }
  BenchTable table{{"", "median", ""}};
  for (const DataRate& row : rows) table.add(row.what, decimals(row.value, 2), row.unit);
  fmt::print("{}", aligned_text(table));
}

void bench_data(const DataBench& request) {
  const fs::path directory(request.directory);
  if (fs::exists(directory)) fail_request("{} is there already; it would be removed at the end", request.directory);
  fs::create_directories(directory);
  const std::vector<DataRate> rows = [&] {
    try {
      return measure_data(request, directory);
    } catch (...) {
      fs::remove_all(directory);
      throw;
    }
  }();
  fs::remove_all(directory);
  print_rates(rows, request.json);
}

}  // namespace

void add_bench_data_command(CLI::App& bench) {
  const auto [command, request] = add_command<DataBench>(
      bench, "data", "rates of encoding TEXT on a core, and of reading it as JSON lines and its tokens", bench_data);
  command.add_option("TEXT", request.text, "text to encode, a document a line")->required();
  command.add_option("--tokenizer", request.tokenizers, "encodings to time; samples are read of the last")
      ->default_val(std::vector<std::string>{"byte"});
  command.add_option("--length", request.length, "tokens of a sample")
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 24));
  command.add_option("--samples", request.samples, "samples of a round")
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 30));
  command.add_option("--index-bytes", request.index_bytes, "size of the index to open, a sparse file")
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{100}, std::int64_t{1} << 40));
  command.add_option("--rounds", request.rounds, "rounds to take the median of")->check(CLI::Range(1, 1000));
  command.add_option("--directory", request.directory, "an empty or new folder for its files")->required();
  command.add_flag("--json", request.json, "one JSON document");
}

}  // namespace weft
