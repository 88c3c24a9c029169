// A library of one function, built several times over for shared_library_test.cpp.
extern "C" int fp8lab_sample_answer() { return FP8LAB_SAMPLE_ANSWER; }
