#pragma once

// What `fp8lab COMMAND --help` prints below the options.
namespace fp8lab {

inline constexpr const char* kExitCodes =
    "Exit codes: 0 every cell that ran came out as its scenario expects, 1 a gate failed or after is worse\n"
    "than before, 2 bad configuration or usage, or results cannot be written,\n"
    "3 inconclusive, or a scenario in which no cell shows its fix, 4 a crash that no scenario expected,\n"
    "5 nothing ran, 124 timeout, 128+N stopped by signal N.\n";

inline constexpr const char* kExamples =
    "Examples:\n"
    "  fp8lab run scenarios -d meta,cpu -o out     every bundled scenario that needs no GPU\n"
    "  fp8lab init memory                          a scenario to start from\n"
    "  fp8lab watch -- python train.py             what a training program of yours holds and moves\n"
    "  fp8lab bisect leak.yaml --good A --bad B    the first release or commit that leaks\n"
    "  fp8lab plan scenarios -f 405b               what cells would need, without running them\n"
    "  fp8lab plan --model llama3-70b --gpu h100 --ranks 64     whether it fits, and what would help\n"
    "  fp8lab compare before out                   what got better and worse between two runs\n"
    "  fp8lab fixes                                what can be shown before and after\n"
    "  source <(fp8lab completion bash)            completion, also for zsh and fish\n\n";

inline constexpr const char* kFilesText =
    "Files:\n"
    "  OUT/results.json, results.jsonl, environment.json     what `run` and `watch` measured, and on what\n"
    "  OUT/summary.md, junit.xml                             the same for readers and for CI systems\n"
    "  OUT/comparison.json, baseline.json                    of --against: the comparison, its baseline\n"
    "  ~/.local/share/fp8lab/subjects                        releases that `subjects --install` installed\n\n";

inline constexpr const char* kEnvironmentText =
    "Environment:\n"
    "  FP8LAB_CPU_ISA          instruction set of the kernels on device cpu; `fp8lab devices` lists them\n"
    "  FP8LAB_TMPDIR           folder for temporary files; default: TMPDIR, else /tmp\n"
    "  FP8LAB_SUBJECTS         folder of the releases of libraries\n"
    "  FP8LAB_SUBJECT_PYTHON   Python of libraries without a release of their own\n"
    "  FP8LAB_WORKER           another copy of the folder with the worker that drives libraries\n"
    "  FP8LAB_ALLOCATOR_SNAPSHOTS\n"
    "                          folder that keeps PyTorch's snapshot of a library's last step\n"
    "  FP8LAB_PYTHON           Python of `report`\n"
    "  FP8LAB_REPORTS          another copy of the folder with the program of `report`\n"
    "  FP8LAB_DEBUG            1: `report` prints the place of an internal error\n\n";

inline constexpr const char* kRunExamples =
    "Examples:\n"
    "  fp8lab run scenarios -d meta,cpu -o out\n"
    "  fp8lab run scenarios/saved_tensors/attention-saved-tensors.yaml -f 'checkpoint=full'\n"
    "  fp8lab run scenarios -f '-device=cuda'      all cells except cells on cuda\n"
    "  fp8lab run scenarios -o out --resume        only what an earlier run did not finish\n"
    "  fp8lab run scenarios -o out --against main  also fails if anything is worse than in the run `main`\n\n"
    "Each entry of the file of --accept is a table [[accept]]: `cells`, a regular expression on ids; `metric` with\n"
    "`at_most` or `at_least`, or `kind` (vanished, verdict, arm, no_figure, redefined, gates); `expires`, the last "
    "day\n"
    "on which it counts; `why`. A file of --tiers has a table for each tier: `title`, `scenarios`, `devices`, "
    "`filter`,\n"
    "`sample`, `controls`, and `limit_s`; a run that takes longer is warned about.\n\n";

inline constexpr const char* kWatchHelp =
    "The program runs unchanged: instruments attach to it through PYTHONPATH when it imports PyTorch, on every rank. "
    "A\n"
    "step ends with the optimizer's step, and the model is the outermost module that is called; the output names what\n"
    "was guessed. Two lines in the program say it instead: `import fp8lab_subjects` and\n"
    "`fp8lab_subjects.watch(model, optimizer)`.\n"
    "It prints the peak and its holders, what stays alive after backward and after the step, collectives by type, "
    "host\n"
    "time before layers, weights that do not move, and gradients that are not finite. A program that crashes, hangs "
    "or\n"
    "is killed leaves what was measured. Host times contain the other instruments: measure only `host`.\n\n"
    "Examples:\n"
    "  fp8lab watch -- python train.py --steps 20\n"
    "  fp8lab watch --measure memory,traffic -o out -- torchrun --nproc-per-node 2 train.py\n"
    "  fp8lab compare before after                 two watched runs of one program\n\n"
    "Exit codes: 0 nothing was found, 1 memory grows, autograd keeps tensors, weights do not move or gradients are "
    "not\n"
    "finite, 2 bad usage or results cannot be written, 4 the program failed, 5 no step was measured, or nothing was\n"
    "found but a rank left no figures or an instrument failed, 124 timeout, 128+N stopped by signal N.\n";

inline constexpr const char* kBisectHelp =
    "The cell's after arm runs on each version. It is bad if a gate of the scenario fails, or if --metric is beyond\n"
    "its limit. Each end runs twice first: a search whose ends do not repeat stops. Then the list of versions is\n"
    "bisected, and the last good and the first bad version run a second time. A version that is not installed, does\n"
    "not build, does not import PyTorch or whose program fails is skipped; if the bad end's program fails, a failure "
    "is\n"
    "bad. Commits follow first parents. They are built in a clone in the folder for temporary files; the checkout is\n"
    "only read. The state is DIR/bisect.json; the same command resumes after it was stopped or killed.\n\n"
    "Examples:\n"
    "  fp8lab bisect leak.yaml --good 2.9.0 --bad 2.16.1 --install --releases 2.9.0,2.11.0,2.13.0,2.16.1\n"
    "  fp8lab bisect leak.yaml --good v1.0 --bad main --checkout . --build 'pip install -e .'\n"
    "  fp8lab bisect leak.yaml --good a1b --bad HEAD --checkout . --metric memory.peak_bytes --above 1e9\n\n"
    "Exit codes: 0 the first bad version is found, 1 skipped versions leave several, 2 bad usage or a file that "
    "cannot\n"
    "be read or written, 3 an end is not as stated, or a version has different results in two runs, 5 an end cannot\n"
    "run, 128+N stopped by signal N.\n";

inline constexpr const char* kDivergenceHelp =
    "With a scenario, both arms of one cell run twice: versions of a library, a program with and\n"
    "without a patch, the own runtime with and without a fix. Each rank records a sketch of every\n"
    "tensor in the order of execution: inputs, outputs and gradients of modules, operands of matrix\n"
    "products, gradients and updated weights. Two runs of an arm show the noise. A tensor diverges if\n"
    "its difference, relative to its norm, is more than 8 times the noise of this tensor and of the\n"
    "tensor before it. `rise` is the tensor whose difference exceeds every difference before it in its\n"
    "phase by the largest factor, 10 or more: two recipes or two libraries may differ in every tensor,\n"
    "and an error then shows as a rise.\n"
    "With two folders, recordings are compared that `fp8lab watch --values DIR` made, also on other\n"
    "machines.\n"
    "\n"
    "Examples:\n"
    "  fp8lab divergence my-training.yaml -f variant=eager\n"
    "  fp8lab divergence scenarios/parity/recipe-parity.yaml -f recipe=current --arms bf16,after\n"
    "  fp8lab watch --values a -- python train.py\n"
    "  fp8lab watch --values b -- python train.py --compile\n"
    "  fp8lab divergence a b\n"
    "\n"
    "Exit codes: 0 no tensor diverges, 1 a tensor diverges, only one run has it, or a program was killed\n"
    "while it was recorded, 2 bad usage, an arm that fails, or a file that cannot be read or written,\n"
    "128+N stopped by signal N.\n";

inline constexpr const char* kSnapshotHelp =
    "A holder is the innermost function of the program or of a library in the stack that asked for the memory, and "
    "the\n"
    "line of the program that called it. Blocks have stacks if the program recorded them:\n"
    "torch.cuda.memory._record_memory_history() before the training. Of several GPUs the fullest is shown. Files are\n"
    "read as plain values; a pickle that would run code is refused.\n\n"
    "Examples:\n"
    "  fp8lab snapshot after.pickle\n"
    "  fp8lab snapshot before.pickle after.pickle -o out && fp8lab report out -o report\n\n"
    "Exit codes: 0 printed, 2 a file that is no snapshot, bad usage, or output that is lost.\n";

inline constexpr const char* kCompareHelp =
    "A run is its results.json, that file compressed by gzip, or the directory that holds it. Output begins with a\n"
    "line for each cell that changed, the worst first: its largest relative change (memory: relative to the arm's\n"
    "peak), in which phase, who holds the bytes, what changed with it. Of a cell whose keys changed both figures are\n"
    "shown, and none is gated. Of several\n"
    "runs the last is compared with the baseline, and each line names the run and commit since which it\n"
    "holds. A regression is a cell that vanished, a verdict further from good, and a figure that every run\n"
    "repeats (bytes, counts, equalities) that got worse. New cells are no regression. Times are not judged.\n"
    "Figures of parity and reference depend on the order of additions, so they have a slack, within which a "
    "difference\n"
    "is neither better nor worse: a loss gap may double. `fp8lab metrics NAME` prints the slack of a metric.\n"
    "Two Google Benchmark files, of two commits or of a peer, are compared row by row: the ratio of medians, and\n"
    "whether every repetition is slower or faster; with fewer than five repetitions a row is undecided.\n\n"
    "Exit codes: 0 no regression, 1 regressions, 2 bad usage or files, 5 no regression, and no cell in common.\n";

inline constexpr const char* kReportNotes =
    "Writes report.html (one file that needs no network), report.md, figures/*.svg, and report.pdf, which is the page\n"
    "as Chromium or Chrome prints it; without one of them there is no PDF, and a line reports this.\n"
    "OUT is what `fp8lab run -o` left, its results.json or results.jsonl, or a Google Benchmark JSON file; benchmarks\n"
    "are also found under OUT/bench. A file called peer_NAME.json is the peer that rows of equal name are compared "
    "with.\n"
    "Unreadable input is named, in the report too, and left out.\n"
    "Needs the Debian packages python3-matplotlib, python3-jinja2 and python3-fastjsonschema. FP8LAB_PYTHON names\n"
    "another Python, FP8LAB_REPORTS another copy of the folder reports.\n\n"
    "Examples:\n"
    "  fp8lab report out -o report\n"
    "  fp8lab report main=out-a branch=out-b -o report     two commits side by side\n"
    "  fp8lab report out -o report --snapshots --traces --cells attention\n\n"
    "Exit codes: 0 everything was read, 2 something was not (the rest is shown), 5 everything was read and there was\n"
    "nothing to show.\n";

inline constexpr const char* kValidateExits =
    "Exit codes: 0 all valid, 2 a file has mistakes or cannot be read, or bad usage.\n";

inline constexpr const char* kInitExits =
    "Exit codes: 0 written, 2 the file exists or cannot be written, no such kind, or bad usage.\n";

/// For commands that print tables.
inline constexpr const char* kListExits =
    "Exit codes: 0 printed, 2 an unknown name, a file that cannot be read, bad usage, or output that is lost.\n";

inline constexpr const char* kCompletionHelp =
    "  bash  source <(fp8lab completion bash)      in ~/.bashrc\n"
    "  zsh   source <(fp8lab completion zsh)       in ~/.zshrc\n"
    "  fish  fp8lab completion fish | source       in ~/.config/fish/config.fish\n\n"
    "Exit codes: 0 printed, 2 bad usage, or output that is lost.\n";

}  // namespace fp8lab
