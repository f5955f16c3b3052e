#include "tools/run_page/run_page.h"

#include <utility>
#include <vector>

#include "parallel/runtime/error.h"
#include "tools/picture/picture_formats.h"
#include "tools/picture/picture_style.h"

namespace weft {

std::string_view page_beginning() {
  return "<!DOCTYPE html>\n<html lang=\"en\" data-made-by=\"weft report\">\n";
}

std::string run_page(std::span<const ReportedRun> runs, std::string_view version, std::string_view prompt) {
  std::string page(run_page_template());
  require(!page.empty(), "a build without dygraphs makes no page");
  std::vector<Picture> steps;
  for (const ReportedRun& run : runs) {
    if (!run.lanes) continue;
    steps.push_back(paired(*run.lanes));
    steps.back().title = run.name;
  }
  const nlohmann::ordered_json data = report_data(runs, version, prompt);
  const std::string title = data["title"].get<std::string>();
  return filled_page(std::move(page), {{"WEFT_REPORT", text_in_script(data)},
                                       {"WEFT_DATA", picture_data(steps, title)},
                                       {"WEFT_TITLE", escaped_markup(title)}});
}

}  // namespace weft
