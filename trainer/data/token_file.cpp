#include "trainer/data/token_file.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <iterator>
#include <system_error>
#include <utility>

#include "parallel/runtime/error.h"
#include "parallel/runtime/input_file.h"
#include "trainer/data/megatron_index.h"
#include "trainer/data/text_file.h"
#include "trainer/data/token_facts.h"

namespace weft {
namespace {

bool is_token_file_there(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored);
}

std::optional<ByteSource> losses_in(const std::string& name, std::int64_t tokens) {
  if (!is_token_file_there(name)) return std::nullopt;
  ByteSource bytes = open_source(name);
  if (bytes.size == tokens) return bytes;
  fail_request("\"{}\": {} bytes, one for each token, but there are {} tokens; it is of other data or was cut short",
               name, bytes.size, tokens);
}

// Holds a dataset against the facts beside it. A file of that name that has no facts is told where they are needed.
void check_facts(const std::string& prefix, const MegatronIndex& index, bool has_losses) {
  std::optional<TokenFacts> facts;
  if (refusal_of([&] { facts = find_token_facts(prefix); }) || !facts) return;
  if (facts->losses && !has_losses) {
    fail_request("\"{0}.loss\": no such file, but by \"{0}.json\" the loss of some tokens does not count; copy it too",
                 prefix);
  }
  if (facts->tokens != index.tokens() || facts->documents != index.documents()) {
    fail_request("\"{}.json\": {} tokens of {} documents, but the dataset has {} of {}; it belongs to another dataset",
                 prefix, facts->tokens, facts->documents, index.tokens(), index.documents());
  }
}

TokenSource megatron_tokens(const std::string& prefix) {
  for (const char* ending : {".idx", ".bin"}) {
    if (is_token_file_there(prefix + ending)) continue;
    fail_request("\"{}{}\": no such file; a dataset of Megatron is \"{}.idx\" and \"{}.bin\"", prefix, ending, prefix,
                 prefix);
  }
  ByteSource bytes = open_source(prefix + ".bin");
  auto index = std::make_shared<const MegatronIndex>(open_source(prefix + ".idx"), bytes.name, bytes.size);
  auto losses = losses_in(prefix + ".loss", index->tokens());
  check_facts(prefix, *index, losses.has_value());
  return {TokenFormat::megatron, std::move(bytes), 0, index->type(), index, std::move(losses)};
}

TokenSource datatrove_tokens(const std::string& path) {
  ByteSource bytes = open_source(path);
  if (!is_token_file_there(path + ".index")) {
    fail_request(
        "\"{}\": its index \"{}.index\" is missing, so the ends of documents are unknown. Copy the index too; to read "
        "the tokens as one document, give the file a name that does not end in .ds and add \"#uint16\" or \"#uint32\"",
        path, path);
  }
  auto index = std::make_shared<const DatatroveIndex>(open_source(path + ".index"), path, bytes.size);
  return {
      TokenFormat::datatrove, std::move(bytes), 0, index->type(), index, losses_in(path + ".loss", index->tokens())};
}

TokenSource one_document(TokenFormat format, ByteSource bytes, std::int64_t begin, TokenType type) {
  auto index = std::make_shared<const OneDocument>(bytes.name, (bytes.size - begin) / bytes_of(type));
  return {format, std::move(bytes), begin, type, std::move(index)};
}

TokenSource raw_tokens(const std::string& path, TokenType type) {
  ByteSource bytes = open_source(path);
  constexpr std::array<std::uint8_t, 6> numpy_magic = {0x93, 'N', 'U', 'M', 'P', 'Y'};
  std::array<std::uint8_t, 6> head{};
  if (bytes.size >= std::ssize(head)) bytes.read(0, head);
  if (head == numpy_magic) {
    fail_request(
        "\"{}\": the file has the header of a NumPy array, which is no token. Write the numbers alone, with "
        "array.tofile",
        path);
  }
  if (bytes.size % bytes_of(type) != 0) {
    fail_request("\"{}\": {} bytes are no whole number of {} tokens of {} bytes; check the type behind \"#\"", path,
                 bytes.size, name_of(type), bytes_of(type));
  }
  if (const auto llm_c = parse_llm_c(bytes)) {
    fail_request("\"{}\": the file has the header of llm.c, which is no token; leave out \"#{}\"", path, name_of(type));
  }
  return one_document(TokenFormat::raw, std::move(bytes), 0, type);
}

// A name and the type behind its last "#": "shard.bin#uint16". A file whose own name has a "#" is found too, unless a
// type follows that.
struct TypedName {
  std::string path;
  std::optional<TokenType> type;
};
TypedName parse_typed_name(const std::string& name) {
  const std::size_t mark = name.rfind('#');
  if (mark == std::string::npos) return {name, std::nullopt};
  const std::string type = name.substr(mark + 1);
  if (const auto known = value_named<TokenType>(type)) return {name.substr(0, mark), known};
  if (is_token_file_there(name)) return {name, std::nullopt};
  fail_request("\"{}\": \"{}\" is no type of tokens, and no file has the whole name; types are {}", name, type,
               fmt::join(names_of_all<TokenType>, ", "));
}

TokenSource open_tokens(const std::string& name) {
  const TypedName typed = parse_typed_name(name);
  if (typed.type && !typed.path.ends_with(".ds")) return raw_tokens(typed.path, *typed.type);
  if (typed.type) {
    TokenSource source = datatrove_tokens(typed.path);
    if (source.type == *typed.type) return source;
    fail_request("\"{}\": \"#{}\" was asked for, but by its index the tokens are {}; leave out the type", typed.path,
                 name_of(*typed.type), name_of(source.type));
  }
  const bool index = name.ends_with(".idx"), data = name.ends_with(".bin");
  const std::string prefix = index || data ? name.substr(0, name.size() - 4) : name;
  const bool indexed = is_token_file_there(prefix + ".idx") && is_token_file_there(prefix + ".bin");
  if (index || (data && indexed)) return megatron_tokens(prefix);
  if (!data && is_token_file_there(name) && indexed) {
    fail_request(
        "\"{}\": a file, and beside it the dataset \"{}.idx\" of Megatron; name the dataset by that, or move one", name,
        prefix);
  }
  if (!data && !is_token_file_there(name) &&
      (is_token_file_there(prefix + ".idx") || is_token_file_there(prefix + ".bin"))) {
    return megatron_tokens(prefix);
  }
  if (name.ends_with(".ds")) return datatrove_tokens(name);
  if (auto tokens = parse_llm_c(open_source(name))) return std::move(*tokens);
  if (data) {
    fail_request(
        "\"{}\": no header of llm.c, and no index \"{}.idx\" of Megatron beside it. For tokens without a header, add "
        "their type: \"{}#uint16\"; for text, \"{}#uint8\"",
        name, prefix, name, name);
  }
  return one_document(TokenFormat::text, file_source(open_text(name)), 0, TokenType::uint8);
}

constexpr std::int64_t id_limit = std::int64_t{1} << 31;

}  // namespace

