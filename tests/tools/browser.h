// Pages in a headless Chromium. Tests that need it are skipped with a line where there is none.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "tests/tools/program.h"

namespace weft {

class BrowserTest : public ProgramTest {
 protected:
  // The name of a browser that is installed; empty if there is none.
  static std::string browser() {
    for (const char* name : {"chromium", "chromium-browser", "google-chrome"}) {
      if (std::system(fmt::format("command -v {} > /dev/null 2>&1", name).c_str()) == 0) return name;
    }
    return "";
  }

  // Shows `page` at `hash` of its address in a frame of `width` and `height` pixels. `reader`, a script at its end,
  // leaves JSON in the document's dataset.seen. Returns that JSON; null, after a failure, if there is none. The
  // browser's messages are in `console`.
  nlohmann::json visit(std::string page, const std::string& reader, const std::string& hash, int width, int height,
                       bool dark = false) {
    const std::size_t end = page.rfind("</body>");
    page.insert(end,
                "<script>" + reader + "\nparent.postMessage(document.documentElement.dataset.seen, \"*\");</script>");
    put("read.html", page);
    // A window has 500 pixels at least; a frame in it is as narrow as a telephone.
    put("frame.html", fmt::format("<!DOCTYPE html><style>body {{ margin: 0 }} iframe {{ border: 0; width: {}px; "
                                  "height: {}px }}</style><script>addEventListener('message', event => {{ "
                                  "document.documentElement.dataset.seen = event.data; }});</script>"
                                  "<iframe src='read.html#{}'></iframe>",
                                  width, height, hash));
    const auto result = run(fmt::format(
        "{} --headless --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir='{}' --virtual-time-budget=4000 "
        "--enable-logging=stderr --blink-settings=preferredColorScheme={} --window-size={},{} --dump-dom 'file://{}'",
        browser(), (folder_ / "profile").string(), dark ? 0 : 1, std::max(width, 500), height,
        (folder_ / "frame.html").string()));
    console = result.messages;
    const std::string mark = "data-seen=\"";
    const std::size_t begin = result.output.find(mark);
    if (begin == std::string::npos) {
      ADD_FAILURE() << "the page did not run: " << result.messages << result.output.substr(0, 2000);
      return {};
    }
    std::string text = result.output.substr(begin + mark.size());
    text.resize(text.find('"'));
    for (const auto& [reference, character] :
         {std::pair("&quot;", "\""), std::pair("&lt;", "<"), std::pair("&gt;", ">"), std::pair("&amp;", "&")}) {
      for (std::size_t at = 0; (at = text.find(reference, at)) != std::string::npos; ++at) {
        text.replace(at, std::string_view(reference).size(), character);
      }
    }
    return nlohmann::json::parse(text);
  }

  std::string console;
};

}  // namespace weft
