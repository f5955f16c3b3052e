// The SVG read back: well formed whatever the names are, every box where its times put it, memory as high as its bytes.
#include "tools/picture/picture_formats.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <sstream>

#include "parallel/runtime/error.h"
#include "tests/parallel/markup.h"
#include "tests/tools/picture_fixture.h"
#include "tools/picture/picture_style.h"

namespace weft {
namespace {

bool has_class(const MarkupElement& element, std::string_view name) {
  const auto found = element.attributes.find("class");
  if (found == element.attributes.end()) return false;
  std::istringstream words(found->second);
  for (std::string word; words >> word;) {
    if (word == name) return true;
  }
  return false;
}

// The elements inside the group of a rank.
std::vector<MarkupElement> in_rank(const std::vector<MarkupElement>& all, int rank) {
  std::vector<MarkupElement> found;
  for (const MarkupElement& element : all) {
    const auto& parent = all[element.parent].attributes;
    if (parent.contains("id") && parent.at("id") == fmt::format("rank{}", rank)) found.push_back(element);
  }
  return found;
}

// The tooltip of the element at `place`.
std::string tooltip_of(const std::vector<MarkupElement>& all, std::size_t place) {
  for (std::size_t i = place + 1; i < all.size(); ++i) {
    if (all[i].parent == place && all[i].name == "title") return all[i].text;
  }
  return "";
}

TEST(PictureSvg, TheReaderRefusesWhatIsNotWellFormed) {
  EXPECT_EQ(MarkupReader("<a b=\"1\"><c/>x&lt;</a>").read().size(), 2u);
  for (const char* text : {"<a>", "<a></b>", "<a b=1/>", "<a b=\"<\"/>", "<a>&</a>", "<a>&x;</a>", "<a/><a/>", "x",
                           "<a b=\"1\" b=\"1\"/>", "<a>\x01</a>", ""}) {
    EXPECT_THROW(MarkupReader(text).read(), std::runtime_error) << text;
  }
}

// A box starts and ends where its times are on the axis; the axis is what the marks say. Positions are written with two
// digits, so they are right within half a hundredth each.
TEST(PictureSvg, EveryBoxStandsAtItsTime) {
  for (const auto& [schedule, chunks] : {std::pair("1f1b", 1), std::pair("zbv", 2), std::pair("dualpipev", 2)}) {
    const Picture picture = hostile_picture(schedule, chunks);
    const auto all = MarkupReader(to_svg(picture)).read();
    const auto lane = std::find_if(all.begin(), all.end(), [](const auto& e) { return has_class(e, "lane"); });
    ASSERT_NE(lane, all.end());
    const double origin = lane->number("x"), scale = lane->number("width") / picture.seconds;
    for (const PictureRank& rank : picture.ranks) {
      std::vector<MarkupElement> boxes, marks;
      for (const MarkupElement& element : in_rank(all, rank.rank)) {
        if (has_class(element, "box")) boxes.push_back(element);
        if (has_class(element, "drop")) marks.push_back(element);
      }
      std::size_t box_at = 0, mark_at = 0;
      for (const PictureBox& box : rank.boxes) {
        if (box.kind == BoxKind::reshard) {
          ASSERT_LT(mark_at, marks.size());
          EXPECT_NEAR(std::stod(marks[mark_at++].attributes.at("d").substr(1)), origin + scale * box.start, 0.011);
          continue;
        }
        ASSERT_LT(box_at, boxes.size());
        const MarkupElement& drawn = boxes[box_at++];
        EXPECT_NEAR(drawn.number("x"), origin + scale * box.start, 0.011);
        EXPECT_NEAR(drawn.number("width"), scale * (box.end - box.start), 0.011);
        EXPECT_TRUE(has_class(drawn, fmt::format("k{}c{}", static_cast<int>(box.kind), box.chunk)));
      }
      EXPECT_EQ(box_at, boxes.size());
      EXPECT_EQ(mark_at, marks.size());
      const auto drawn = in_rank(all, rank.rank);
      EXPECT_EQ(std::count_if(drawn.begin(), drawn.end(),
                              [](const auto& e) {
                                return e.attributes.contains("class") && e.attributes.at("class").starts_with("idle");
                              }),
                static_cast<std::ptrdiff_t>(rank.idle.size()));
    }
    // Marks of the axis: the number is the time at its place.
    int marks = 0;
    for (const MarkupElement& element : all) {
      if (!has_class(element, "mark")) continue;
      const double milliseconds = (element.number("x") - origin) / scale * 1e3;
      EXPECT_NEAR(std::stod(element.text), milliseconds, 1e-3) << element.text;
      ++marks;
    }
    EXPECT_GT(marks, 8);
  }
}

// Lanes of a rank stand below each other, ranks below ranks, all inside the document.
TEST(PictureSvg, LanesDoNotOverlap) {
  const Picture picture = hostile_picture();
  const auto all = MarkupReader(to_svg(picture)).read();
  double reached = 0.0;
  std::size_t lanes = 0;
  for (const MarkupElement& element : all) {
    if (!has_class(element, "lane")) continue;
    EXPECT_GE(element.number("y"), reached);
    reached = element.number("y") + element.number("height");
    ++lanes;
  }
  EXPECT_EQ(lanes, picture.lanes.size() * picture.ranks.size());
  EXPECT_LT(reached, all.front().number("height"));
}

TEST(PictureSvg, TooltipsTellActionUnitBytesTimesAndWait) {
  const Picture picture = hostile_picture();
  const auto all = MarkupReader(to_svg(picture)).read();
  std::map<std::string, std::string> tooltips;  // by first line
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!has_class(all[i], "box")) continue;
    const std::string text = tooltip_of(all, i);
    tooltips.emplace(text.substr(0, text.find('\n')), text);  // of several the first
  }
  for (const PictureRank& rank : picture.ranks) {
    for (const PictureBox& box : rank.boxes) {
      if (box.kind == BoxKind::reshard) continue;
      const auto found = tooltips.find(box.action);
      ASSERT_NE(found, tooltips.end()) << box.action;
    }
  }
  // The names of the fixture hold every character that marks up; the reader gave them back as they were.
  const std::string gather = fmt::format("0UNSHARD(blocks.0{})", hostile);
  ASSERT_TRUE(tooltips.contains(gather));
  EXPECT_NE(tooltips[gather].find(fmt::format("\nblocks.0{}\n", hostile)), std::string::npos);
  EXPECT_NE(tooltips[gather].find("\n10 B (10 bytes)\n0 s to 310 us: 310 us"), std::string::npos) << tooltips[gather];
  const std::string forward = fmt::format("0F0(blocks.0{})", hostile);
  EXPECT_NE(tooltips[forward].find(fmt::format("waited 310 us for gather: {}", gather)), std::string::npos)
      << tooltips[forward];
  EXPECT_EQ(all[1].name, "title");
  EXPECT_EQ(all[1].text, fmt::format("zbv {}", hostile));
}

