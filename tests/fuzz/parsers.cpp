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
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>

#include "layers/model_config.h"
#include "parallel/comm/rendezvous_channel.h"
#include "parallel/pipeline/passes/order_csv.h"
#include "parallel/runtime/checksum.h"
#include "parallel/runtime/error.h"
#include "tests/fuzz/data_parsers.h"
#include "tests/fuzz/json_mutation.h"
#include "tests/trainer/temporary_folder.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/safetensors.h"
#include "trainer/config/layout_text.h"
#include "trainer/costs/cost_table.h"
#include "trainer/huggingface/model_folder.h"
#include "trainer/huggingface/model_json.h"
#include "trainer/resolve/config_reader.h"
#include "trainer/tokenizer/tokenizer.h"
#include "trainer/tokenizer/tokenizer_file.h"
#include "trainer/tokenizer/unicode_text.h"

namespace weft {
namespace {

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
  parse_safetensors(bytes_of(text), std::ssize(text), "model.safetensors");
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
    const char* file = "o200k_base.tiktoken";
    use_tokenizer(*parse_tiktoken(ranks, file, rules_of_pattern(ranks, file, "o200k_base")), text, true);
  };
  try {
    use(text);
  } catch (const Error&) {
    // A mutation seldom has a token for each byte.
    use(byte_ranks() + std::string(text));
  }
}

void tiktoken_sidecar(std::string_view text) {
  use_tokenizer(*parse_tiktoken(byte_ranks(), "x.tiktoken", rules_of_sidecar("x.tiktoken", std::string(text))), text,
                true);
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
