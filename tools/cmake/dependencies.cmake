# What Weft takes from elsewhere, CUDA excepted (cuda.cmake): from the system's packages, or from a folder that
# tools/vendor-deps.sh filled on a machine that has them. Both give the same targets.
set(WEFT_DEPS "" CACHE PATH "Folder filled by tools/vendor-deps.sh; when empty, the system's packages")
set(weft_deps "${WEFT_DEPS}")

add_library(weft_dnnl INTERFACE)
# Regular expressions and normal forms of tokenizers, packed texts: PCRE2, utf8proc, zlib, zstd.
add_library(weft_text INTERFACE)
if(weft_deps)
  message(STATUS "Dependencies: ${weft_deps}")
  # All headers share one folder, so that whoever links any of these finds Random123 and xxhash too.
  foreach(name fmt::fmt nlohmann_json::nlohmann_json CLI11::CLI11 tomlplusplus::tomlplusplus)
    add_library(${name} INTERFACE IMPORTED)
    target_include_directories(${name} INTERFACE ${weft_deps}/include)
  endforeach()
  target_compile_definitions(fmt::fmt INTERFACE FMT_HEADER_ONLY)
  target_include_directories(weft_dnnl SYSTEM INTERFACE ${weft_deps}/include)
  # Debian's oneDNN needs libOpenCL.so.1 beside it. A RUNPATH serves only what names the library itself; a RPATH, which
  # the old tags write, also what oneDNN asks for in turn.
  target_link_libraries(weft_dnnl INTERFACE ${weft_deps}/lib/libdnnl.so.2)
  target_link_options(weft_dnnl INTERFACE -Wl,--disable-new-dtags)
  target_include_directories(weft_text SYSTEM INTERFACE ${weft_deps}/include)
  target_link_libraries(weft_text INTERFACE ${weft_deps}/lib/libpcre2-8.a ${weft_deps}/lib/libutf8proc.a
                        ${weft_deps}/lib/libz.a ${weft_deps}/lib/libzstd.a)
else()
  find_package(fmt REQUIRED)
  find_package(nlohmann_json REQUIRED)
  find_package(CLI11 REQUIRED)
  find_package(tomlplusplus REQUIRED)
  # Debian's package configuration of oneDNN demands the OpenCL headers, which a CPU build has no use for.
  find_path(WEFT_DNNL_INCLUDE oneapi/dnnl/dnnl.hpp REQUIRED)
  find_library(WEFT_DNNL_LIBRARY dnnl REQUIRED)
  target_include_directories(weft_dnnl SYSTEM INTERFACE ${WEFT_DNNL_INCLUDE})
  target_link_libraries(weft_dnnl INTERFACE ${WEFT_DNNL_LIBRARY})
  foreach(part IN ITEMS PCRE2=pcre2.h=pcre2-8 UTF8PROC=utf8proc.h=utf8proc ZLIB=zlib.h=z ZSTD=zstd.h=zstd)
    string(REPLACE "=" ";" part ${part})
    list(GET part 0 name)
    list(GET part 1 header)
    list(GET part 2 library)
    find_path(WEFT_${name}_INCLUDE ${header} REQUIRED)
    find_library(WEFT_${name}_LIBRARY ${library} REQUIRED)
    target_include_directories(weft_text SYSTEM INTERFACE ${WEFT_${name}_INCLUDE})
    target_link_libraries(weft_text INTERFACE ${WEFT_${name}_LIBRARY})
  endforeach()
endif()

# Optional libraries of texts. A vendored build has none.
function(weft_optional_text name header library)
  find_path(WEFT_${name}_INCLUDE ${header})
  find_library(WEFT_${name}_LIBRARY ${library})
  if(NOT weft_deps AND WEFT_${name}_INCLUDE AND WEFT_${name}_LIBRARY)
    target_include_directories(weft_text SYSTEM INTERFACE ${WEFT_${name}_INCLUDE})
    target_link_libraries(weft_text INTERFACE ${WEFT_${name}_LIBRARY})
    target_compile_definitions(weft_text INTERFACE WEFT_HAVE_${name})
  endif()
endfunction()
# Models of SentencePiece. A build without it refuses them by name.
weft_optional_text(SENTENCEPIECE sentencepiece_processor.h sentencepiece)
# JSON lines at some GB/s a core. A build without it reads them by nlohmann's library, several times slower.
weft_optional_text(SIMDJSON simdjson.h simdjson)
# Dygraphs draws the curves of weft report, and is in the page: libjs-dygraphs. Optional: without it that command is refused.
find_file(WEFT_DYGRAPHS_SCRIPT dygraph.min.js HINTS ${weft_deps}/share/dygraphs PATHS /usr/share/javascript/dygraphs NO_DEFAULT_PATH)
find_file(WEFT_DYGRAPHS_STYLE dygraph.min.css HINTS ${weft_deps}/share/dygraphs PATHS /usr/share/javascript/dygraphs NO_DEFAULT_PATH)
mark_as_advanced(WEFT_DYGRAPHS_SCRIPT WEFT_DYGRAPHS_STYLE)
if(NOT WEFT_DYGRAPHS_SCRIPT OR NOT WEFT_DYGRAPHS_STYLE)
  message(NOTICE "weft report: left out, because dygraphs is missing (package libjs-dygraphs)")
endif()

find_package(Threads REQUIRED)
# oneDNN runs one thread per rank; OpenMP is needed only to tell it so (omp_set_num_threads).
find_package(OpenMP REQUIRED COMPONENTS CXX)
# NVTX is header-only and optional: without it ranges cost nothing and record nothing.
find_path(WEFT_NVTX_INCLUDE nvtx3/nvToolsExt.h HINTS ${WEFT_CUDA_INCLUDES} PATHS /usr/local/cuda/include)

# GTest::gtest and GTest::gtest_main; a macro, since packages define their targets for the folder that asks.
macro(weft_find_gtest)
  if(weft_deps)
    find_path(WEFT_GTEST_SOURCE src/gtest-all.cc PATHS ${weft_deps}/src/googletest NO_DEFAULT_PATH REQUIRED)
    foreach(name gtest gtest_main)
      add_library(weft_${name} STATIC EXCLUDE_FROM_ALL)
      target_include_directories(weft_${name} SYSTEM PUBLIC ${WEFT_GTEST_SOURCE}/include PRIVATE ${WEFT_GTEST_SOURCE})
      add_library(GTest::${name} ALIAS weft_${name})
    endforeach()
    target_sources(weft_gtest PRIVATE ${WEFT_GTEST_SOURCE}/src/gtest-all.cc)
    target_link_libraries(weft_gtest PUBLIC Threads::Threads)
    target_sources(weft_gtest_main PRIVATE ${WEFT_GTEST_SOURCE}/src/gtest_main.cc)
    target_link_libraries(weft_gtest_main PUBLIC weft_gtest)
  else()
    find_package(GTest REQUIRED)
  endif()
endmacro()
