# NCCL::NCCL and NCCL_VERSION; PyPI's wheel has only libnccl.so.2.
include(find_nvidia_library)
weft_find_nvidia_library(NCCL nccl.h nccl libnccl.so.2 nccl.h NCCL_MAJOR NCCL_MINOR NCCL_PATCH)
