#pragma once

// Paths of this build; fp8lab_test_paths() in a test's CMakeLists.txt gives those that the test uses. They are
// variables of a generated file, not macros, so that a compiler cache serves clones and work trees in other folders
// too.
namespace fp8lab::paths {

// Programs.
extern const char* const kProgram;         ///< fp8lab
extern const char* const kFakeProgram;     ///< the program with arms that fail on demand, or another in its place
extern const char* const kRankProgram;     ///< that program if kFakeProgram is the launcher that starts it
extern const char* const kUnfixedProgram;  ///< the program without any fix
extern const char* const kVictim;          ///< ranks of which one ends early
// Commands that start ranks.
extern const char* const kLauncher;
extern const char* const kTorchrun;
extern const char* const kMpirun;
// Files and folders.
extern const char* const kScenarios;
extern const char* const kSubjectScenarios;
extern const char* const kBundledResults;
extern const char* const kWorkerFolder;
extern const char* const kFakeWorker;
extern const char* const kEngineNames;
extern const char* const kGatheredWeights;
extern const char* const kProfiles;
extern const char* const kWatched;
extern const char* const kMeasured;
extern const char* const kSampleLibraries;
extern const char* const kOldNccl;

}  // namespace fp8lab::paths
