#include "trainer/checkpoint/publish.h"

#include <iterator>

#include "parallel/runtime/checksum.h"
#include "parallel/runtime/error.h"
#include "parallel/runtime/input_file.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/rank_writer.h"

namespace weft {

CheckpointFolder publish(const PublishRequest& request, const FileCalls& calls) {
  const std::filesystem::path folder = unfinished_path(request.directory, request.step);
  std::vector<Manifest> parts;
  for (int rank = 0; rank < request.ranks; ++rank) {
    const std::string name = (folder / part_name(rank)).string();
    parts.push_back(parse_part(read_whole_file(name), name));
  }
  Manifest manifest = join_parts(parts);
  if (!request.config_text.empty()) {
    replace_file(folder / checkpoint_config_name, request.config_text, calls);
    const std::int64_t bytes = std::ssize(request.config_text);
    manifest.files.push_back({checkpoint_config_name, bytes, bytes, checksum(request.config_text)});
  }
  replace_file(folder / manifest_name, to_json(manifest), calls);
  for (int rank = 0; rank < request.ranks; ++rank) std::filesystem::remove(folder / part_name(rank));
  const CheckpointFolder published = publish_checkpoint(request.directory, request.step);
  for (const CheckpointFolder& old :
       superseded(find_checkpoints(request.directory), request.keep_latest, request.keep_every)) {
    if (old.step < published.step) remove_checkpoint(old.path);
  }
  return published;
}

}  // namespace weft
