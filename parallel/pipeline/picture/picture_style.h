// How kinds, chunks, buckets and numbers look in a picture, whatever draws it.
//
// Colours are those of Okabe and Ito, chosen so that the kinds that share a lane stay apart under each deficiency of
// colour vision (tests/parallel/picture_style_test.cpp derives by how much). Colour is never the only cue: each kind
// has a texture and a letter of its own, so that a picture in grey says the same.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "parallel/pipeline/picture/picture.h"

namespace weft {

enum class Texture : std::uint8_t { plain, rising, falling, crossed, dots, upright };
inline constexpr std::array all_textures = {Texture::plain,   Texture::rising, Texture::falling,
                                            Texture::crossed, Texture::dots,   Texture::upright};
std::string_view name_of(Texture texture);
// Lines to draw, as an SVG path, in a square of 6 pixels that is repeated; empty for a plain one.
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
// A wait has the colour of what it is for, lighter and hatched.
IdleStyle style_of(IdleReason reason);

// The colour of a chunk, lighter from chunk to chunk.
Colour shade_of(Colour colour, int chunk, int chunks);
// Black or white, whichever stands out more.
Colour text_colour_on(Colour colour);

// The buckets of a memory curve, from the ground up.
struct BucketStyle {
  std::string_view name;
  Colour colour;
  Texture texture;
  std::int64_t MemorySample::*bytes;
};
inline constexpr int curve_bucket_count = 6;
BucketStyle bucket_style(int bucket);

// Of things that are compared in one diagram; they repeat after seven, so that a shape has to tell them apart as well.
Colour series_colour(std::size_t series);

std::string_view lane_label(Lane lane);

// UTF-8 with the characters that mark up XML and HTML replaced; what is no character, or none that XML allows, is a
// "?".
std::string escaped_markup(std::string_view text);

// "12.5 ms", "3.5" of unit times.
std::string format_time(double seconds, bool unit_time);
std::string format_bytes(std::int64_t bytes);  // "1.50 GiB"
// A round distance between marks of an axis: 1, 2 or 5 times a power of ten, so that `span` has at most `most` of them.
double mark_distance(double span, int most);

}  // namespace weft
