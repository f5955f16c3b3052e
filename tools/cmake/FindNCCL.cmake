# NCCL::NCCL and NCCL_VERSION. Looks in NCCL_ROOT, the folders of WEFT_CUDA_HINTS and the system, in the layout of a
# toolkit (include, lib) and in that of PyPI's wheels (nccl/include, nccl/lib, where only libnccl.so.2 exists).
find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${WEFT_CUDA_HINTS} PATH_SUFFIXES include nccl/include)
find_library(NCCL_LIBRARY NAMES nccl libnccl.so.2 NAMES_PER_DIR HINTS ${WEFT_CUDA_HINTS}
             PATH_SUFFIXES lib64 lib nccl/lib)
if(NCCL_INCLUDE_DIR)
  set(NCCL_VERSION "")
  foreach(part MAJOR MINOR PATCH)
    file(STRINGS ${NCCL_INCLUDE_DIR}/nccl.h line REGEX "^#define NCCL_${part} +[0-9]+")
    string(REGEX REPLACE ".* ([0-9]+).*" "\\1" number "${line}")
    list(APPEND NCCL_VERSION ${number})
  endforeach()
  list(JOIN NCCL_VERSION . NCCL_VERSION)
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(NCCL REQUIRED_VARS NCCL_LIBRARY NCCL_INCLUDE_DIR VERSION_VAR NCCL_VERSION)
if(NCCL_FOUND AND NOT TARGET NCCL::NCCL)
  add_library(NCCL::NCCL UNKNOWN IMPORTED)
  set_target_properties(NCCL::NCCL PROPERTIES IMPORTED_LOCATION ${NCCL_LIBRARY}
                                              INTERFACE_INCLUDE_DIRECTORIES ${NCCL_INCLUDE_DIR})
endif()
mark_as_advanced(NCCL_INCLUDE_DIR NCCL_LIBRARY)