// The path of a bucket is the sum of the buckets up to it. At the time of each sample it steps to that many bytes.
TEST(PictureSvg, MemoryIsAsHighAsItsBytes) {
  const Picture picture = hostile_picture();
  const auto all = MarkupReader(to_svg(picture)).read();
  const auto lane = std::find_if(all.begin(), all.end(), [](const auto& e) { return has_class(e, "lane"); });
  const double origin = lane->number("x"), scale = lane->number("width") / picture.seconds;
  double per_byte = 0.0;  // one scale for all ranks and buckets; taken from the highest point
  for (const bool measures : {true, false}) {
    for (const PictureRank& rank : picture.ranks) {
      for (int bucket = 0; bucket < curve_bucket_count; ++bucket) {
        const auto elements = in_rank(all, rank.rank);
        const auto path = std::find_if(elements.begin(), elements.end(),
                                       [&](const auto& e) { return has_class(e, fmt::format("m{}", bucket)); });
        ASSERT_NE(path, elements.end());
        // Mx yH..: then H and V in turn.
        std::istringstream stream(path->attributes.at("d"));
        char letter = 0;
        double x = 0.0, y = 0.0;
        ASSERT_TRUE(stream >> letter >> x >> y);
        const double ground = y;
        std::vector<std::pair<double, double>> steps;  // where it goes up or down, and to what height
        for (double value = 0.0; stream >> letter && letter != 'Z' && stream >> value;) {
          if (letter == 'H') x = value;
          if (letter == 'V') steps.emplace_back(x, ground - value);
        }
        ASSERT_EQ(steps.size(), rank.memory.size() + 1);  // the last one closes the path
        for (std::size_t i = 0; i < rank.memory.size(); ++i) {
          const auto layers = layers_of(rank.memory[i]);
          const std::int64_t bytes = std::accumulate(layers.begin(), layers.begin() + bucket + 1, std::int64_t{0});
          if (measures && bytes == picture.highest_bytes()) per_byte = steps[i].second / static_cast<double>(bytes);
          if (measures) continue;
          EXPECT_NEAR(steps[i].first, origin + scale * rank.memory[i].time, 0.011);
          EXPECT_NEAR(steps[i].second, per_byte * static_cast<double>(bytes), 0.011);
        }
      }
    }
  }
  EXPECT_GT(per_byte, 0.0);
}