std::optional<TokenSource> parse_llm_c(const ByteSource& bytes) {
  constexpr std::int64_t header_bytes = 256 * 4;
  struct Version {
    std::int64_t magic, version;
    TokenType type;
  };
  constexpr std::array<Version, 2> versions = {{{20240520, 1, TokenType::uint16}, {20240801, 7, TokenType::uint32}}};
  constexpr std::int64_t evaluation_magic = 20240522;

  std::array<std::uint8_t, 12> head{};
  if (bytes.size < std::ssize(head)) return std::nullopt;
  bytes.read(0, head);
  std::array<std::int64_t, 3> numbers{};
  decode(TokenType::int32, head, numbers);
  const auto [magic, version, tokens] = numbers;
  if (magic == evaluation_magic && version == 1) {
    fail_request("\"{}\": examples of an evaluation of llm.c (magic {}), not a stream of tokens to train on",
                 bytes.name, magic);
  }
  const auto known = std::ranges::find(versions, magic, &Version::magic);
  if (known == versions.end()) return std::nullopt;
  if (version != known->version) {
    fail_request("\"{}\": version {} of llm.c's tokens with magic {}; Weft reads version {}", bytes.name, version,
                 magic, known->version);
  }
  const std::int64_t expected = header_bytes + tokens * bytes_of(known->type);
  if (tokens < 1 || bytes.size != expected) {
    fail_request(
        "\"{}\": a header of {} bytes and {} tokens of {} bytes take {} bytes, but the file has {}. It was cut short "
        "or is damaged",
        bytes.name, header_bytes, tokens, bytes_of(known->type), expected, bytes.size);
  }
  return one_document(TokenFormat::llm_c, bytes, header_bytes, known->type);
}

