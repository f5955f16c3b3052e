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

#include "layers/model_config.h"
#include "parallel/comm/rendezvous_channel.h"
#include "parallel/pipeline/passes/order_csv.h"
#include "parallel/runtime/checksum.h"
#include "parallel/runtime/error.h"
#include "tests/trainer/temporary_folder.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/safetensors.h"
#include "trainer/config/layout_text.h"
#include "trainer/costs/cost_table.h"
#include "trainer/huggingface/model_folder.h"
#include "trainer/huggingface/model_json.h"
#include "trainer/resolve/config_reader.h"

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

struct Parser {
  const char* name;
  void (*take)(std::string_view text);  // no byte behind the text may be read
};
constexpr Parser parsers[] = {{"config", config},
                              {"layers", layers},
                              {"layout", layout},
                              {"order_csv", order_csv},
                              {"cost_table", cost_table},
                              {"safetensors", safetensors},
                              {"manifest", manifest},
                              {"huggingface_index", huggingface_index},
                              {"huggingface_config", huggingface_config},
                              {"rendezvous_frames", rendezvous_frames}};

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

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    weft::chosen->take({reinterpret_cast<const char*>(data), size});
  } catch (const weft::Error&) {
    // Refused.
  }
  return 0;
}