TEST(PictureSvg, NeedsNothingFromElsewhere) {
  std::string text = to_svg(hostile_picture());
  const std::string name_space = "http://www.w3.org/2000/svg";
  ASSERT_NE(text.find(name_space), std::string::npos);
  text.erase(text.find(name_space), name_space.size());
  for (const char* word : {"http", "//", "@import", "<script", "href", "src="}) {
    EXPECT_EQ(text.find(word), std::string::npos) << word;
  }
}

TEST(PictureSvg, RefusesMoreBoxesThanViewersBear) {
  Picture picture = hostile_picture();
  PictureRank& rank = picture.ranks.front();
  rank.boxes.resize(svg_box_limit - picture.ranks.back().boxes.size(), rank.boxes.front());
  EXPECT_NO_THROW(to_svg(picture));
  rank.boxes.push_back(rank.boxes.front());
  try {
    to_svg(picture);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::request);
    for (const char* word : {"20001", "20000", "--stages-only", "--rank", "--format html"}) {
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
    }
  }
}

// A program that knows neither units nor bytes: computations alone.
TEST(PictureSvg, DrawsABareSchedule) {
  const Program program = bare("1f1b", 3, 5);
  const Picture picture = picture_of(program, simulate_step(program, even_costs(program)), {.unit_time = true});
  const auto all = MarkupReader(to_svg(picture)).read();
  EXPECT_EQ(std::count_if(all.begin(), all.end(), [](const auto& e) { return has_class(e, "in"); }), 3 * 5 * 2);
  for (const MarkupElement& element : all) EXPECT_FALSE(has_class(element, "m0"));
}

// Of a stage that came apart into segments each forward and each backward has its number once.
TEST(PictureSvg, NumbersAMicrobatchOnceAnActionOfTheStage) {
  const Program program =
      compile(stage_tables(2, 3), find_schedule("1f1b"), {.ranks = 2, .chunks = 1, .microbatches = 4});
  const Picture picture = picture_of(program, simulate_step(program, even_costs(program)), {.unit_time = true});
  std::map<std::string, int> numbers;
  for (const MarkupElement& element : MarkupReader(to_svg(picture)).read()) {
    if (has_class(element, "in")) ++numbers[element.text];
  }
  const std::map<std::string, int> expected = {{"0", 4}, {"1", 4}, {"2", 4}, {"3", 4}};
  EXPECT_EQ(numbers, expected);
}

}  // namespace
}  // namespace weft
