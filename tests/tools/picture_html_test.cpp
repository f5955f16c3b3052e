// The drawing data of the page, read back by another reader of JSON than the page's; tests/tools/picture_page_test.cpp
// looks at the page in a browser.
#include "tools/picture/picture_formats.h"

#include <gtest/gtest.h>

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "parallel/runtime/error.h"
#include "parallel/runtime/quantities.h"
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
  ASSERT_EQ(data["variants"].size(), 2u);
  for (std::size_t v = 0; v < pictures.size(); ++v) {
    const Picture& picture = pictures[v];
    const SortedJson& variant = data["variants"][v];
    EXPECT_EQ(variant["title"], picture.title);
    EXPECT_EQ(variant["seconds"], picture.seconds);
    EXPECT_EQ(variant["unit_time"], false);
    EXPECT_EQ(variant["highest_bytes"], picture.highest_bytes());
    std::map<std::string, double> figures;
    for (const SortedJson& figure : variant["figures"]) figures[figure["name"]] = figure["value"];
    EXPECT_EQ(figures["step"], picture.seconds);
    EXPECT_EQ(figures["bubble"], picture.bubble());
    EXPECT_EQ(figures["waits for gathers"], picture.waits().gathers);
    EXPECT_EQ(figures["waits for reductions"], picture.waits().reductions);
    EXPECT_EQ(figures["peak of the fullest rank"], static_cast<double>(picture.peak_bytes()));
    ASSERT_EQ(variant["links"].size(), picture.hops.size());
    for (std::size_t i = 0; i < picture.hops.size(); ++i) {
      const PictureHop& hop = picture.hops[i];
      EXPECT_EQ(variant["links"][i][1].get<double>(), picture.ranks[hop.from_rank].boxes[hop.from_box].end);
      EXPECT_EQ(variant["links"][i][3].get<double>(), picture.ranks[hop.to_rank].boxes[hop.to_box].start);
      EXPECT_EQ(variant["lanes"][variant["links"][i][0].get<std::size_t>()]["row"], hop.from_rank);
      EXPECT_EQ(variant["lanes"][variant["links"][i][2].get<std::size_t>()]["row"], hop.to_rank);
    }
    ASSERT_EQ(variant["rows"].size(), picture.ranks.size());
    ASSERT_EQ(variant["lanes"].size(), picture.ranks.size() * (picture.lanes.size() + 1));  // and memory
    std::size_t lane = 0;
    for (std::size_t r = 0; r < picture.ranks.size(); ++r) {
      const PictureRank& rank = picture.ranks[r];
      EXPECT_EQ(variant["rows"][r]["rank"], rank.rank);
      EXPECT_EQ(variant["rows"][r]["peak"], format_bytes(rank.peak_bytes));
      std::size_t next = 0, idle = 0;
      for (std::size_t l = 0; l < picture.lanes.size(); ++l, ++lane) {
        EXPECT_EQ(variant["lanes"][lane]["row"], r);
        for (const SortedJson& entry : variant["lanes"][lane]["boxes"]) {
          ASSERT_EQ(entry.size(), 6u);
          EXPECT_LT(entry[2], variant["paints"].size());
          const int flags = entry[3];
          if ((flags & 2) != 0) {
            ASSERT_LT(idle, rank.idle.size());
            EXPECT_EQ(picture.lanes[l], Lane::compute);
            EXPECT_EQ(entry[0].get<double>(), rank.idle[idle].start);
            EXPECT_EQ(entry[1].get<double>(), rank.idle[idle].end);
            EXPECT_EQ(entry[4], std::string(name_of(rank.idle[idle].reason)));
            EXPECT_EQ(entry[5], rank.idle[idle++].waited_for);
            continue;
          }
          ASSERT_LT(next, rank.boxes.size());
          const PictureBox& box = rank.boxes[next++];
          EXPECT_EQ(box.lane, picture.lanes[l]);
          EXPECT_EQ(entry[0].get<double>(), box.start);
          EXPECT_EQ(entry[1].get<double>(), box.end);
          EXPECT_EQ(flags, (box.kind == BoxKind::reshard ? 1 : 0) + (box.critical ? 4 : 0));
          EXPECT_TRUE(entry[4].get<std::string>().starts_with(box.action));
          for (const std::string& part : {box.subject, box.bytes > 0 ? fmt::format("({} bytes)", box.bytes) : ""}) {
            EXPECT_NE(entry[4].get<std::string>().find(part), std::string::npos) << entry[4];
          }
          EXPECT_NE(entry[5].get<std::string>().find(box.waited_for), std::string::npos) << entry[5];
        }
      }
      EXPECT_EQ(next, rank.boxes.size());
      EXPECT_EQ(idle, rank.idle.size());
      EXPECT_EQ(variant["lanes"][lane++]["group"], "memory");
      const SortedJson& memory = variant["rows"][r]["memory"];
      ASSERT_EQ(memory.size(), rank.memory.size());
      for (std::size_t i = 0; i < rank.memory.size(); ++i) {
        SortedJson expected = SortedJson::array({rank.memory[i].time});
        for (const std::int64_t bytes : layers_of(rank.memory[i])) expected.push_back(bytes);
        EXPECT_EQ(memory[i], expected);
      }
    }
  }
}

// Every lane can be switched off, those of messages and of host memory together.
TEST(PictureHtml, EveryLaneHasASwitch) {
  Picture picture = hostile_picture();
  picture.lanes.assign(all_lanes.begin(), all_lanes.end());
  std::set<std::string> groups;
  const SortedJson data = SortedJson::parse(picture_data(std::vector{picture}, ""));
  for (const SortedJson& lane : data["variants"][0]["lanes"]) groups.insert(lane["group"]);
  EXPECT_EQ(groups, (std::set<std::string>{"compute", "gathers", "reductions", "transfers", "memory"}));
}

// A title that is a mark of the page is text.
TEST(PictureHtml, FillsNoPlaceInsideATitle) {
  const std::string page = to_html(std::vector{hostile_picture()}, "WEFT_DATA");
  EXPECT_EQ(between(page, "<title>", "</title>"), "WEFT_DATA");
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
