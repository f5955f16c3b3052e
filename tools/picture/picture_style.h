// The look of kinds, chunks and buckets in a picture, for every output format.
//
// Colours are those of Okabe and Ito, chosen so that the kinds of one lane stay distinct under each deficiency of
// colour vision. tests/tools/picture_style_test.cpp derives by how much. Colour is never the only cue: each kind has
// its own texture and letter, so that a grey picture says the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "tools/picture/picture.h"

namespace weft {

enum class Texture : std::uint8_t { plain, rising, falling, crossed, dots, upright };
constexpr auto enum_names(Texture) {
  return name_list("plain", "rising", "falling", "crossed", "dots", "upright");
}
// The lines of a texture as an SVG path, in a square of 6 pixels that is repeated; empty for a plain one.
std::string_view strokes_of(Texture texture);
inline constexpr double texture_strength = 0.2;  // opacity of its lines, which are black

struct Colour {
  std::uint8_t red = 0, green = 0, blue = 0;
  std::string hex() const;  // "#0072b2"
  bool operator==(const Colour&) const = default;
};

struct KindStyle {
  Colour colour;
  Texture texture = Texture::plain;
  std::string_view letter;
};
KindStyle style_of(BoxKind kind);

struct IdleStyle {
  Colour colour;
  Texture texture = Texture::plain;
  double strength = texture_strength;
};
// A wait has the colour of its cause, lighter and hatched.
IdleStyle style_of(IdleReason reason);

// The colour of a chunk; each chunk is lighter than the one before.
Colour shade_of(Colour colour, int chunk, int chunks);
// Black or white, the one with more contrast.
Colour text_colour_on(Colour colour);

// The layers of a memory curve, from the bottom up. Each has the bytes of the buckets that it names.
struct BucketStyle {
  std::string_view name;
  Colour colour;
  Texture texture;
  std::span<const Bucket> buckets;

  std::int64_t bytes(const MemorySample& sample) const;
};
inline constexpr int curve_bucket_count = 6;
BucketStyle bucket_style(int bucket);

// Colours of series compared in one diagram. They repeat after seven, so the series also need different shapes.
Colour series_colour(std::size_t series);

std::string_view lane_label(Lane lane);

// UTF-8 with the markup characters of XML and HTML replaced. Invalid bytes, and characters that XML does not allow,
// become "?".
std::string escaped_markup(std::string_view text);

// A round distance between the marks of an axis: 1, 2 or 5 times a power of ten, for at most `most` marks in `span`.
double mark_distance(double span, int most);

}  // namespace weft
