// Finds out whether a request is refused, without mistaking a failure for a refusal.
#pragma once

#include <optional>
#include <string>

#include "parallel/runtime/error.h"

namespace weft {

// Runs `action`. Returns the message if `action` refuses a request (ErrorKind::request), otherwise nothing. A failure
// (ErrorKind::failure) is a fault of the program or the machine, not an answer, and is rethrown.
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
