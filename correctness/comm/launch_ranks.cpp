#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

// launch_ranks RANKS SECONDS PROGRAM [ARGUMENTS...] starts RANKS processes of PROGRAM on this machine, as torchrun
// would. When a process dies it lets the others run on. It ends with the first status, in the order of ranks, that is
// not 0. After SECONDS it kills the processes that are left and ends with 124.
namespace {

volatile sig_atomic_t late = 0;

void become_rank(int rank, char** command) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  setenv("RANK", std::to_string(rank).c_str(), 1);
  setenv("LOCAL_RANK", std::to_string(rank).c_str(), 1);
  execv(command[0], command);
  std::perror(command[0]);
  _exit(127);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  const int ranks = std::atoi(argv[1]);
  setenv("WORLD_SIZE", argv[1], 1);
  setenv("LOCAL_WORLD_SIZE", argv[1], 1);
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  setenv("MASTER_PORT", "29500", 1);
  setenv("TORCHELASTIC_RUN_ID", std::to_string(getpid()).c_str(), 1);
  std::vector<pid_t> processes;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t process = fork();
    if (process == 0) become_rank(rank, argv + 3);
    processes.push_back(process);
  }
  struct sigaction action{};
  action.sa_handler = [](int) { late = 1; };
  sigaction(SIGALRM, &action, nullptr);  // without SA_RESTART, so that the signal ends wait()
  alarm(static_cast<unsigned>(std::atoi(argv[2])));
  int first = 0;
  for (std::size_t rank = 0; rank < processes.size(); ++rank) {
    int status = 0;
    if (waitpid(processes[rank], &status, 0) < 0) {
      if (late == 0) continue;
      for (std::size_t left = rank; left < processes.size(); ++left) kill(processes[left], SIGKILL);
      std::fprintf(stderr, "launch_ranks: rank %zu and those after it were killed after %s s\n", rank, argv[2]);
      return 124;
    }
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (first == 0) first = code;
  }
  return first;
}
