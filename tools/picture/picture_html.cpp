#include "tools/picture/picture_formats.h"

#include <map>
#include <nlohmann/json.hpp>

#include "parallel/runtime/error.h"
#include "tools/picture/picture_style.h"

namespace weft {
namespace {

using Json = nlohmann::ordered_json;

// Texts by number, because boxes share many of them.
class Strings {
 public:
  Json operator()(const std::string& text) {
    if (text.empty()) return nullptr;
    const auto [found, added] = numbers_.emplace(text, numbers_.size());
    if (added) texts.push_back(text);
    return found->second;
  }
  Json texts = Json::array();

 private:
  std::map<std::string, std::size_t> numbers_;
};

template <typename T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json rank_json(const PictureRank& rank, Strings& strings) {
  Json boxes = Json::array(), idle = Json::array(), memory = Json::array();
  for (const PictureBox& box : rank.boxes) {
    boxes.push_back(Json::array({static_cast<int>(box.lane), static_cast<int>(box.kind), box.start, box.end, box.chunk,
                                 or_null(box.stage), or_null(box.microbatch), strings(box.action), strings(box.subject),
                                 box.bytes, box.actions, box.waited, strings(box.waited_for), box.critical ? 1 : 0}));
  }
  for (const PictureIdle& stretch : rank.idle) {
    idle.push_back(
        Json::array({stretch.start, stretch.end, static_cast<int>(stretch.reason), strings(stretch.waited_for)}));
  }
  for (const MemorySample& sample : rank.memory) {
    Json entry = Json::array({sample.time});
    for (int bucket = 0; bucket < curve_bucket_count; ++bucket) entry.push_back(sample.*bucket_style(bucket).bytes);
    memory.push_back(std::move(entry));
  }
  return {{"rank", rank.rank},         {"name", rank.name},       {"peak_bytes", rank.peak_bytes},
          {"boxes", std::move(boxes)}, {"idle", std::move(idle)}, {"memory", std::move(memory)}};
}

Json variant_json(const Picture& picture, Strings& strings) {
  Json lanes = Json::array(), shades = Json::array(), hops = Json::array(), ranks = Json::array();
  for (Lane lane : picture.lanes) lanes.push_back(static_cast<int>(lane));
  const std::vector<int> chunks = picture.chunks_of_kind();
  for (std::size_t kind = 0; kind < chunks.size(); ++kind) {
    Json of_kind = Json::array();
    for (int chunk = 0; chunk < chunks[kind]; ++chunk) {
      const Colour colour = shade_of(style_of(static_cast<BoxKind>(kind)).colour, chunk, chunks[kind]);
      of_kind.push_back({{"fill", colour.hex()}, {"text", text_colour_on(colour).hex()}});
    }
    shades.push_back(std::move(of_kind));
  }
  for (const PictureHop& hop : picture.hops) {
    hops.push_back(Json::array({hop.from_rank, hop.from_box, hop.to_rank, hop.to_box}));
  }
  for (const PictureRank& rank : picture.ranks) ranks.push_back(rank_json(rank, strings));
  return {{"title", picture.title},
          {"unit_time", picture.unit_time},
          {"paired", picture.paired},
          {"seconds", picture.seconds},
          {"bubble", picture.bubble()},
          {"exposed_gathers", picture.exposed_gathers()},
          {"exposed_reductions", picture.exposed_reductions()},
          {"peak_bytes", picture.peak_bytes()},
          {"highest_bytes", picture.highest_bytes()},
          {"lanes", std::move(lanes)},
          {"shades", std::move(shades)},
          {"hops", std::move(hops)},
          {"ranks", std::move(ranks)}};
}

Json styles_json() {
  Json lanes = Json::array(), textures = Json::object(), kinds = Json::array(), buckets = Json::array(),
       idle = Json::array();
  for (Lane lane : all_lanes) lanes.push_back(lane_label(lane));
  for (const Texture texture : all_values<Texture>) textures[std::string(name_of(texture))] = strokes_of(texture);
  for (const BoxKind kind : all_values<BoxKind>) {
    const KindStyle style = style_of(kind);
    kinds.push_back({{"name", name_of(kind)}, {"letter", style.letter}, {"texture", name_of(style.texture)}});
  }
  for (int bucket = 0; bucket < curve_bucket_count; ++bucket) {
    const BucketStyle style = bucket_style(bucket);
    buckets.push_back({{"name", style.name}, {"colour", style.colour.hex()}, {"texture", name_of(style.texture)}});
  }
  for (const IdleReason reason : all_values<IdleReason>) {
    const IdleStyle style = style_of(reason);
    idle.push_back({{"name", name_of(reason)},
                    {"colour", style.colour.hex()},
                    {"texture", name_of(style.texture)},
                    {"strength", style.strength}});
  }
  return {{"strength", texture_strength}, {"lanes", std::move(lanes)},     {"textures", std::move(textures)},
          {"kinds", std::move(kinds)},    {"buckets", std::move(buckets)}, {"idle", std::move(idle)}};
}

// Replaces the only occurrence of `mark` in `text`.
void put(std::string& text, std::string_view mark, std::string_view content) {
  const std::size_t place = text.find(mark);
  require(place != std::string::npos, "the page names every place that is filled");
  text.replace(place, mark.size(), content);
}

}  // namespace

std::string picture_data(std::span<const Picture> variants, std::string_view title) {
  Json data = {{"title", title}};
  data.update(styles_json());
  Strings strings;
  Json list = Json::array();
  for (const Picture& picture : variants) list.push_back(variant_json(picture, strings));
  data["variants"] = std::move(list);
  data["strings"] = std::move(strings.texts);
  return text_in_script(data);
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
  std::string page(picture_page());
  put(page, "WEFT_TITLE", escaped_markup(title));
  put(page, "WEFT_DATA", picture_data(variants, title));
  return page;
}

}  // namespace weft
