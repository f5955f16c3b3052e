#include "trainer/tokenizer/decoder.h"

#include <utility>

#include "parallel/runtime/error.h"
#include "trainer/tokenizer/byte_alphabet.h"
#include "trainer/tokenizer/unicode_text.h"

namespace weft {
namespace {

std::string joined_tokens(const std::vector<std::string>& tokens, std::string_view separator) {
  std::string text;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (i > 0) text += separator;
    text += tokens[i];
  }
  return text;
}

std::string stripped_token(std::string_view token, const StripTokens& strip) {
  for (std::int64_t i = 0; i < strip.start && token.starts_with(strip.content); ++i) {
    token.remove_prefix(strip.content.size());
  }
  for (std::int64_t i = 0; i < strip.stop && token.ends_with(strip.content); ++i) {
    token.remove_suffix(strip.content.size());
  }
  return std::string(token);
}

std::string spaced_token(std::string_view token, const MetaspaceStep& metaspace, bool first) {
  const bool prefixed = first && metaspace.scheme != PrependScheme::never;
  std::string text;
  while (!token.empty()) {
    if (token.starts_with(metaspace.replacement)) {
      if (!prefixed) text.push_back(' ');
      token.remove_prefix(metaspace.replacement.size());
    } else {
      text.push_back(token.front());
      token.remove_prefix(1);
    }
  }
  return text;
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
  void operator()(const DecodeByteFallback&) const {
    for (std::string& token : tokens) {
      if (const auto byte = fallback_byte(token)) token = *byte;
    }
  }
  void operator()(const FuseTokens&) const { tokens = {joined_tokens(tokens, "")}; }
  void operator()(const StripTokens& step) const {
    for (std::string& token : tokens) token = stripped_token(token, step);
  }
  void operator()(const MetaspaceStep& step) const {
    for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = spaced_token(tokens[i], step, i == 0);
  }
  void operator()(const ReplaceText& step) const {
    PatternScratch scratch;
    std::size_t left = most;
    for (std::string& token : tokens) {
      const std::optional<std::string> well_formed = replace_malformed(token);
      token = replaced_text(well_formed ? *well_formed : token, step, left, scratch);
      left -= token.size();
    }
  }
};

}  // namespace

TokenDecoder TokenDecoder::byte_level() {
  TokenDecoder decoder;
  decoder.steps_.emplace_back(DecodeByteLevel{});
  return decoder;
}

TokenDecoder::TokenDecoder(const TokenizerJson* json, const std::string& place)
    : separator_(json == nullptr ? " " : "") {
  meaning_ =
      read_steps(json, place, "decoders", [&](JsonFields& fields, const std::string& type, TokenizerJson& meaning) {
        if (type == "ByteLevel") {
          for (const char* key : {"add_prefix_space", "trim_offsets", "use_regex"}) fields.ignore(key);
          steps_.emplace_back(DecodeByteLevel{});
        } else if (type == "ByteFallback") {
          steps_.emplace_back(DecodeByteFallback{});
        } else if (type == "Fuse") {
          steps_.emplace_back(FuseTokens{});
        } else if (type == "Metaspace") {
          steps_.emplace_back(read_metaspace(fields, meaning));
        } else if (type == "Replace") {
          steps_.emplace_back(read_replacement(fields, meaning));
        } else if (type == "Strip") {
          const StripTokens strip{fields.character("content"), fields.integer("start"), fields.integer("stop")};
          if (strip.start < 0 || strip.stop < 0)
            fail_request("{}: start {} or stop {} is negative", fields.place(), strip.start, strip.stop);
          steps_.emplace_back(strip);
          meaning.update(fields.meaning());
        } else {
          refuse_step(fields, type, "ByteLevel, ByteFallback, Fuse, Metaspace, Replace, Strip and Sequence");
        }
      });
}

std::string TokenDecoder::decode(std::vector<std::string> tokens) const {
  std::size_t bytes = 0;
  for (const std::string& token : tokens) bytes += token.size();
  for (const DecoderStep& step : steps_) std::visit(DecodeStep{tokens, most_grown_bytes(bytes)}, step);
  return joined_tokens(tokens, separator_);
}

}  // namespace weft
