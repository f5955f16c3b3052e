// A device without memory and without work: for finding out what a step would take by walking through it. Live blocks
// share no address, and no address is usable: reading or writing one ends the program. Kernels and copies do nothing.
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "parallel/runtime/device.h"

namespace weft {

// What the host finds where it has asked for a download: `destination` is staging memory.
using DryDownload = std::function<void(std::span<std::byte> destination)>;

// Blocks that are released serve again.
std::unique_ptr<Device> make_dry_device(DryDownload download);

}  // namespace weft
