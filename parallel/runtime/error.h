// The only error type. A message states the request, the finding and the necessary change.
#pragma once

#include <fmt/format.h>

#include <exception>
#include <new>
#include <optional>
#include <source_location>
#include <stdexcept>
#include <string>
#include <utility>

namespace weft {

// Decides the exit code of the program: 2 after a wrong request, 3 after a failed run. `unreadable` is a request too:
// it names a file that this process may not open, or that another version of Weft wrote. That file may be sound.
enum class ErrorKind { request, unreadable, failure };

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

template <typename... Args>
[[noreturn]] void fail_request(fmt::format_string<Args...> text, Args&&... args) {
  throw Error(ErrorKind::request, fmt::format(text, std::forward<Args>(args)...));
}

template <typename... Args>
[[noreturn]] void fail(fmt::format_string<Args...> text, Args&&... args) {
  throw Error(ErrorKind::failure, fmt::format(text, std::forward<Args>(args)...));
}

// what() of any error, in words where the standard library has none.
inline std::string error_text(const std::exception& error) {
  const bool out_of_memory = dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
  return out_of_memory ? "out of memory: this needs more than the process is given (free, ulimit -v)" : error.what();
}

// States an assumption of the code. A violation is a fault of Weft itself; the message names the source location.
inline void require(bool condition, const char* statement,
                    std::source_location place = std::source_location::current()) {
  if (!condition) fail("{}:{}: required: {}", place.file_name(), place.line(), statement);
}

// Runs `action`. Returns the message if `action` refuses a request, otherwise nothing. A failure
// (ErrorKind::failure) is a fault of the program or the machine, not an answer, and is rethrown.
template <typename Action>
std::optional<std::string> refusal_of(Action&& action) {
  try {
    action();
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::failure) throw;
    return error.what();
  }
  return std::nullopt;
}

}  // namespace weft
