// Kinds can be told apart by people who see colours otherwise, and by everyone in grey.
#include "tools/picture/picture_style.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace weft {
namespace {

using Vector = std::array<double, 3>;
using Matrix = std::array<Vector, 3>;

struct Sight {
  const char* name;
  Matrix seen;  // of linear RGB
};

// Machado, Oliveira and Fernandes 2009, "A physiologically-based model for simulation of color vision deficiency",
// severity 1.0.
constexpr std::array<Sight, 4> sights = {
    Sight{"normal", {{{1, 0, 0}, {0, 1, 0}, {0, 0, 1}}}},
    Sight{"protanopia",
          {{{0.152286, 1.052583, -0.204868}, {0.114503, 0.786281, 0.099216}, {-0.003882, -0.048116, 1.051998}}}},
    Sight{"deuteranopia",
          {{{0.367322, 0.860646, -0.227968}, {0.280085, 0.672501, 0.047413}, {-0.011820, 0.042940, 0.968881}}}},
    Sight{"tritanopia",
          {{{1.255528, -0.076749, -0.178779}, {-0.078411, 0.930809, 0.147602}, {0.004733, 0.691367, 0.303900}}}}};

Vector linear(Colour colour) {
  const auto part = [](std::uint8_t value) {
    const double c = value / 255.0;
    return c <= 0.04045 ? c / 12.92 : std::pow((c + 0.055) / 1.055, 2.4);
  };
  return {part(colour.red), part(colour.green), part(colour.blue)};
}

Vector times(const Matrix& matrix, const Vector& vector) {
  Vector result = {};
  for (std::size_t i = 0; i < 3; ++i) {
    for (std::size_t j = 0; j < 3; ++j) result[i] += matrix[i][j] * vector[j];
  }
  return result;
}

// CIE L*a*b* under D65.
Vector lab(Colour colour, const Sight& sight) {
  Vector seen = times(sight.seen, linear(colour));
  for (double& part : seen) part = std::clamp(part, 0.0, 1.0);
  constexpr Matrix to_xyz = {
      {{0.4124564, 0.3575761, 0.1804375}, {0.2126729, 0.7151522, 0.0721750}, {0.0193339, 0.1191920, 0.9503041}}};
  const Vector xyz = times(to_xyz, seen);
  const auto f = [](double t) { return t > 216.0 / 24389 ? std::cbrt(t) : (24389.0 / 27 * t + 16) / 116; };
  const double x = f(xyz[0] / 0.95047), y = f(xyz[1]), z = f(xyz[2] / 1.08883);
  return {116 * y - 16, 500 * (x - y), 200 * (y - z)};
}

// CIE76.
double difference(Colour one, Colour other, const Sight& sight) {
  const Vector a = lab(one, sight), b = lab(other, sight);
  return std::hypot(a[0] - b[0], a[1] - b[1], a[2] - b[2]);
}

// The smallest difference that is seen at all between patches side by side is 2.3 (Mahy, van Eycken and Oosterlinck
// 1994). Boxes are small and apart from each other and their legend, so kinds that share a lane are held to eight times
// that. Pale chunks come closer: five times where a rank has two chunks, three times where it has more, up to eight.
// There texture and number do the rest.
constexpr double just_noticeable = 2.3;

constexpr std::array computing = {BoxKind::forward, BoxKind::backward, BoxKind::backward_input,
                                  BoxKind::backward_weight, BoxKind::recompute};

TEST(PictureStyle, KindsOfALaneStayApartInEverySight) {
  for (const Sight& sight : sights) {
    for (const BoxKind one : computing) {
      EXPECT_GT(difference(style_of(one).colour, style_of(BoxKind::update).colour, sight), 8 * just_noticeable);
      for (const BoxKind other : computing) {
        if (one >= other) continue;
        EXPECT_GT(difference(style_of(one).colour, style_of(other).colour, sight), 8 * just_noticeable)
            << sight.name << ": " << name_of(one) << ", " << name_of(other);
        for (int chunks = 2; chunks <= 8; ++chunks) {
          for (int i = 0; i < chunks * chunks; ++i) {
            const Colour first = shade_of(style_of(one).colour, i / chunks, chunks);
            const Colour second = shade_of(style_of(other).colour, i % chunks, chunks);
            EXPECT_GT(difference(first, second, sight), (chunks == 2 ? 5 : 3) * just_noticeable)
                << sight.name << ": " << name_of(one) << ", " << name_of(other) << ", " << i << " of " << chunks;
          }
        }
      }
    }
  }
}

TEST(PictureStyle, NeighboursInTheMemoryCurveStayApartInEverySight) {
  for (const Sight& sight : sights) {
    for (int bucket = 1; bucket < curve_bucket_count; ++bucket) {
      EXPECT_GT(difference(bucket_style(bucket).colour, bucket_style(bucket - 1).colour, sight), 5 * just_noticeable)
          << sight.name << ": " << bucket_style(bucket).name;
    }
  }
}

// The second chunk of a rank is lighter, and that is seen in every sight.
TEST(PictureStyle, TwoChunksStayApartInEverySight) {
  for (const BoxKind kind : computing) {
    const Colour colour = style_of(kind).colour;
    EXPECT_EQ(shade_of(colour, 0, 1), colour);
    EXPECT_EQ(shade_of(colour, 0, 2), colour);
    for (const Sight& sight : sights) {
      EXPECT_GT(difference(colour, shade_of(colour, 1, 2), sight), 3 * just_noticeable) << name_of(kind);
      EXPECT_LT(lab(colour, sight)[0], lab(shade_of(colour, 1, 2), sight)[0]) << name_of(kind);
    }
  }
}

// In grey a texture is left, and the letter of the legend.
TEST(PictureStyle, KindsHaveASecondCue) {
  std::set<std::string_view> letters;
  for (const BoxKind kind : all_values<BoxKind>)
    EXPECT_TRUE(letters.insert(style_of(kind).letter).second) << name_of(kind);
  std::set<Texture> textures;
  for (const BoxKind kind : computing) {
    EXPECT_TRUE(textures.insert(style_of(kind).texture).second) << name_of(kind);
  }
  EXPECT_NE(style_of(BoxKind::activations).texture, style_of(BoxKind::gradients).texture);
  EXPECT_NE(style_of(BoxKind::gather).texture, style_of(BoxKind::reduction).texture);
  std::set<std::pair<Texture, std::string>> idle;
  for (const IdleReason reason : all_values<IdleReason>) {
    EXPECT_NE(style_of(reason).texture, Texture::plain);
    EXPECT_TRUE(idle.insert({style_of(reason).texture, style_of(reason).colour.hex()}).second);
  }
  std::set<std::string_view> strokes;
  for (const Texture texture : all_values<Texture>) EXPECT_TRUE(strokes.insert(strokes_of(texture)).second);
}

// WCAG 2 asks for 4.5 : 1.
TEST(PictureStyle, NumbersStandOutFromTheirBoxes) {
  const auto luminance = [](Colour colour) {
    const Vector part = linear(colour);
    return 0.2126 * part[0] + 0.7152 * part[1] + 0.0722 * part[2];
  };
  for (const BoxKind kind : all_values<BoxKind>) {
    for (int chunk = 0; chunk < 4; ++chunk) {
      const Colour colour = shade_of(style_of(kind).colour, chunk, 4);
      const double on = luminance(colour), text = luminance(text_colour_on(colour));
      EXPECT_GE((std::max(on, text) + 0.05) / (std::min(on, text) + 0.05), 4.5) << name_of(kind) << " " << chunk;
    }
  }
}

TEST(PictureStyle, EscapesMarkup) {
  EXPECT_EQ(escaped_markup("a<b> & \"c\" 'd'\n"), "a&lt;b&gt; &amp; &quot;c&quot; &#39;d&#39;\n");
  EXPECT_EQ(escaped_markup(std::string_view("\x01\x00x", 3)), "??x");
  // Characters of two, three and four bytes stay. A cut-off one, a byte that only follows and the long form of a slash
  // do not. Nor do half of a surrogate pair, a character that is none and one behind the last.
  EXPECT_EQ(escaped_markup("\xc3\xa9 \xe2\x86\x92 \xf0\x9f\x98\x80"), "\xc3\xa9 \xe2\x86\x92 \xf0\x9f\x98\x80");
  for (const char* broken : {"\xc3", "\x80", "\xff"}) EXPECT_EQ(escaped_markup(broken), "?");
  EXPECT_EQ(escaped_markup("\xc0\xaf"), "??");
  EXPECT_EQ(escaped_markup("\xe0\x80\xaf"), "???");
  EXPECT_EQ(escaped_markup("\xed\xa0\x80"), "???");
  EXPECT_EQ(escaped_markup("\xef\xbf\xbe"), "???");
  EXPECT_EQ(escaped_markup("\xf4\x90\x80\x80"), "????");
  EXPECT_EQ(escaped_markup("a\xe2\x86<"), "a??&lt;");
}

TEST(PictureStyle, MarksOfAnAxisAreRoundAndFewEnough) {
  EXPECT_DOUBLE_EQ(mark_distance(51.0, 13), 5.0);
  EXPECT_DOUBLE_EQ(mark_distance(0.0699, 10), 0.01);
  EXPECT_DOUBLE_EQ(mark_distance(0.0, 10), 1.0);
  for (double span = 1e-7; span < 1e5; span *= 1.37) {
    for (int most : {1, 7, 40}) {
      const double distance = mark_distance(span, most);
      EXPECT_LE(span / distance, most * (1 + 1e-9));
      EXPECT_GT(span / distance, most / 2.6) << span;  // the widest step between round numbers is from 2 to 5
    }
  }
}

}  // namespace
}  // namespace weft
