// Pictures as files, for --format svg|html|trace, and as characters. A file needs no other: no fonts, no scripts, no
// network.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "parallel/runtime/chrome_trace.h"
#include "tools/picture/picture.h"

namespace weft {

// Most boxes of one SVG: viewers draw every one of them, and a box is about 250 bytes of text.
inline constexpr std::size_t svg_box_limit = 20'000;
// Most boxes of one page, over all its variants: about 80 bytes of text each. Only visible boxes are drawn.
inline constexpr std::size_t html_box_limit = 200'000;

bool is_picture_format(std::string_view format);

// Throws Error (request) if so many boxes, over all pictures, exceed the limit of the format; the message says how to
// have fewer.
void require_drawable(std::string_view format, std::size_t boxes);

// Only HTML holds more than one picture. `command` begins messages. Throws Error (request) for pictures that are too
// large.
std::string render_pictures(const std::string& command, std::span<const Picture> pictures, std::string_view format);

// One SVG document: a row of lanes and a memory curve for each rank, bubbles hatched, the critical path outlined and
// linked, tooltips as <title>. Throws Error (request) like require_drawable.
std::string to_svg(const Picture& picture);

// One HTML page: variants one above the other or side by side, with a table of their figures. It has zoom, pan, lanes
// that can be switched off, and details under the pointer. The page (page/) draws what picture_data tells. Throws Error
// (request) like require_drawable.
std::string to_html(std::span<const Picture> variants, std::string_view title);

// The JSON in the page, in which no character can end a script: {"title", "buckets": [name], "variants": [drawing]}.
// A drawing has the names of picture_drawing.h, but for arrays:
//   boxes   [start, end, paint, flags: 1 mark + 2 idle + 4 critical, what, why]
//   labels  [start, end, paint, text]
//   links   [from lane, seconds, to lane, seconds]
//   memory  [time, bytes of each bucket]
std::string picture_data(std::span<const Picture> variants, std::string_view title);

// JSON as the text of a script of a page. No character ends the script, and bytes that are not UTF-8 are shown as the
// replacement character instead of an error.
std::string text_in_script(const nlohmann::ordered_json& json);

// A page with contents in the places of marks; the marks from the last to the first.
std::string filled_page(std::string page, const std::vector<std::pair<std::string_view, std::string>>& parts);

// The page, with the marks WEFT_TITLE and WEFT_DATA for title and data.
std::string_view picture_page();

// For the viewers of Chrome's trace format: one process per rank, one thread per lane. Numbers and names are those of a
// run's trace (trainer/rank/step_trace.h), so that both can be compared. Memory is a counter per bucket. One unit of
// time becomes a second if the picture is in unit times.
ChromeTrace chrome_trace_of(const Picture& picture);

// A simulated step in characters, to scale: each rank's computations over time. For small steps.
//
// One line per rank: (microbatch) a forward, [microbatch] a backward or input gradient, <microbatch> a weight gradient,
// each as wide as its time. Blanks are idle time or collectives. Empty if a cell is too narrow for its number, without
// building a picture if there are more computations than columns.
std::string time_grid(const Program& program, const SimulatedStep& step, const PictureOptions& options);

}  // namespace weft
