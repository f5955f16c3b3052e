#include "trainer/tokenizer/decoder.h"

#include <fmt/ranges.h>

#include <utility>

#include "parallel/runtime/error.h"
#include "trainer/tokenizer/byte_alphabet.h"
#include "trainer/tokenizer/unicode_text.h"

namespace weft {
namespace {

std::string stripped_token(std::string_view token, const StripTokens& strip) {
  for (std::int64_t i = 0; i < strip.start && token.starts_with(strip.content); ++i) {
    token.remove_prefix(strip.content.size());
  }
  for (std::int64_t i = 0; i < strip.stop && token.ends_with(strip.content); ++i) {
    token.remove_suffix(strip.content.size());
  }
  return std::string(token);
}

struct DecodeStep {
  std::vector<std::string>& tokens;
  std::size_t most;  // bytes of the result

  void operator()(const DecodeByteLevel&) const {
    std::string bytes;
    for (const std::string& token : tokens) {
      const std::optional<std::string> decoded = replace_malformed(token) ? std::nullopt : from_byte_characters(token);
      bytes += decoded ? *decoded : token;
    }
    tokens = {std::move(bytes)};
  }
  // As in `tokenizers`: a run of bytes is one token for the steps behind, or as many as bytes where it is no UTF-8.
  void operator()(const DecodeByteFallback&) const {
    std::vector<std::string> decoded;
    for (std::size_t i = 0; i < tokens.size();) {
      std::string run;
      for (; i < tokens.size(); ++i) {
        const std::optional<char> byte = fallback_byte(tokens[i]);
        if (!byte) break;
        run += *byte;
      }
      if (malformed_at(run)) {
        for (const char byte : run) decoded.emplace_back(1, byte);
      } else if (!run.empty()) {
        decoded.push_back(std::move(run));
      }
      if (i < tokens.size()) decoded.push_back(std::move(tokens[i++]));
    }
    tokens = std::move(decoded);
  }
  void operator()(const FuseTokens&) const { tokens = {fmt::format("{}", fmt::join(tokens, ""))}; }
  void operator()(const StripTokens& step) const {
    for (std::string& token : tokens) token = stripped_token(token, step);
  }
  void operator()(const MetaspaceStep& step) const {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const bool prefixed = i == 0 && step.scheme != PrependScheme::never;
      tokens[i] = with_replaced(tokens[i], step.replacement, prefixed ? "" : " ");
    }
  }
  void operator()(const ReplaceText& step) const {
    PatternScratch scratch;
    std::size_t left = most;
    for (std::string& token : tokens) {
      const std::optional<std::string> well_formed = replace_malformed(token);
      if (well_formed && token.size() == 1) continue;  // the text of more tokens may make a character of it
      token = replaced_text(well_formed ? *well_formed : token, step, left, scratch);
      left -= token.size();
    }
  }
};

}  // namespace

TokenDecoder::TokenDecoder(const TokenizerJson* json, const std::string& place)
    : separator_(json == nullptr ? " " : "") {
  meaning_ = read_steps(json, place, "decoders", [&](JsonFields& fields, const std::string& type) {
    if (type == "ByteLevel") {
      for (const char* key : {"add_prefix_space", "trim_offsets", "use_regex"}) fields.ignore(key);
      steps_.emplace_back(DecodeByteLevel{});
    } else if (type == "ByteFallback") {
      steps_.emplace_back(DecodeByteFallback{});
    } else if (type == "Fuse") {
      steps_.emplace_back(FuseTokens{});
    } else if (type == "Metaspace") {
      steps_.emplace_back(read_metaspace(fields));
    } else if (type == "Replace") {
      steps_.emplace_back(read_replacement(fields));
    } else if (type == "Strip") {
      const StripTokens strip{fields.character("content"), fields.integer("start"), fields.integer("stop")};
      if (strip.start < 0 || strip.stop < 0)
        fail_request("{}: start {} or stop {} is negative", fields.place(), strip.start, strip.stop);
      steps_.emplace_back(strip);
    } else {
      refuse_step(fields, type, "ByteLevel, ByteFallback, Fuse, Metaspace, Replace, Strip and Sequence");
    }
  });
}

std::string TokenDecoder::decode(std::vector<std::string> tokens) const {
  std::size_t bytes = 0;
  for (const std::string& token : tokens) bytes += token.size();
  for (const DecoderStep& step : steps_) std::visit(DecodeStep{tokens, most_grown_bytes(bytes)}, step);
  return fmt::format("{}", fmt::join(tokens, separator_));
}

}  // namespace weft
