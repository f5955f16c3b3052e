#include "tests/fuzz/data_parsers.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "parallel/runtime/error.h"
#include "tests/trainer/temporary_folder.h"
#include "tests/trainer/token_file_sample.h"
#include "trainer/data/chat_template.h"
#include "trainer/data/documents.h"
#include "trainer/data/megatron_index.h"
#include "trainer/data/order_cache.h"
#include "trainer/data/token_facts.h"
#include "trainer/data/token_file.h"
#include "trainer/data/token_index.h"
#include "trainer/data/unpacked_file.h"
#include "trainer/jinja/template.h"

namespace weft {
namespace {

ByteSource source_of(std::string_view text, const char* name) {
  return memory_source(name, bytes_of(text));
}

// What opens answers in its range or refuses, and what check() accepts is sound (tests/trainer/token_file_sample.h).
bool is_accepted(const TokenIndex& index) {
  const auto answers = [&](std::int64_t last, auto&& ask) {
    try {
      const std::int64_t answer = ask();
      expect(answer >= 0 && answer <= last, "an answer of an index lies in its range");
    } catch (const Error&) {
      // Refused.
    }
  };
  for (std::int64_t i = 0; i <= std::min<std::int64_t>(index.documents(), 64); ++i) {
    answers(index.tokens(), [&] { return index.document_begin(i); });
  }
  for (std::int64_t i = 0; i <= std::min<std::int64_t>(index.sequences(), 64); ++i) {
    answers(index.tokens(), [&] { return index.sequence_begin(i); });
  }
  if (index.tokens() > 0) answers(index.documents() - 1, [&] { return index.document_of(index.tokens() / 2); });
  answers(0, [&] { return std::ssize(index.sequence_lengths()) - index.sequences(); });
  index.content();
  try {
    index.check();
    return true;
  } catch (const Error&) {
    return false;
  }
}

template <typename Open>
void expect_accepted(bool sound, Open open) {
  bool accepted = false;
  try {
    accepted = is_accepted(open());
  } catch (const Error&) {
    // Refused.
  }
  expect(accepted == sound, "an index is accepted if and only if it is sound");
}

// Reads a whole file of tokens that opens.
void use_tokens(const std::string& name) {
  try {
    const TokenFile file(name);
    file.content();
    file.check();
    expect(file.document_begin(file.documents()) == file.tokens(), "documents end where the tokens end");
  } catch (const Error&) {
    // Refused.
  }
}

// The end of the tokens by a number in the index, else some other size.
std::uint64_t data_bytes_of(std::string_view index, std::size_t at, std::int64_t width, std::int64_t more) {
  if (at > index.size() || index.size() - at < 8) return index.size();
  const std::int64_t end = taken(index, at, 8, true);
  constexpr std::int64_t most = std::int64_t{1} << 40;
  return end < 0 || end > most ? index.size()
                               : static_cast<std::uint64_t>(std::max<std::int64_t>(end * width + more, 0));
}

std::int64_t count_documents(const std::string& file, DocumentRules rules, std::int64_t& skipped) {
  DocumentReader reader({file}, std::move(rules));
  std::int64_t documents = 0;
  while (reader.next()) ++documents;
  skipped = reader.skipped();
  return documents;
}

}  // namespace

// The index with tokens that end where its last sequence ends, and with others.
void megatron_index(std::string_view text) {
  std::uint64_t bytes = text.size();
  if (text.size() >= 34) {
    const auto sequences = static_cast<std::uint64_t>(taken(text, 18, 8, false));
    const int code = static_cast<std::uint8_t>(text[17]) % 9;
    if (sequences > 0 && sequences <= (text.size() - 34) / 12) {
      const std::int64_t length = taken(text, 34 + 4 * (sequences - 1), 4, true);
      bytes = data_bytes_of(text, 34 + 12 * sequences - 8, 1, length * plain_width(code));
    } else if (sequences == 0) {
      bytes = 0;
    }
  }
  for (const std::uint64_t size : {text.size(), bytes}) {
    const bool sound = is_sound_megatron(text, size);
    expect_accepted(sound,
                    [&] { return MegatronIndex(source_of(text, "t.idx"), "t.bin", static_cast<std::int64_t>(size)); });
    if (!sound || size == 0 || size > 100'000) continue;
    static const TemporaryFolder folder;
    write_file(folder / "t.idx", text);
    std::string tokens(size, '\0');
    for (std::size_t i = 0; i < size; ++i) tokens[i] = text[i % text.size()];
    write_file(folder / "t.bin", tokens);
    use_tokens((folder / "t").string());
  }
}

// The tables of a file lie inside it.
void number_tables(std::string_view text) {
  const auto tables = read_tables(source_of(text, "t.tables"), "key");
  if (!tables) return;
  for (const StoredNumbers& table : *tables) {
    std::vector<std::int64_t> numbers(static_cast<std::size_t>(table.count()));
    table.read(0, numbers);
  }
}

void datatrove_index(std::string_view text) {
  const std::size_t last = text.size() < 8 ? 0 : text.size() - 8;
  for (const std::uint64_t size : {text.size(), data_bytes_of(text, last, 2, 0), data_bytes_of(text, last, 4, 0)}) {
    expect_accepted(is_sound_datatrove(text, size), [&] {
      return DatatroveIndex(source_of(text, "t.ds.index"), "t.ds", static_cast<std::int64_t>(size));
    });
  }
}

// A file with the header of llm.c, numbers without one, or text.
void token_shard(std::string_view text) {
  static const TemporaryFolder folder;
  const std::string name = (folder / "shard.bin").string();
  write_file(name, text);
  for (const char* type : {"", "#uint16", "#int64"}) use_tokens(name + type);
  write_file(folder / "shard.txt", text);
  use_tokens((folder / "shard.txt").string());
}

// Losses beside a dataset of six tokens: as many bytes, or refused.
void token_losses(std::string_view text) {
  static const TemporaryFolder folder;
  static const bool written = [] {
    const PlainFiles files = plain_megatron({{{1, 2, 3}}, {{4, 5, 6}}}, 8);
    write_file(folder / "x.idx", files.index);
    write_file(folder / "x.bin", files.data);
    return true;
  }();
  expect(written, "a dataset is there");
  write_file(folder / "x.loss", text);
  const TokenFile file((folder / "x").string());
  expect(file.has_losses() && text.size() == 6, "a token has a byte");
  std::array<std::uint8_t, 6> losses{};
  file.read_losses(0, losses);
  expect(std::memcmp(losses.data(), text.data(), 6) == 0, "losses are those of the file");
}

void token_facts(std::string_view text) {
  const TokenFacts read = parse_token_facts(std::string(text), "data.json");
  expect(parse_token_facts(format_token_facts(read), "again.json") == read, "the facts of tokens read back");
}

// Lines that are skipped are those for which the file would be refused.
void documents(std::string_view text) {
  static const TemporaryFolder folder;
  const std::string json = (folder / "documents.jsonl").string();
  write_file(json, text);
  static const ChatTemplate chatml = open_chat_template("chatml", "byte", 0);
  const DocumentRules readings[] = {{.key = "text"}, {.key = "meta.text"}, {.key = "messages", .chat = &chatml}};
  for (DocumentRules rules : readings) {
    std::int64_t skipped = 0, none = 0;
    rules.bad_lines = BadLines::skip;
    const std::int64_t read = count_documents(json, rules, skipped);
    rules.bad_lines = BadLines::refuse;
    try {
      expect(count_documents(json, rules, none) == read, "no document is lost");
      expect(skipped == 0, "a file with a bad line is refused");
    } catch (const Error&) {
      expect(skipped > 0, "a file without a bad line is not refused");
    }
  }
}

// A program from outside. Its spans are in its text, and with the same input it does the same.
void chat_template(std::string_view text) {
  const jinja::Template read(text, "chat_template");
  const std::map<std::string, jinja::Value> variables = {
      {"messages", jinja::made({{{"role", "system"}, {"content", "Weave."}},
                                {{"role", "user"}, {"content", " W\u00e4rp?\n"}},
                                {{"role", "assistant"}, {"content", "Weft"}, {"list", {1, true, nullptr, -2.5}}}})},
      {"bos_token", jinja::made("<s>")},
      {"add_generation_prompt", jinja::made(true)}};
  constexpr std::int64_t budget = 1 << 22;
  const jinja::Rendering rendering = read.render(variables, 0, budget);
  for (const auto& [begin, end] : rendering.generated) {
    expect(begin <= end && end <= rendering.text.size(), "spans are in the text");
  }
  expect(read.render(variables, 0, budget).text == rendering.text, "a template is rendered alike twice");
}

// The lines of a file are the rest of it from its beginning. A text that is packed is read as it was.
void unpacked_file(std::string_view text) {
  static const TemporaryFolder folder;
  const std::string name = (folder / "documents").string();
  write_file(name, text);
  std::size_t lines = 0, bytes = 0;
  UnpackedFile by_line(name);
  std::string read;
  for (std::vector<std::string_view> some; by_line.next_lines(16, read, some); lines += some.size()) {
    for (const std::string_view line : some) bytes += line.size();
  }
  expect(by_line.position() >= 0, "a position counts bytes");
  const std::string whole = UnpackedFile(name).rest();
  const auto ends = static_cast<std::size_t>(std::count(whole.begin(), whole.end(), '\n'));
  expect(lines == ends + (whole.empty() || whole.ends_with('\n') ? 0 : 1), "each end of a line ends a line");
  expect(bytes + ends <= whole.size() && bytes + 2 * ends + 1 >= whole.size(), "no byte of a line is lost");
}

}  // namespace weft
