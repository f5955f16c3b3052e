// check_safetensors.py, which knows the format from Python's standard library alone: the other opinion.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace weft {

bool python_is_here();
// What it says of each file, "OK (...)" or what is wrong, by the name of the file.
std::map<std::string, std::string> judge_safetensors(const std::vector<std::filesystem::path>& files);

}  // namespace weft
