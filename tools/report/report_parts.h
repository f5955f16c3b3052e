// Parts that several reports share, as JSON for scripts and as text.
#pragma once

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "parallel/runtime/ledger.h"

namespace weft {

using Json = nlohmann::ordered_json;

// The value of something optional; null if there is none.
template <typename Optional>
Json or_null(const Optional& value) {
  return value ? Json(*value) : Json();
}

// {"sharded_parameters": 1024, ...}: every bucket.
inline Json buckets_json(const BucketBytes& bytes) {
  Json json = Json::object();
  for (const Bucket bucket : all_values<Bucket>) json[std::string(name_of(bucket))] = bytes[bucket];
  return json;
}
// {"sharded_parameters": {"predicted", "measured"}, ...}
inline Json buckets_json(const BucketBytes& predicted, const BucketBytes& measured) {
  Json json = Json::object();
  for (const Bucket bucket : all_values<Bucket>) {
    json[std::string(name_of(bucket))] = {{"predicted", predicted[bucket]}, {"measured", measured[bucket]}};
  }
  return json;
}

// {"unsharded_parameters": 1024, ...}: of what units hold, for types with these fields.
template <typename Bytes>
Json unit_bytes_json(const Bytes& bytes) {
  return {{"unsharded_parameters", bytes.unsharded_parameters},
          {"unsharded_gradients", bytes.unsharded_gradients},
          {"communication", bytes.communication}};
}

// "sharded parameters"
inline std::string bucket_words(Bucket bucket) {
  std::string name(name_of(bucket));
  std::ranges::replace(name, '_', ' ');
  return name;
}

// The text with `mark` in front of every line, and `gap` between the mark and what the line has.
inline std::string marked(const std::string& text, const std::string& mark, const std::string& gap) {
  std::istringstream lines(text);
  std::string result;
  for (std::string line; std::getline(lines, line);) result += mark + (line.empty() ? "" : gap + line) + "\n";
  return result;
}

}  // namespace weft
