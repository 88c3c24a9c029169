// An NCCL of another age, for gpu_libraries_test.cpp: it tells its version and nothing else.
extern "C" int ncclGetVersion(int* version) {
  *version = FP8LAB_OLD_NCCL;
  return 0;
}
