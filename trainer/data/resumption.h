// The place from which a call that was stopped is gone on with, "prefix.resume.json".
#pragma once

#include <cstdint>
#include <string>

#include "trainer/data/indexed_writer.h"

namespace weft {

// Texts (RawText) that were read, those of them that were skipped, and what was written of the others.
struct Resumption {
  std::int64_t texts = 0, skipped = 0, text_bytes = 0;
  IndexedCounts written;
};

std::string resumption_name(const std::string& prefix);
// The place that an earlier call left for the same work; the beginning if there is none.
Resumption find_resumption(const std::string& prefix, const std::string& work);
void keep_resumption(const std::string& prefix, const std::string& work, const Resumption& place);
// Removes the place that any call left. What this call writes in its files is no beginning of that one's.
void forget_resumption(const std::string& prefix, const std::string& work);

}  // namespace weft
