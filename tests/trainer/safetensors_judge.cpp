#include "tests/trainer/safetensors_judge.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <sstream>

namespace weft {

bool python_is_here() {
  return std::system("command -v python3 > /dev/null 2>&1") == 0;
}

std::map<std::string, std::string> judge_safetensors(const std::vector<std::filesystem::path>& files) {
  constexpr std::size_t at_once = 500;  // a command line holds so many
  std::map<std::string, std::string> opinions;
  for (std::size_t first = 0; first < files.size(); first += at_once) {
    std::string command = "python3 '" WEFT_SOURCE_DIR "/tests/trainer/check_safetensors.py'";
    for (std::size_t i = first; i < std::min(first + at_once, files.size()); ++i) {
      command += " '" + files[i].string() + "'";
    }
    std::string text;
    if (FILE* pipe = popen(command.c_str(), "r")) {
      std::array<char, 4096> buffer;
      for (std::size_t count; (count = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) {
        text.append(buffer.data(), count);
      }
      pclose(pipe);
    }
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      const std::size_t colon = line.find(": ");
      if (colon != std::string::npos) opinions[line.substr(0, colon)] = line.substr(colon + 2);
    }
  }
  return opinions;
}

}  // namespace weft
