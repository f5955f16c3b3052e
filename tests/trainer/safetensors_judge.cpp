#include "tests/trainer/safetensors_judge.h"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <sstream>

namespace weft {

bool python_is_here() {
  return std::system("command -v python3 > /dev/null 2>&1") == 0;
}

std::map<std::string, std::string> judge_safetensors(const std::vector<std::filesystem::path>& files) {
  std::string command = "python3 '" WEFT_SOURCE_DIR "/tests/trainer/check_safetensors.py'";
  for (const auto& file : files) command += " '" + file.string() + "'";
  std::string text;
  if (FILE* pipe = popen(command.c_str(), "r")) {
    std::array<char, 4096> buffer;
    for (std::size_t count; (count = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) {
      text.append(buffer.data(), count);
    }
    pclose(pipe);
  }
  std::map<std::string, std::string> opinions;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t colon = line.find(": ");
    if (colon != std::string::npos) opinions[line.substr(0, colon)] = line.substr(colon + 2);
  }
  return opinions;
}

}  // namespace weft
