// The page of pictures in a browser: it runs without a fault, zooms, points and answers keys. Needs Chromium; where
// there is none the test says so and is skipped.
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/tools/browser.h"

namespace weft {
namespace {

// Uses the page as a reader does and leaves what it saw in the document. Synthetic events carry all that a handler
// reads.
constexpr const char* reader = R"js(
const seen = {faults: []};
addEventListener("error", event => seen.faults.push(event.message));
const tip = () => document.getElementById("tip").hidden ? null : document.getElementById("tip").textContent;
const press = (key, more = {}) => plots[0].element.dispatchEvent(new KeyboardEvent("keydown", {key, ...more}));
const point = (type, x, y, more = {}) => {
  const frame = plots[0].element.getBoundingClientRect();
  plots[0].element.dispatchEvent(new PointerEvent(type, {clientX: frame.left + x, clientY: frame.top + y, pointerId: 1, ...more}));
};
const drawn = plot => {
  const pixels = plot.base.getContext("2d").getImageData(0, 0, plot.base.width, plot.base.height).data;
  let count = 0;
  for (let i = 3; i < pixels.length; i += 4) count += pixels[i] > 0;
  return count;
};
plots[0].element.setPointerCapture = () => {};  // there is no pointer to capture
seen.first = tip();
press("Escape");
seen.closed = tip();
const lane = plots[0].lanes[0], box = lane.boxes.filter(box => !(box[FLAGS] & IDLE))[1];
point("pointermove", plots[0].x((box[START] + box[END]) / 2), lane.y + 5);
seen.hover = tip();
point("pointermove", plots[0].x((box[START] + box[END]) / 2), plots[0].lanes.find(lane => lane.group === "memory").y + 5);
seen.memory = tip();
point("pointerleave", 0, 0);
press("ArrowRight");
seen.key = tip();
press("ArrowDown");
seen.down = tip();
press("Escape");
seen.whole = drawn(plots[0]);
press("+");
seen.zoomed = [view.from, view.to];
press("ArrowRight", {shiftKey: true});
seen.panned = [view.from, view.to];
point("pointerdown", 400, 30);
point("pointermove", 400 + plots[0].width, 30);
point("pointerup", 400, 30);
seen.dragged = [view.from, view.to];
plots[0].element.dispatchEvent(new WheelEvent("wheel", {deltaY: -1, ctrlKey: true, clientX: 300, clientY: 200}));
seen.wheeled = view.to - view.from;
press("0");
seen.all = [view.from, view.to];
seen.heights = [];
for (const element of document.querySelectorAll("#controls input")) {
  element.click();
  seen.heights.push(plots[0].height);
}
seen.hidden = drawn(plots[0]);
for (const element of document.querySelectorAll("#controls input")) element.click();
seen.shown = drawn(plots[0]);
seen.rows = document.querySelectorAll("#figures tbody tr").length;
document.documentElement.dataset.seen = JSON.stringify(seen);
)js";

using PicturePage = BrowserTest;

TEST_F(PicturePage, RunsInABrowser) {
  if (browser().empty()) GTEST_SKIP() << "there is no Chromium here to look at the page with";
  const auto page = weft("program '" WEFT_SOURCE_DIR
                         "/configs/quickstart.toml' --format html --costs 'gather=0.5 reduce=0.5 transfer=0.1' "
                         "--variant=--shard.residency=reshard_after_use");
  ASSERT_EQ(page.exit_code, 0) << page.messages;
  const auto seen = visit(page.output, reader, "variant=1&rank=0&lane=1&time=0.01", 1400, 900);
  ASSERT_TRUE(seen.contains("faults"));
  EXPECT_EQ(seen["faults"], nlohmann::json::array());
  EXPECT_EQ(seen["rows"], 2);
  // The address points at the first gather, of the embedding.
  const auto has = [&](const char* key, const char* word) {
    const std::string text = seen[key].is_string() ? seen[key].get<std::string>() : "";
    EXPECT_NE(text.find(word), std::string::npos) << key << ": " << text;
  };
  has("first", "0UNSHARD(embedding)");
  has("first", "64.00 KiB (65536 bytes)");
  EXPECT_TRUE(seen["closed"].is_null());
  has("hover", "0F0(blocks.0.attention)");
  has("hover", "memory: ");
  has("memory", "activations");
  has("key", "0F0(embedding)");
  has("down", "0UNSHARD");
  EXPECT_GT(seen["whole"], 10'000);
  EXPECT_NEAR(seen["zoomed"][1].get<double>() - seen["zoomed"][0].get<double>(), 0.8, 1e-9);
  EXPECT_NEAR(seen["panned"][0].get<double>(), 0.18, 1e-9);  // 0.1 + 0.1 of 0.8
  EXPECT_NEAR(seen["dragged"][0].get<double>(), 0.0, 1e-9);
  EXPECT_NEAR(seen["wheeled"].get<double>(), 0.64, 1e-9);
  EXPECT_EQ(seen["all"], (nlohmann::json{0, 1}));
  // Each lane that is switched off makes the picture lower; the last three switches are no lanes.
  const std::vector<double> heights = seen["heights"];
  ASSERT_EQ(heights.size(), 8u);  // compute, gathers, reductions, transfers, memory; critical path, scale, side by side
  for (std::size_t i = 1; i < 5; ++i) EXPECT_LT(heights[i], heights[i - 1]) << i;
  EXPECT_LT(seen["hidden"], seen["whole"]);
  EXPECT_EQ(seen["shown"], seen["whole"]);
}

}  // namespace
}  // namespace weft
