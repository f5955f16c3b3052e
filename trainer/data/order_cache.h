// A folder of the tables of orders (number_tables.h), made once and shared by processes and later runs. A file is named
// by the checksum of its key, which tells the contents that the tables were made from. Nothing deletes a file; a user
// may delete any that no process is making.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "trainer/data/number_tables.h"

namespace weft {

class OrderCache {
 public:
  // Without a folder each call of tables() makes them in memory.
  explicit OrderCache(std::string folder = {}) : folder_(std::move(folder)) {}

  // The tables of `key`: from the file that has them, or made, written to it and read from there. Of several processes
  // one makes them and the others wait for it (flock). A file of another size or content than its header says is made
  // anew. Throws Error (request) if the folder cannot be created or its file system has no locks, and Error (failure)
  // if a file cannot be written.
  NumberTables tables(const std::string& key, const std::function<std::vector<NumberColumn>()>& make) const;

 private:
  std::string folder_;
};

}  // namespace weft
