// The rendezvous over files that all ranks see, for machines with closed ports.
#pragma once

#include "parallel/comm/rendezvous.h"

namespace weft {

// `prefix` begins the names of the files: prefix.opened, prefix.rank3, prefix.answer. Files of earlier runs are
// recognised and overwritten.
std::unique_ptr<Rendezvous> make_file_rendezvous(const std::string& prefix, const RendezvousOptions& options);

}  // namespace weft
