#include "tools/picture/picture_style.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "parallel/runtime/error.h"

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
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  if (first < 0x80) return first >= 0x20 || first == '\n' || first == '\t' ? 1 : 0;
  const std::size_t length = first >= 0xC2 && first < 0xE0   ? 2
                             : first >= 0xE0 && first < 0xF0 ? 3
                             : first < 0xF5                  ? 4
                                                             : 0;
  if (first < 0xC2 || length == 0 || text.size() < length) return 0;
  std::uint32_t code = first & (0x7Fu >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0u) != 0x80u) return 0;
    code = code << 6 | (byte(i) & 0x3Fu);
  }
  const bool long_form = (length == 3 && code < 0x800) || (length == 4 && code < 0x10000);
  const bool surrogate = code >= 0xD800 && code < 0xE000, reserved = code == 0xFFFE || code == 0xFFFF;
  return long_form || surrogate || reserved || code > 0x10FFFF ? 0 : length;
}

}  // namespace

std::string_view name_of(Texture texture) {
  constexpr std::string_view names[] = {"plain", "rising", "falling", "crossed", "dots", "upright"};
  return names[static_cast<std::size_t>(texture)];
}

std::string_view strokes_of(Texture texture) {
  switch (texture) {
    case Texture::plain:
      return "";
    case Texture::rising:
      return "M-1 1l2 -2M0 6l6 -6M5 7l2 -2";
    case Texture::falling:
      return "M5 -1l2 2M0 0l6 6M-1 5l2 2";
    case Texture::crossed:
      return "M0 6l6 -6M0 0l6 6";
    case Texture::dots:
      return "M1 1.5h1.6M4 4.5h1.6";
    case Texture::upright:
      return "M3 0v6";
  }
  return "";
}

std::string Colour::hex() const {
  return fmt::format("#{:02x}{:02x}{:02x}", red, green, blue);
}

KindStyle style_of(BoxKind kind) {
  switch (kind) {
    case BoxKind::forward:
      return {blue, Texture::plain, "F"};
    case BoxKind::backward:
      return {vermillion, Texture::rising, "B"};
    case BoxKind::backward_input:
      return {yellow, Texture::falling, "I"};
    case BoxKind::backward_weight:
      return {reddish_purple, Texture::dots, "W"};
    case BoxKind::recompute:
      return {violet, Texture::upright, "A"};
    case BoxKind::update:
      return {{0x40, 0x40, 0x40}, Texture::plain, "U"};
    case BoxKind::gather:
      return {bluish_green, Texture::plain, "G"};
    case BoxKind::reshard:
      return {black, Texture::plain, "x"};
    case BoxKind::reduction:
      return {orange, Texture::crossed, "R"};
    case BoxKind::activations:
      return {sky_blue, Texture::plain, "a"};
    case BoxKind::gradients:
      return {sky_blue, Texture::upright, "g"};
  }
  fail("a kind of box without a style");
}

IdleStyle style_of(IdleReason reason) {
  switch (reason) {
    case IdleReason::bubble:
      return {white, Texture::rising};
    case IdleReason::gather:
      return {shade_of(style_of(BoxKind::gather).colour, 1, 2), Texture::falling, 0.5};
    case IdleReason::reduction:
      return {shade_of(style_of(BoxKind::reduction).colour, 1, 2), Texture::falling, 0.5};
  }
  fail("an idle stretch without a style");
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

BucketStyle bucket_style(int bucket) {
  constexpr std::array<BucketStyle, curve_bucket_count> styles = {
      BucketStyle{"shards, replicas and states", grey, Texture::plain, &MemorySample::kept},
      BucketStyle{"unsharded parameters", bluish_green, Texture::plain, &MemorySample::unsharded_parameters},
      BucketStyle{"unsharded gradients", orange, Texture::crossed, &MemorySample::unsharded_gradients},
      BucketStyle{"communication", reddish_purple, Texture::upright, &MemorySample::communication},
      BucketStyle{"activations", sky_blue, Texture::dots, &MemorySample::activations},
      BucketStyle{"workspace", yellow, Texture::rising, &MemorySample::workspace}};
  return styles.at(static_cast<std::size_t>(bucket));
}

Colour series_colour(std::size_t series) {
  // Without yellow, which is hard to see on white.
  constexpr std::array colours = {blue, vermillion, bluish_green, reddish_purple, orange, sky_blue, black};
  return colours[series % colours.size()];
}

std::string_view lane_label(Lane lane) {
  switch (lane) {
    case Lane::compute:
      return "compute";
    case Lane::gather:
      return "gathers";
    case Lane::reduce:
      return "reductions";
    case Lane::send_activations_up:
      return "send activations up";
    case Lane::receive_activations_up:
      return "receive activations up";
    case Lane::send_activations_down:
      return "send activations down";
    case Lane::receive_activations_down:
      return "receive activations down";
    case Lane::send_gradients_up:
      return "send gradients up";
    case Lane::receive_gradients_up:
      return "receive gradients up";
    case Lane::send_gradients_down:
      return "send gradients down";
    case Lane::receive_gradients_down:
      return "receive gradients down";
    case Lane::exchange:
      return "exchange";
  }
  return "?";
}

std::string escaped_markup(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const std::size_t length = character_length(text);
    const std::string_view character = text.substr(0, std::max<std::size_t>(length, 1));
    text.remove_prefix(character.size());
    if (character == "&") {
      result += "&amp;";
    } else if (character == "<") {
      result += "&lt;";
    } else if (character == ">") {
      result += "&gt;";
    } else if (character == "\"") {
      result += "&quot;";
    } else if (character == "'") {
      result += "&#39;";
    } else {
      result += length == 0 ? "?" : character;
    }
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
