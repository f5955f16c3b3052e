#include "tools/picture/picture_style.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <utility>

#include "parallel/runtime/outside_text.h"

namespace weft {
namespace {

constexpr Colour black{0, 0, 0}, white{255, 255, 255};
constexpr Colour orange{0xE6, 0x9F, 0x00}, sky_blue{0x56, 0xB4, 0xE9}, bluish_green{0x00, 0x9E, 0x73},
    yellow{0xF0, 0xE4, 0x42}, blue{0x00, 0x72, 0xB2}, vermillion{0xD5, 0x5E, 0x00}, reddish_purple{0xCC, 0x79, 0xA7};
// Not from that palette: it has no colour left that is distinct from the other computations and their paler chunks.
constexpr Colour violet{0x90, 0x00, 0xF0};
constexpr Colour grey{0xB0, 0xB0, 0xB0};
// With more white than this, the last chunks of two kinds look the same.
constexpr double lightest = 0.45;

// Relative luminance as WCAG 2 defines it.
double luminance(Colour colour) {
  const auto linear = [](std::uint8_t value) {
    const double c = value / 255.0;
    return c <= 0.04045 ? c / 12.92 : std::pow((c + 0.055) / 1.055, 2.4);
  };
  return 0.2126 * linear(colour.red) + 0.7152 * linear(colour.green) + 0.0722 * linear(colour.blue);
}

// Bytes of the UTF-8 character at the start of `text`; 0 if there is none, or one that XML does not allow.
std::size_t character_length(std::string_view text) {
  const auto [bytes, well_formed] = sequence_at(text, 0);
  const std::string_view character = text.substr(0, bytes);
  const bool control = character < " " && character != "\n" && character != "\t";
  const bool reserved = character == "\xef\xbf\xbe" || character == "\xef\xbf\xbf";
  return well_formed && !control && !reserved ? bytes : 0;
}

}  // namespace

std::string_view strokes_of(Texture texture) {
  constexpr std::string_view strokes[] = {
      "",                              // plain
      "M-1 1l2 -2M0 6l6 -6M5 7l2 -2",  // rising
      "M5 -1l2 2M0 0l6 6M-1 5l2 2",    // falling
      "M0 6l6 -6M0 0l6 6",             // crossed
      "M1 1.5h1.6M4 4.5h1.6",          // dots
      "M3 0v6",                        // upright
  };
  return strokes[static_cast<std::size_t>(texture)];
}

std::string Colour::hex() const {
  return fmt::format("#{:02x}{:02x}{:02x}", red, green, blue);
}

KindStyle style_of(BoxKind kind) {
  constexpr KindStyle styles[] = {
      {blue, Texture::plain, "F"},                // forward
      {vermillion, Texture::rising, "B"},         // backward
      {yellow, Texture::falling, "I"},            // backward_input
      {reddish_purple, Texture::dots, "W"},       // backward_weight
      {violet, Texture::upright, "A"},            // recompute
      {{0x40, 0x40, 0x40}, Texture::plain, "U"},  // update
      {bluish_green, Texture::plain, "G"},        // gather
      {black, Texture::plain, "x"},               // reshard
      {orange, Texture::crossed, "R"},            // reduction
      {sky_blue, Texture::plain, "a"},            // activations
      {sky_blue, Texture::upright, "g"},          // gradients
      {sky_blue, Texture::dots, "E"},             // rows
      {grey, Texture::upright, "h"},              // host
  };
  static_assert(std::size(styles) == all_values<BoxKind>.size());
  return styles[static_cast<std::size_t>(kind)];
}

IdleStyle style_of(IdleReason reason) {
  if (reason == IdleReason::bubble) return {white, Texture::rising};
  const BoxKind cause = reason == IdleReason::gather ? BoxKind::gather
                        : reason == IdleReason::rows ? BoxKind::rows
                        : reason == IdleReason::host ? BoxKind::host
                                                     : BoxKind::reduction;
  return {shade_of(style_of(cause).colour, 1, 2), Texture::falling, 0.5};
}

Colour shade_of(Colour colour, int chunk, int chunks) {
  const double part = chunks > 1 ? lightest * chunk / (chunks - 1) : 0.0;
  const auto lighter = [part](std::uint8_t value) {
    return static_cast<std::uint8_t>(std::lround(value + part * (255 - value)));
  };
  return {lighter(colour.red), lighter(colour.green), lighter(colour.blue)};
}

Colour text_colour_on(Colour colour) {
  const double on = luminance(colour);
  return 1.05 / (on + 0.05) > (on + 0.05) / 0.05 ? white : black;
}

std::int64_t BucketStyle::bytes(const MemorySample& sample) const {
  std::int64_t sum = 0;
  for (const Bucket bucket : buckets) sum += sample.bytes[bucket];
  return sum;
}

BucketStyle bucket_style(int bucket) {
  using enum Bucket;
  static constexpr std::array held = {sharded_parameters, replicated_parameters, sharded_gradients, optimizer_state};
  static constexpr std::array parameters = {unsharded_parameters}, gradients = {unsharded_gradients},
                              sent = {communication}, temporary = {workspace};
  static constexpr std::array kept = {activations, moe_routing};
  constexpr std::array<BucketStyle, curve_bucket_count> styles = {
      BucketStyle{"shards, replicas and states", grey, Texture::plain, held},
      BucketStyle{"unsharded parameters", bluish_green, Texture::plain, parameters},
      BucketStyle{"unsharded gradients", orange, Texture::crossed, gradients},
      BucketStyle{"communication", reddish_purple, Texture::upright, sent},
      BucketStyle{"activations", sky_blue, Texture::dots, kept},
      BucketStyle{"workspace", yellow, Texture::rising, temporary}};
  return styles.at(static_cast<std::size_t>(bucket));
}

Colour series_colour(std::size_t series) {
  // Without yellow, which is hard to see on white.
  constexpr std::array colours = {blue, vermillion, bluish_green, reddish_purple, orange, sky_blue, black};
  return colours[series % colours.size()];
}

std::string_view lane_label(Lane lane) {
  constexpr std::string_view labels[] = {
      "compute",
      "gathers",
      "reductions",
      "send activations up",
      "receive activations up",
      "send activations down",
      "receive activations down",
      "send gradients up",
      "receive gradients up",
      "send gradients down",
      "receive gradients down",
      "exchange",
      "to host memory",
      "from host memory",
  };
  static_assert(std::size(labels) == all_lanes.size());
  return labels[static_cast<std::size_t>(lane)];
}

std::string escaped_markup(std::string_view text) {
  constexpr std::pair<std::string_view, std::string_view> entities[] = {
      {"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}, {"'", "&#39;"}};
  std::string result;
  while (!text.empty()) {
    const std::size_t length = character_length(text);
    const std::string_view character = text.substr(0, std::max<std::size_t>(length, 1));
    text.remove_prefix(character.size());
    const auto entity = std::ranges::find(entities, character, [](const auto& entry) { return entry.first; });
    result += entity != std::end(entities) ? entity->second : length == 0 ? "?" : character;
  }
  return result;
}

double mark_distance(double span, int most) {
  if (!(span > 0.0) || most < 1) return 1.0;
  const double least = span / most;
  double distance = std::pow(10.0, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * distance >= least) return factor * distance;
  }
  return 10.0 * distance;
}

}  // namespace weft
