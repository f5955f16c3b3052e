// Every parser of what comes from outside, for libFuzzer (tools/fuzz.sh). A text is read or refused with an Error:
// another exception, a signal, a sanitizer's report, a hang and endless memory are faults. What is read must also
// survive its own writer where there is one. WEFT_FUZZ names the parser; all share one program, which is built and
// linked once.
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <random>

#include "layers/model_config.h"
#include "parallel/comm/rendezvous_channel.h"
#include "parallel/pipeline/passes/order_csv.h"
#include "parallel/runtime/checksum.h"
#include "parallel/runtime/error.h"
#include "tests/fuzz/json_mutation.h"
#include "tests/trainer/temporary_folder.h"
#include "tests/trainer/token_file_sample.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/safetensors.h"
#include "trainer/config/layout_text.h"
#include "trainer/costs/cost_table.h"
#include "trainer/data/chat_template.h"
#include "trainer/data/datatrove_index.h"
#include "trainer/data/documents.h"
#include "trainer/data/megatron_index.h"
#include "trainer/data/number_tables.h"
#include "trainer/data/token_facts.h"
#include "trainer/data/token_file.h"
#include "trainer/data/unpacked_file.h"
#include "trainer/huggingface/model_folder.h"
#include "trainer/huggingface/model_json.h"
#include "trainer/jinja/template.h"
#include "trainer/resolve/config_reader.h"
#include "trainer/tokenizer/tokenizer.h"
#include "trainer/tokenizer/tokenizer_file.h"
#include "trainer/tokenizer/unicode_text.h"

