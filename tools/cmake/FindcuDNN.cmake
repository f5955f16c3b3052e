# cuDNN::cuDNN and cuDNN_VERSION; PyPI's wheel has only libcudnn.so.9.
include(find_nvidia_library)
weft_find_nvidia_library(cuDNN cudnn.h cudnn libcudnn.so.9 cudnn_version.h CUDNN_MAJOR CUDNN_MINOR CUDNN_PATCHLEVEL)
