// Compares the rows that a rank owns with the rows that its optimizer was given to step.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "parallel/shard/ownership.h"

namespace weft {

// One sentence for each run of rows that is stepped but not owned, owned but not stepped, or stepped twice. Groups,
// rules, ranks and replicas are not compared.
std::vector<std::string> row_differences(std::span<const OwnedRange> owned, std::span<const OwnedRange> stepped);

}  // namespace weft
