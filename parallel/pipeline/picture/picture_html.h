// Pictures as one self-contained HTML page: variants one above the other or side by side, with a table of their
// figures; zoom, pan, lanes that can be switched off, details under the pointer. The page (picture_page/) reads its
// pictures from JSON inside it and takes all styles from there.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "parallel/pipeline/picture/picture.h"

namespace weft {

// Most boxes of one page, over all its variants: about 80 bytes of text each. Only visible boxes are drawn.
inline constexpr std::size_t html_box_limit = 200'000;

// Throws Error (request) if `boxes`, of all variants, exceeds html_box_limit; the message says how to have fewer.
void require_html_boxes(std::size_t boxes);

// Throws Error (request) like require_html_boxes.
std::string to_html(std::span<const Picture> variants, std::string_view title);

// The JSON in the page, in which no character can end a script:
//   {"title", "strength", "strings": [text], "lanes": [label], "textures": {name: path},
//    "kinds": [{name, letter, texture}], "buckets": [{name, colour, texture}],
//    "idle": [{name, colour, texture, strength}],
//    "variants": [{title, unit_time, seconds, bubble, exposed_gathers, exposed_reductions, peak_bytes, lanes,
//                  shades: by kind [{fill, text}], hops: [[from row, box, to row, box]],
//                  ranks: [{rank, peak_bytes, boxes, idle, memory}]}]}
//   box     [lane, kind, start, end, chunk, stage, microbatch, action, subject, bytes, actions, waited, waited_for,
//            critical]
//   idle    [start, end, reason, waited_for]
//   memory  [time, bytes of each bucket]
// Texts are indices of "strings". Absent values are null. Lanes, kinds and reasons are numbers in the order of their
// enums.
std::string picture_data(std::span<const Picture> variants, std::string_view title);

// The page, with the marks WEFT_TITLE and WEFT_DATA for title and data.
std::string_view picture_page();

}  // namespace weft
