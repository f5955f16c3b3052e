#include "tools/picture/picture_formats.h"

#include <nlohmann/json.hpp>

#include "parallel/runtime/error.h"
#include "tools/picture/picture_drawing.h"

namespace weft {

using Json = nlohmann::ordered_json;

// Found by the library, which lists vectors by them.
static void to_json(Json& json, const PictureFigure& figure) {
  json = {{"name", figure.name}, {"value", figure.value}, {"text", figure.text}};
}
static void to_json(Json& json, const Paint& paint) {
  json = {{"colour", paint.colour.hex()},
          {"strokes", strokes_of(paint.texture)},
          {"strength", paint.strength},
          {"text", text_colour_on(paint.colour).hex()}};
}
static void to_json(Json& json, const LegendEntry& entry) {
  json = {{"paints", entry.paints}, {"text", entry.text}, {"width", entry.width}, {"height", entry.height}};
}
static void to_json(Json& json, const MemorySample& sample) {
  json = Json::array({sample.time});
  for (int bucket = 0; bucket < curve_bucket_count; ++bucket) json.push_back(bucket_style(bucket).bytes(sample));
}
static void to_json(Json& json, const DrawnRow& row) {
  json = {{"rank", row.rank}, {"name", row.name}, {"peak", row.peak}, {"memory", row.memory}};
}
static void to_json(Json& json, const DrawnBox& box) {
  const int flags = (box.mark ? 1 : 0) + (box.idle ? 2 : 0) + (box.critical ? 4 : 0);
  json = Json::array({box.start, box.end, box.paint, flags, box.what, box.why});
}
static void to_json(Json& json, const DrawnLabel& label) {
  json = Json::array({label.start, label.end, label.paint, label.text});
}
static void to_json(Json& json, const DrawnLane& lane) {
  json = {{"name", lane.name}, {"group", lane.group}, {"row", lane.row},      {"height", lane.height},
          {"gap", lane.gap},   {"boxes", lane.boxes}, {"labels", lane.labels}};
}
static void to_json(Json& json, const DrawnLink& link) {
  json = Json::array({link.from_lane, link.from, link.to_lane, link.to});
}
static void to_json(Json& json, const Drawing& drawing) {
  json = {{"title", drawing.title},
          {"unit_time", drawing.unit_time},
          {"seconds", drawing.seconds},
          {"highest_bytes", drawing.highest_bytes},
          {"first_bucket", drawing.first_bucket},
          {"figures", drawing.figures},
          {"paints", drawing.paints},
          {"legend", drawing.legend},
          {"rows", drawing.rows},
          {"lanes", drawing.lanes},
          {"links", drawing.links}};
}

std::string picture_data(std::span<const Picture> variants, std::string_view title) {
  Json drawings = Json::array(), buckets = Json::array();
  for (const Picture& picture : variants) drawings.push_back(drawing_of(picture));
  for (int bucket = 0; bucket < curve_bucket_count; ++bucket) buckets.push_back(bucket_style(bucket).name);
  return text_in_script({{"title", title}, {"buckets", std::move(buckets)}, {"variants", std::move(drawings)}});
}

std::string text_in_script(const nlohmann::ordered_json& json) {
  const std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  // These characters occur only inside texts of the JSON.
  std::string safe;
  safe.reserve(text.size());
  for (const char c : text) {
    if (c == '<' || c == '>' || c == '&') {
      safe += fmt::format("\\u{:04x}", static_cast<int>(c));
    } else {
      safe += c;
    }
  }
  return safe;
}

std::string to_html(std::span<const Picture> variants, std::string_view title) {
  std::size_t boxes = 0;
  for (const Picture& picture : variants) boxes += picture.box_count();
  require_drawable("html", boxes);
  return filled_page(std::string(picture_page()),
                     {{"WEFT_DATA", picture_data(variants, title)}, {"WEFT_TITLE", escaped_markup(title)}});
}

std::string filled_page(std::string page, const std::vector<std::pair<std::string_view, std::string>>& parts) {
  // From the back to the front: a mark inside a content is then text, not a place to fill.
  std::size_t end = page.size();
  for (const auto& [mark, content] : parts) {
    const std::size_t place = page.rfind(mark, end);
    require(place != std::string::npos && place < end, "the page names every place that is filled, in this order");
    page.replace(place, mark.size(), content);
    end = place;
  }
  return page;
}

}  // namespace weft
