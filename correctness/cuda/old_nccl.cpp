// An old version of NCCL for nccl_library_test.cpp: it reports its version and has no other function.
extern "C" int ncclGetVersion(int* version) {
  *version = FP8LAB_OLD_NCCL;
  return 0;
}
