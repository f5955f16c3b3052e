#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "parallel/runtime/quantities.h"
#include "tools/picture/picture_style.h"

namespace weft {
namespace {

// The fills of the classes of boxes: a colour, or a pattern if the kind has a texture.
struct Fills {
  std::string style, patterns;

  void add(const std::string& name, Colour colour, Texture texture, double strength = texture_strength) {
    if (texture == Texture::plain) {
      style += fmt::format(".{}{{fill:{}}}\n", name, colour.hex());
      return;
    }
    style += fmt::format(".{0}{{fill:url(#t-{0})}}\n", name);
    patterns += fmt::format(
        "<pattern id=\"t-{}\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\"><rect width=\"6\" height=\"6\" "
        "fill=\"{}\"/><path d=\"{}\" stroke=\"#000\" stroke-opacity=\"{}\" stroke-width=\"1.3\"/></pattern>\n",
        name, colour.hex(), strokes_of(texture), strength);
  }
};

bool has_memory(const Picture& picture, int bucket) {
  return std::ranges::any_of(picture.ranks, [bucket](const PictureRank& rank) {
    return std::ranges::any_of(rank.memory,
                               [bucket](const MemorySample& sample) { return sample.*bucket_style(bucket).bytes > 0; });
  });
}

bool has_idle(const Picture& picture, IdleReason reason) {
  return std::ranges::any_of(picture.ranks, [reason](const PictureRank& rank) {
    return std::ranges::find(rank.idle, reason, &PictureIdle::reason) != rank.idle.end();
  });
}

struct LegendEntry {
  std::vector<std::string> classes;  // classes of its swatches
  std::string text;
};

std::vector<LegendEntry> entries_of(const Picture& picture) {
  std::vector<LegendEntry> entries;
  const std::vector<int> chunks = picture.chunks_of_kind();
  for (std::size_t k = 0; k < chunks.size(); ++k) {
    const auto kind = static_cast<BoxKind>(k);
    if (chunks[k] == 0) continue;
    if (kind == BoxKind::reshard) {
      entries.push_back({{"dropped"}, "reshard"});
      continue;
    }
    LegendEntry entry{{}, fmt::format("{} {}", style_of(kind).letter, name_of(kind))};
    for (int chunk = 0; chunk < chunks[k]; ++chunk) entry.classes.push_back(fmt::format("box k{}c{}", k, chunk));
    if (chunks[k] > 1) entry.text += fmt::format(" (chunks 0 to {})", chunks[k] - 1);
    entries.push_back(std::move(entry));
  }
  for (const IdleReason reason : all_values<IdleReason>) {
    if (has_idle(picture, reason)) {
      entries.push_back({{fmt::format("idle{}", static_cast<int>(reason))}, std::string(name_of(reason))});
    }
  }
  entries.push_back({{"critical"}, "critical path"});
  for (int bucket = 0; bucket < curve_bucket_count; ++bucket) {
    if (!has_memory(picture, bucket)) continue;
    entries.push_back({{fmt::format("m{}", bucket)}, std::string(bucket_style(bucket).name)});
  }
  return entries;
}

}  // namespace

std::string style_and_textures(const Picture& picture) {
  const std::string rules =
      "<style>\n.box{stroke:#fff;stroke-width:.8}\n.lane{fill:#f2f2f2}\n.grid{stroke:#000;stroke-opacity:.13}\n"
      ".mark{text-anchor:middle;fill:#333;font-size:10px}\n.side{text-anchor:end;fill:#333}\n"
      ".rank{font-weight:bold}\n.small{font-size:9px}\n.in{text-anchor:middle;paint-order:stroke;stroke-width:2.4px;"
      "stroke-linejoin:round}\n.drop{stroke:#000;stroke-width:1.2}\n.dropped{fill:#000}\n"
      ".critical{fill:#000}\n.link{stroke:#000;stroke-width:1.1;stroke-opacity:.6;fill:none}\n"
      ".ground{stroke:#555;stroke-width:.8}\n";
  Fills fills;
  const std::vector<int> chunks = picture.chunks_of_kind();
  for (std::size_t k = 0; k < chunks.size(); ++k) {
    const KindStyle style = style_of(static_cast<BoxKind>(k));
    for (int chunk = 0; chunk < chunks[k]; ++chunk) {
      fills.add(fmt::format("k{}c{}", k, chunk), shade_of(style.colour, chunk, chunks[k]), style.texture);
    }
  }
  for (const IdleReason reason : all_values<IdleReason>) {
    const IdleStyle style = style_of(reason);
    fills.add(fmt::format("idle{}", static_cast<int>(reason)), style.colour, style.texture, style.strength);
  }
  for (int bucket = 0; bucket < curve_bucket_count; ++bucket) {
    const BucketStyle style = bucket_style(bucket);
    fills.add(fmt::format("m{}", bucket), style.colour, style.texture);
    fills.style += fmt::format(".m{}{{stroke:#fff;stroke-width:.7}}\n", bucket);
  }
  return rules + fills.style + "</style>\n<defs>\n" + fills.patterns + "</defs>\n";
}

std::string legend(const Picture& picture, double left, double top, double right, double& bottom) {
  constexpr double row = 17, swatch = 20;
  std::string text;
  double x = left, y = top;
  for (const LegendEntry& entry : entries_of(picture)) {
    const double width =
        swatch * static_cast<double>(entry.classes.size()) + 8 + 6.6 * static_cast<double>(entry.text.size()) + 14;
    if (x > left && x + width > right) {
      x = left;
      y += row;
    }
    for (const std::string& name : entry.classes) {
      const bool thin = name == "critical", upright = name == "dropped";
      text += fmt::format("<rect class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{}\" height=\"{}\"/>\n", name,
                          upright ? x + 9 : x, thin ? y + 5 : y, upright ? 1.2 : 18.0, thin ? 3 : 12);
      x += swatch;
    }
    text += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", x + 3, y + 10, escaped_markup(entry.text));
    x += width - swatch * static_cast<double>(entry.classes.size());
  }
  bottom = y + row + 4;
  return text;
}

std::string tooltip(const Picture& picture, const PictureBox& box) {
  const auto time = [&](double seconds) { return format_time(seconds, picture.unit_time); };
  std::string text = box.action;
  if (box.actions > 1) text += fmt::format(", {} actions", box.actions);
  if (!box.subject.empty()) text += "\n" + box.subject;
  if (box.bytes > 0) text += fmt::format("\n{} ({} bytes)", format_bytes(box.bytes), box.bytes);
  text += fmt::format("\n{} to {}: {}", time(box.start), time(box.end), time(box.end - box.start));
  if (!box.waited_for.empty()) text += fmt::format("\nwaited {} for {}", time(box.waited), box.waited_for);
  if (box.critical) text += "\non the critical path";
  return escaped_markup(text);
}

std::string tooltip(const Picture& picture, const PictureIdle& idle) {
  const auto time = [&](double seconds) { return format_time(seconds, picture.unit_time); };
  std::string text(name_of(idle.reason));
  text += fmt::format("\n{} to {}: {}", time(idle.start), time(idle.end), time(idle.end - idle.start));
  if (!idle.waited_for.empty()) text += "\n" + idle.waited_for;
  return escaped_markup(text);
}

}  // namespace weft
