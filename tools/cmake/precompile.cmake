# Precompiled headers: of what a source file preprocesses to, 98 % is the standard library, fmt, GoogleTest, JSON or CLI11.
#   weft_precompiled          for parallel and layers
#   weft_precompiled_program  for trainer and tools; weft_program_options has their flags
#   weft_precompiled_tests    for the tests; weft_test_options has their flags
# A target takes one with weft_use_precompiled. Each file still includes what it needs: -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON
# builds without.
set(weft_standard_headers <algorithm> <array> <atomic> <bit> <charconv> <chrono> <cmath> <compare> <condition_variable>
                          <cstddef> <cstdint> <cstdio> <cstdlib> <cstring> <deque> <exception> <filesystem> <fstream>
                          <functional> <iterator> <limits> <map> <memory> <mutex> <numeric> <optional> <random> <set>
                          <source_location> <span> <sstream> <string> <string_view> <thread> <tuple> <type_traits>
                          <unordered_map> <utility> <variant> <vector> <fmt/format.h> <fmt/ranges.h>)
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/precompiled.cpp CONTENT "")

# weft_precompile(name libraries... HEADERS headers...): a target that owns a precompiled header and holds no code.
function(weft_precompile name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "HEADERS")
  add_library(${name} OBJECT ${CMAKE_BINARY_DIR}/precompiled.cpp)
  target_link_libraries(${name} PRIVATE ${arg_UNPARSED_ARGUMENTS})
  target_precompile_headers(${name} PRIVATE ${arg_HEADERS})
endfunction()

function(weft_use_precompiled target name)
  target_precompile_headers(${target} REUSE_FROM ${name})
endfunction()

# weft_quiet_overread(sources...): GCC 12 sees concatenated strings read beyond their end (gcc.gnu.org/PR105651) where
# the library's code comes out of a precompiled header and is no longer a system header's.
function(weft_quiet_overread)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS -Wno-stringop-overread)
  endif()
endfunction()
