# For the find modules of libraries that NVIDIA ships apart from the toolkit.
include(FindPackageHandleStandardArgs)

# weft_find_nvidia_library(NAME header library file version_header macros...): the target NAME::NAME and NAME_VERSION,
# which `version_header`, beside `header`, defines as the three macros. Looks in NAME_ROOT, the folders of
# WEFT_CUDA_HINTS and the system, in the layout of a toolkit (include, lib) and in that of PyPI's wheels
# (library/include, library/lib, where `file` may be all there is of the library). A macro, because what find_package
# found is told to whoever called it.
macro(weft_find_nvidia_library NAME header library file version_header)
  find_path(${NAME}_INCLUDE_DIR ${header} HINTS ${WEFT_CUDA_HINTS} PATH_SUFFIXES include ${library}/include)
  find_library(${NAME}_LIBRARY NAMES ${library} ${file} NAMES_PER_DIR HINTS ${WEFT_CUDA_HINTS}
               PATH_SUFFIXES lib64 lib ${library}/lib)
  if(${NAME}_INCLUDE_DIR AND EXISTS ${${NAME}_INCLUDE_DIR}/${version_header})
    set(${NAME}_VERSION "")
    foreach(weft_part ${ARGN})
      file(STRINGS ${${NAME}_INCLUDE_DIR}/${version_header} weft_line REGEX "^#define ${weft_part} +[0-9]+")
      string(REGEX REPLACE ".* ([0-9]+).*" "\\1" weft_line "${weft_line}")
      list(APPEND ${NAME}_VERSION ${weft_line})
    endforeach()
    list(JOIN ${NAME}_VERSION . ${NAME}_VERSION)
  endif()
  find_package_handle_standard_args(${NAME} REQUIRED_VARS ${NAME}_LIBRARY ${NAME}_INCLUDE_DIR
                                    VERSION_VAR ${NAME}_VERSION)
  if(${NAME}_FOUND AND NOT TARGET ${NAME}::${NAME})
    add_library(${NAME}::${NAME} UNKNOWN IMPORTED)
    set_target_properties(${NAME}::${NAME} PROPERTIES IMPORTED_LOCATION ${${NAME}_LIBRARY}
                                                      INTERFACE_INCLUDE_DIRECTORIES ${${NAME}_INCLUDE_DIR})
  endif()
  mark_as_advanced(${NAME}_INCLUDE_DIR ${NAME}_LIBRARY)
endmacro()
