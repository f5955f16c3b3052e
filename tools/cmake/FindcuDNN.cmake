# cuDNN::cuDNN and cuDNN_VERSION. Looks in cuDNN_ROOT, the folders of WEFT_CUDA_HINTS and the system, in the layout of a
# toolkit (include, lib) and in that of PyPI's wheels (cudnn/include, cudnn/lib, where only libcudnn.so.9 exists).
find_path(cuDNN_INCLUDE_DIR cudnn.h HINTS ${WEFT_CUDA_HINTS} PATH_SUFFIXES include cudnn/include)
find_library(cuDNN_LIBRARY NAMES cudnn libcudnn.so.9 NAMES_PER_DIR HINTS ${WEFT_CUDA_HINTS}
             PATH_SUFFIXES lib64 lib cudnn/lib)
if(cuDNN_INCLUDE_DIR AND EXISTS ${cuDNN_INCLUDE_DIR}/cudnn_version.h)
  set(cuDNN_VERSION "")
  foreach(part MAJOR MINOR PATCHLEVEL)
    file(STRINGS ${cuDNN_INCLUDE_DIR}/cudnn_version.h line REGEX "^#define CUDNN_${part} +[0-9]+")
    string(REGEX REPLACE ".* ([0-9]+).*" "\\1" number "${line}")
    list(APPEND cuDNN_VERSION ${number})
  endforeach()
  list(JOIN cuDNN_VERSION . cuDNN_VERSION)
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(cuDNN REQUIRED_VARS cuDNN_LIBRARY cuDNN_INCLUDE_DIR VERSION_VAR cuDNN_VERSION)
if(cuDNN_FOUND AND NOT TARGET cuDNN::cuDNN)
  add_library(cuDNN::cuDNN UNKNOWN IMPORTED)
  set_target_properties(cuDNN::cuDNN PROPERTIES IMPORTED_LOCATION ${cuDNN_LIBRARY}
                                                INTERFACE_INCLUDE_DIRECTORIES ${cuDNN_INCLUDE_DIR})
endif()
mark_as_advanced(cuDNN_INCLUDE_DIR cuDNN_LIBRARY)
