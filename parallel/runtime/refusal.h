// Asking whether a request is refused, without taking a failure for a refusal.
#pragma once

#include <optional>
#include <string>

#include "parallel/runtime/error.h"

namespace weft {

// Runs `action` and returns the message of the request that it refuses, nothing where it refuses none. A failure
// (ErrorKind::failure) is a fault of the program or the machine, not an answer: it is thrown on.
template <typename Action>
std::optional<std::string> refusal_of(Action&& action) {
  try {
    action();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::request) throw;
    return error.what();
  }
  return std::nullopt;
}

}  // namespace weft