namespace weft {
namespace {

std::span<const std::uint8_t> bytes_of(std::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

// Not an Error, so that nobody takes it for a refusal.
void expect(bool holds, const char* statement) {
  if (holds) return;
  std::fprintf(stderr, "expected: %s\n", statement);
  std::abort();
}

void config(std::string_view text) {
  const ResolvedConfig read = read_config_text(std::string(text), "run.toml");
  expect(read_config_text(read.toml, "again.toml").config == read.config, "a resolved configuration reads back");
}

void layers(std::string_view text) {
  parse_layers(text);
}

void layout(std::string_view text) {
  const LayoutText read = read_layout(std::string(text));
  if (!read.faults.empty()) return;
  std::vector<std::string> stages;
  for (const WrittenStage& stage : read.stages) {
    std::string& symbols = stages.emplace_back();
    for (const LayoutSymbol& symbol : stage.symbols) symbols += symbol.symbol;
  }
  const LayoutText again = read_layout(format_layout(stages));
  expect(again.faults.empty() && again.stages.size() == read.stages.size(), "a layout reads back");
}

void order_csv(std::string_view text) {
  order_from_csv(text);
}

void cost_table(std::string_view text) {
  const CostTable read = parse_cost_table(std::string(text), "costs.toml");
  expect(parse_cost_table(to_toml(read), "again.toml") == read, "a cost table reads back");
}

void safetensors(std::string_view text) {
  parse_safetensors(bytes_of(text), "model.safetensors");
}

// The checksum at the end of a manifest, which no mutation hits, is made right first.
void manifest(std::string_view text) {
  constexpr std::string_view key = ",\n\"checksum\": \"";
  const std::string body(text.substr(0, text.rfind(key)));
  const std::string whole = body + std::string(key) + checksum_text(checksum(bytes_of(body))) + "\"\n}\n";
  const Manifest read = parse_manifest(whole, "manifest.json");
  expect(parse_manifest(to_json(read), "again.json") == read, "a manifest reads back");
}

// A folder with two files of one tensor each; the text is its index.
void huggingface_index(std::string_view text) {
  static const TemporaryFolder folder;
  for (const char* name : {"a", "b"}) {
    if (std::filesystem::exists(folder / name)) break;
    const auto header = arrange_safetensors({{std::string(name) + ".weight", "F32", {1}, 0, 0}});
    write_file(folder / name, safetensors_prefix(header) + "1234");
  }
  write_file(folder / "model.safetensors.index.json", text);
  WeightFolder(folder.path());
}

void huggingface_config(std::string_view text) {
  try {
    parse_folder_facts(std::string(text), "config.json");
  } catch (const Error&) {
    // Its shape is another question.
  }
  parse_model_json(std::string(text), "config.json");
}

// What a stranger sends to rank 0, in the pieces that a socket makes of it.
void rendezvous_frames(std::string_view text) {
  std::array<int, 2> ends{};
  expect(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()) == 0, "a pair of sockets");
  const Socket stranger(ends[1]);
  FrameChannel channel{Socket(ends[0]), true, std::nullopt};
  Frame frame;
  while (!text.empty()) {
    const ssize_t sent = write(stranger.get(), text.data(), text.size());
    expect(sent > 0, "a socket that is read takes more");
    text.remove_prefix(static_cast<std::size_t>(sent));
    while (channel.receive_some()) {
      Parsed parsed = Parsed::complete;
      while ((parsed = channel.parse(frame)) == Parsed::complete) {
        expect(!channel.proves(frame), "a stranger has heard no nonce");
        Greeting::from(frame.bytes);
      }
      if (parsed != Parsed::incomplete) return;
      pollfd more{channel.socket().get(), POLLIN, 0};
      if (poll(&more, 1, 0) == 0) break;
    }
  }
}

// Words, numbers, spaces, ends of lines, marks, other scripts, and tokens that files add: what steps of tokenizers
// look for.
constexpr std::string_view sample_text =
    "Hello, world! It's 12345 tests\r\n\n  a\u0301 \u00c9\u00e9 \u4f60\u597d\u3002 \U0001f600\u200d\U0001f600 "
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab <|endoftext|> </s>\t <0x41>\u2581x_y ((([[[ \ufb01";

// What opens encodes any text or refuses it, the second time (from its cache) as the first, and decodes its own ids.
// Of a lossless tokenizer a well-formed text comes back.
void use_tokenizer(const Tokenizer& tokenizer, std::string_view own, bool lossless) {
  for (const std::string_view text : {sample_text, own.substr(0, 300)}) {
    for (const SpecialTokens special : {SpecialTokens::recognised, SpecialTokens::plain_text}) {
      std::vector<std::int32_t> ids;
      try {
        ids = tokenizer.encode(text, special);
      } catch (const Error&) {
        continue;
      }
      expect(tokenizer.encode(text, special) == ids, "a text has the same ids again");
      for (const std::int32_t id : ids) expect(id >= 0 && id < tokenizer.vocab_size(), "an id is in the vocabulary");
      const std::string decoded = tokenizer.decode(ids);
      if (lossless && !replace_malformed(text)) expect(decoded == text, "ids of a text give the text");
    }
  }
  tokenizer.description();
}

bool is_step(const nlohmann::json& steps, const char* key, const char* type) {
  return steps.is_object() && steps.contains(key) && steps[key].is_object() && steps[key].value("type", "") == type;
}

// Whether a tokenizer.json that opens has all bytes of a text in its tokens: words are bytes, and no step drops,
// replaces or adds any.
bool is_lossless(const nlohmann::json& file) {
  const auto absent = [](const nlohmann::json& object, const char* key) {
    return !object.contains(key) || object[key].is_null() || object[key].empty();
  };
  const nlohmann::json& model = file["model"];
  return absent(file, "normalizer") && absent(file, "added_tokens") && is_step(file, "pre_tokenizer", "ByteLevel") &&
         !file["pre_tokenizer"].value("add_prefix_space", true) && is_step(file, "decoder", "ByteLevel") &&
         absent(model, "unk_token") && (absent(model, "byte_fallback") || model["byte_fallback"] == false);
}

void tokenizer_json(std::string_view text) {
  const std::shared_ptr<const Tokenizer> tokenizer = parse_tokenizer_json(std::string(text), "tokenizer.json");
  use_tokenizer(*tokenizer, text, is_lossless(nlohmann::json::parse(text)));
}

// A rank for each byte, without which a rank file is refused, and a few longer tokens.
const std::string& byte_ranks() {
  static const std::string ranks = read_file("tests/fuzz/corpus/tiktoken/bytes.tiktoken");
  expect(!ranks.empty(), "fuzzers run in the folder of the repository");
  return ranks;
}

void tiktoken(std::string_view text) {
  const auto use = [&](std::string_view ranks) {
    use_tokenizer(*parse_tiktoken(ranks, "o200k_base.tiktoken", "o200k_base"), text, true);
  };
  try {
    use(text);
  } catch (const Error&) {
    // A mutation seldom has a token for each byte.
    use(byte_ranks() + std::string(text));
  }
}

void tiktoken_sidecar(std::string_view text) {
  use_tokenizer(*parse_tiktoken_with(byte_ranks(), "x.tiktoken", std::string(text)), text, true);
}

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
    bool accepted = false;
    try {
      accepted = is_accepted(MegatronIndex(source_of(text, "t.idx"), "t.bin", static_cast<std::int64_t>(size)));
    } catch (const Error&) {
      // Refused.
    }
    expect(accepted == sound, "an index is accepted if and only if it is sound");
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
    const bool sound = is_sound_datatrove(text, size);
    bool accepted = false;
    try {
      accepted = is_accepted(DatatroveIndex(source_of(text, "t.ds.index"), "t.ds", static_cast<std::int64_t>(size)));
    } catch (const Error&) {
      // Refused.
    }
    expect(accepted == sound, "an index is accepted if and only if it is sound");
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

#ifdef WEFT_HAVE_SENTENCEPIECE
// Another's parser; what Weft makes of the model must be a tokenizer all the same.
void sentencepiece(std::string_view text) {
  static const TemporaryFolder folder;
  const std::string name = (folder / "tokenizer.model").string();
  write_file(name, text);
  const auto tokenizer = open_tokenizer(name);
  for (const char* each : {"", "the warp and the weft", "  \xe2\x96\x81 caf\xc3\xa9\n\t0123", "\xff\xfe"}) {
    std::vector<std::int32_t> ids;
    try {
      ids = tokenizer->encode(each);
    } catch (const Error&) {
      continue;  // a character that the vocabulary can not express
    }
    for (const std::int32_t id : ids) expect(id >= 0 && id < tokenizer->vocab_size(), "ids are in the vocabulary");
    tokenizer->decode(ids);
  }
}
#endif

void token_facts(std::string_view text) {
  const TokenFacts read = parse_token_facts(std::string(text), "data.json");
  expect(parse_token_facts(format_token_facts(read), "again.json") == read, "the facts of tokens read back");
}

std::int64_t count_documents(const std::string& file, DocumentRules rules, std::int64_t& skipped) {
  DocumentReader reader({file}, std::move(rules));
  std::int64_t documents = 0;
  while (reader.next()) ++documents;
  skipped = reader.skipped();
  return documents;
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

struct Parser {
  const char* name;
  void (*take)(std::string_view text);  // no byte behind the text may be read
  bool json = false;                    // of one value, which is mutated as such too
};
constexpr Parser parsers[] = {{"config", config},
                              {"layers", layers},
                              {"layout", layout},
                              {"order_csv", order_csv},
                              {"cost_table", cost_table},
                              {"safetensors", safetensors},
                              {"manifest", manifest},
                              {"huggingface_index", huggingface_index, true},
                              {"huggingface_config", huggingface_config, true},
                              {"rendezvous_frames", rendezvous_frames},
                              {"tokenizer_json", tokenizer_json, true},
                              {"tiktoken", tiktoken},
                              {"tiktoken_sidecar", tiktoken_sidecar, true},
                              {"megatron_index", megatron_index},
                              {"datatrove_index", datatrove_index},
                              {"number_tables", number_tables},
                              {"token_shard", token_shard},
                              {"token_losses", token_losses},
#ifdef WEFT_HAVE_SENTENCEPIECE
                              {"sentencepiece", sentencepiece},
#endif
                              {"token_facts", token_facts, true},
                              {"chat_template", chat_template},
                              {"documents", documents},
                              {"unpacked_file", unpacked_file}};

const Parser* chosen = nullptr;

}  // namespace
}  // namespace weft

// Prints the names of the parsers unless WEFT_FUZZ is one.
extern "C" int LLVMFuzzerInitialize(int*, char***) {
  const char* name = std::getenv("WEFT_FUZZ");
  for (const weft::Parser& parser : weft::parsers) {
    if (name && std::strcmp(name, parser.name) == 0) weft::chosen = &parser;
  }
  if (weft::chosen) return 0;
  for (const weft::Parser& parser : weft::parsers) std::fprintf(stderr, "%s ", parser.name);
  std::fprintf(stderr, "\n");
  std::exit(2);
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed) {
  if (weft::chosen->json && seed % 2 == 0) {
    const std::string text = weft::mutated_json({reinterpret_cast<const char*>(data), size}, seed / 2);
    if (!text.empty() && text.size() <= most) {
      std::copy(text.begin(), text.end(), data);
      return text.size();
    }
  }
  return LLVMFuzzerMutate(data, size, most);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    weft::chosen->take({reinterpret_cast<const char*>(data), size});
  } catch (const weft::Error&) {
    // Refused.
  }
  return 0;
}