TokenFile::TokenFile(std::string name, std::optional<std::int64_t> vocab_size)
    : name_(std::move(name)),
      id_end_(vocab_size.value_or(id_limit)),
      has_vocabulary_(vocab_size.has_value()),
      source_(open_tokens(name_)) {
  require(id_end_ >= 1 && id_end_ <= id_limit, "ids of a vocabulary are int32");
}

void TokenFile::read(std::int64_t first, std::span<std::int32_t> to) const {
  require(first >= 0 && std::ssize(to) <= tokens() - first, "tokens are read from inside a file");
  constexpr std::size_t piece = std::size_t{1} << 16;
  const auto width = static_cast<std::size_t>(bytes_of(source_.type));
  std::vector<std::uint8_t> bytes;
  std::vector<std::int64_t> ids;
  for (std::size_t done = 0; done < to.size(); done += ids.size()) {
    ids.resize(std::min(piece, to.size() - done));
    bytes.resize(ids.size() * width);
    const std::int64_t position = first + static_cast<std::int64_t>(done);
    source_.bytes.read(source_.begin + position * bytes_of(source_.type), bytes);
    decode(source_.type, bytes, ids);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] < 0 || ids[i] >= id_end_) {
        if (source_.format == TokenFormat::text) {
          fail_request("\"{}\": the byte {} at offset {} is outside the vocabulary of {} tokens", source_.bytes.name,
                       ids[i], position + static_cast<std::int64_t>(i), id_end_);
        }
        fail_request(
            "\"{}\": token {} has the id {}, which is outside {}; the data are of another tokenizer or damaged",
            source_.bytes.name, position + static_cast<std::int64_t>(i), ids[i],
            has_vocabulary_ ? fmt::format("the vocabulary of {} tokens", id_end_) : "0 to 2147483647");
      }
      to[done + i] = static_cast<std::int32_t>(ids[i]);
    }
  }
}

std::string TokenFile::content() const {
  std::string bytes = sampled_content(source_.bytes) + source_.index->content();
  if (source_.losses) bytes += ", losses " + sampled_content(*source_.losses);
  if (source_.format == TokenFormat::text) return bytes;
  return fmt::format("{}, {} {} tokens, {}", name_of(source_.format), tokens(), name_of(source_.type), bytes);
}

void TokenFile::check_sample() const {
  if (largest_of(source_.type) < id_end_) return;
  const std::int64_t piece = (std::int64_t{1} << 20) / bytes_of(source_.type);
  std::vector<std::int32_t> ids;
  for (const std::int64_t begin : sampled_begins(tokens(), piece)) {
    ids.resize(static_cast<std::size_t>(std::min(piece, tokens() - begin)));
    read(begin, ids);
  }
}

std::int32_t TokenFile::check() const {
  source_.index->check();
  constexpr std::int64_t piece = std::int64_t{1} << 18;
  std::vector<std::int32_t> ids;
  std::int32_t largest = 0;
  for (std::int64_t first = 0; first < tokens(); first += piece) {
    ids.resize(static_cast<std::size_t>(std::min(piece, tokens() - first)));
    read(first, ids);
    largest = std::max(largest, *std::ranges::max_element(ids));
  }
  return largest;
}

}  // namespace weft
