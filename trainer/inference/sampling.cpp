#include "trainer/inference/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>

#include "parallel/runtime/error.h"
#include "parallel/runtime/random.h"

namespace weft {

void require_sound(const SamplingOptions& options) {
  std::string faults;
  const auto add = [&faults](const std::string& fault) { faults += (faults.empty() ? "" : "\n") + fault; };
  if (!(options.temperature >= 0.0) || !std::isfinite(options.temperature)) {
    add(fmt::format("temperature {} must be a number from 0 (the most probable token, always) on",
                    options.temperature));
  }
  if (options.top_k && *options.top_k < 1) {
    add(fmt::format("top-k {} leaves no token to choose; it is at least 1", *options.top_k));
  }
  if (!(options.top_p > 0.0 && options.top_p <= 1.0)) {
    add(fmt::format("top-p {} is no share of probability; it lies in (0, 1]", options.top_p));
  }
  if (!faults.empty()) throw Error(ErrorKind::request, faults);
}

std::vector<double> token_probabilities(std::span<const float> logits, const SamplingOptions& options) {
  require(!logits.empty(), "there are logits to sample from");
  const bool nan = std::ranges::any_of(logits, [](float logit) { return std::isnan(logit); });
  const float largest = nan ? 0.0f : *std::ranges::max_element(logits);
  if (nan || !std::isfinite(largest))
    fail("the logits to sample from are not finite: the model's weights are not sound");

  std::vector<std::size_t> tokens(logits.size());
  std::iota(tokens.begin(), tokens.end(), std::size_t{0});
  std::stable_sort(tokens.begin(), tokens.end(), [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
  std::vector<double> probabilities(logits.size(), 0.0);
  if (options.temperature == 0.0) {
    probabilities[tokens.front()] = 1.0;
    return probabilities;
  }
  if (options.top_k && static_cast<std::size_t>(*options.top_k) < tokens.size()) {
    tokens.resize(static_cast<std::size_t>(*options.top_k));
  }
  double sum = 0.0;
  for (std::size_t token : tokens) {
    probabilities[token] = std::exp((static_cast<double>(logits[token]) - largest) / options.temperature);
    sum += probabilities[token];
  }
  // With top_p 1 nothing is cut: a rounding error in `kept` could otherwise drop the last tokens.
  double kept = 0.0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    double& probability = probabilities[tokens[i]];
    if (i > 0 && options.top_p < 1.0 && kept >= options.top_p * sum) {
      probability = 0.0;
    } else {
      kept += probability;
    }
  }
  for (std::size_t token : tokens) probabilities[token] /= kept;
  return probabilities;
}

std::int32_t token_at(std::span<const double> probabilities, double uniform) {
  double cumulative = 0.0;
  std::int32_t last = -1;
  for (std::size_t token = 0; token < probabilities.size(); ++token) {
    if (probabilities[token] <= 0.0) continue;
    cumulative += probabilities[token];
    last = static_cast<std::int32_t>(token);
    if (uniform < cumulative) return last;
  }
  require(last >= 0, "some token has a probability");
  return last;  // by rounding the probabilities may sum to slightly less than 1
}

std::int32_t sample_token(std::span<const float> logits, const SamplingOptions& options, std::int64_t sequence,
                          std::int64_t position) {
  const RandomStream random(options.seed, fmt::format("generate.sequence.{}", sequence));
  return token_at(token_probabilities(logits, options), random.uniform(static_cast<std::uint64_t>(position)));
}

std::string StopText::feed(std::string_view bytes) {
  std::string given;
  for (const char byte : bytes) {
    if (stopped_) break;
    held_ += byte;
    std::size_t complete = 0, begun = 0;  // bytes of the longest stop, and of the longest begin of a stop, ending here
    for (const std::string& stop : stops_) {
      if (held_.ends_with(stop)) complete = std::max(complete, stop.size());
      for (std::size_t length = std::min(stop.size() - 1, held_.size()); length > begun; --length) {
        if (held_.ends_with(std::string_view(stop).substr(0, length))) begun = length;
      }
    }
    stopped_ = complete > 0;
    const std::size_t ready = held_.size() - (stopped_ ? complete : begun);
    given += held_.substr(0, ready);
    held_.erase(0, stopped_ ? held_.size() : ready);
  }
  return given;
}

std::string StopText::finish() {
  return std::exchange(held_, {});
}

}  // namespace weft
