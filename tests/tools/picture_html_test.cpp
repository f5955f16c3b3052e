// The drawing data of the page, read back by another reader of JSON than the page's; tests/tools/picture_page_test.cpp
// looks at the page in a browser.
#include "tools/picture/picture_formats.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "parallel/runtime/error.h"
#include "tests/tools/picture_fixture.h"
#include "tools/picture/picture_style.h"

namespace weft {
namespace {

using SortedJson = nlohmann::json;

std::size_t occurrences(std::string_view text, std::string_view word) {
  std::size_t count = 0;
  for (std::size_t at = text.find(word); at != std::string_view::npos; at = text.find(word, at + 1)) ++count;
  return count;
}

std::string between(const std::string& text, std::string_view open, std::string_view close) {
  const std::size_t begin = text.find(open) + open.size();
  return text.substr(begin, text.find(close, begin) - begin);
}

TEST(PictureHtml, HoldsEveryBoxAndSampleOfEveryVariant) {
  const std::vector<Picture> pictures = {hostile_picture("zbv"), hostile_picture("1f1b", 1)};
  const std::string page = to_html(pictures, "two");
  const SortedJson data = SortedJson::parse(between(page, "id=\"data\">", "</script>"));
  EXPECT_EQ(data["title"], "two");
  const auto text = [&](const SortedJson& index) {
    return index.is_null() ? std::string() : data["strings"].at(index.get<std::size_t>()).get<std::string>();
  };
  ASSERT_EQ(data["variants"].size(), 2u);
  for (std::size_t v = 0; v < pictures.size(); ++v) {
    const Picture& picture = pictures[v];
    const SortedJson& variant = data["variants"][v];
    EXPECT_EQ(variant["title"], picture.title);
    EXPECT_EQ(variant["seconds"], picture.seconds);
    EXPECT_EQ(variant["unit_time"], false);
    EXPECT_EQ(variant["bubble"], picture.bubble());
    EXPECT_EQ(variant["exposed_gathers"], picture.exposed_gathers());
    EXPECT_EQ(variant["exposed_reductions"], picture.exposed_reductions());
    EXPECT_EQ(variant["peak_bytes"], picture.peak_bytes());
    EXPECT_EQ(variant["highest_bytes"], picture.highest_bytes());
    ASSERT_EQ(variant["lanes"].size(), picture.lanes.size());
    for (std::size_t i = 0; i < picture.lanes.size(); ++i) {
      EXPECT_EQ(variant["lanes"][i], static_cast<int>(picture.lanes[i]));
    }
    ASSERT_EQ(variant["hops"].size(), picture.hops.size());
    for (std::size_t r = 0; r < picture.ranks.size(); ++r) {
      const PictureRank& rank = picture.ranks[r];
      const SortedJson& row = variant["ranks"][r];
      EXPECT_EQ(row["rank"], rank.rank);
      EXPECT_EQ(row["peak_bytes"], rank.peak_bytes);
      ASSERT_EQ(row["boxes"].size(), rank.boxes.size());
      for (std::size_t i = 0; i < rank.boxes.size(); ++i) {
        const PictureBox& box = rank.boxes[i];
        const SortedJson& entry = row["boxes"][i];
        ASSERT_EQ(entry.size(), 14u);
        EXPECT_EQ(entry[0], static_cast<int>(box.lane));
        EXPECT_EQ(entry[1], static_cast<int>(box.kind));
        EXPECT_EQ(entry[2].get<double>(), box.start);
        EXPECT_EQ(entry[3].get<double>(), box.end);
        EXPECT_EQ(entry[4], box.chunk);
        EXPECT_EQ(entry[5], box.stage ? SortedJson(*box.stage) : SortedJson());
        EXPECT_EQ(entry[6], box.microbatch ? SortedJson(*box.microbatch) : SortedJson());
        EXPECT_EQ(text(entry[7]), box.action);
        EXPECT_EQ(text(entry[8]), box.subject);
        EXPECT_EQ(entry[9], box.bytes);
        EXPECT_EQ(entry[10], box.actions);
        EXPECT_EQ(entry[11].get<double>(), box.waited);
        EXPECT_EQ(text(entry[12]), box.waited_for);
        EXPECT_EQ(entry[13], box.critical ? 1 : 0);
        // The page looks its style up without asking whether there is one.
        EXPECT_LT(box.chunk, static_cast<int>(variant["shades"][static_cast<std::size_t>(box.kind)].size()));
      }
      ASSERT_EQ(row["idle"].size(), rank.idle.size());
      for (std::size_t i = 0; i < rank.idle.size(); ++i) {
        EXPECT_EQ(row["idle"][i][0].get<double>(), rank.idle[i].start);
        EXPECT_EQ(row["idle"][i][1].get<double>(), rank.idle[i].end);
        EXPECT_EQ(row["idle"][i][2], static_cast<int>(rank.idle[i].reason));
        EXPECT_EQ(text(row["idle"][i][3]), rank.idle[i].waited_for);
      }
      ASSERT_EQ(row["memory"].size(), rank.memory.size());
      for (std::size_t i = 0; i < rank.memory.size(); ++i) {
        const MemorySample& sample = rank.memory[i];
        EXPECT_EQ(row["memory"][i],
                  SortedJson::array({sample.time, sample.kept, sample.unsharded_parameters, sample.unsharded_gradients,
                                     sample.communication, sample.activations, sample.workspace}));
      }
    }
  }
  EXPECT_EQ(data["kinds"].size(), all_values<BoxKind>.size());
  EXPECT_EQ(data["idle"].size(), all_values<IdleReason>.size());
  EXPECT_EQ(data["lanes"].size(), all_lanes.size());
  for (const SortedJson& kind : data["kinds"]) EXPECT_TRUE(data["textures"].contains(kind["texture"]));
}

TEST(PictureHtml, NeedsNothingFromElsewhere) {
  const std::string page = to_html(std::vector{hostile_picture()}, "one");
  for (const char* word : {"http:", "https:", "//www", "@import", "href=", "src=", "url("}) {
    EXPECT_EQ(page.find(word), std::string::npos) << word;
  }
}

// Names hold </script>; still the page has the scripts and the ends of scripts that it is made with.
TEST(PictureHtml, NoNameCanEndTheScript) {
  const std::string page = to_html(std::vector{hostile_picture()}, hostile);
  EXPECT_EQ(occurrences(page, "</script>"), 2u);
  EXPECT_EQ(occurrences(page, "<script"), 2u);
  EXPECT_EQ(occurrences(page, "<b>"), 0u);
  EXPECT_EQ(between(page, "<title>", "</title>"), escaped_markup(hostile));
  EXPECT_EQ(SortedJson::parse(picture_data({}, hostile))["title"], hostile);
}

// A title or name may come from a file that is not UTF-8.
TEST(PictureHtml, BytesThatAreNoTextAreShownAsSuch) {
  Picture picture = hostile_picture();
  picture.title = "broken \xff name";
  EXPECT_EQ(SortedJson::parse(picture_data(std::vector{picture}, ""))["variants"][0]["title"],
            "broken \xef\xbf\xbd name");
}

TEST(PictureHtml, RefusesMoreBoxesThanAPageBears) {
  Picture picture = hostile_picture();
  picture.ranks.front().boxes.resize(html_box_limit + 1, picture.ranks.front().boxes.front());
  try {
    to_html(std::vector{picture}, "large");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::request);
    EXPECT_NE(std::string(error.what()).find("--stages-only"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace weft
