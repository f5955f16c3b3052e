#include "tools/picture/picture_formats.h"

#include "parallel/runtime/error.h"

namespace weft {

bool is_picture_format(std::string_view format) {
  return format == "svg" || format == "html" || format == "trace";
}

void require_drawable(std::string_view format, std::size_t boxes) {
  if (format == "svg" && boxes > svg_box_limit) {
    fail_request(
        "the picture has {} boxes, more than the {} that an SVG may hold: merge them with --stages-only or "
        "--compute-only, show one rank with --rank, draw fewer microbatches, or take --format html",
        boxes, svg_box_limit);
  }
  if (format == "html" && boxes > html_box_limit) {
    fail_request(
        "the page has {} boxes, more than the {} that it may hold: merge them with --stages-only or --compute-only, "
        "show one rank with --rank, or draw fewer microbatches or variants",
        boxes, html_box_limit);
  }
}

std::string render_pictures(const std::string& command, std::span<const Picture> pictures, std::string_view format) {
  if (format == "html") return to_html(pictures, pictures.size() == 1 ? pictures.front().title : "Variants of a step");
  if (pictures.size() != 1) {
    fail_request("{}: error: --format {} holds one picture; several variants go with --format html", command, format);
  }
  return format == "svg" ? to_svg(pictures.front()) : to_json(chrome_trace_of(pictures.front()));
}

}  // namespace weft
