"""Ranks as child processes of the worker, which end when the worker does."""

import ctypes
import json
import os
import pathlib
import signal
import sys
import tempfile
import traceback

PR_SET_PDEATHSIG = 1


def _become_rank(parent):
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # the worker ended before prctl


def _run_child(function, rank, folder, parent):
    """In the child: calls function(rank, folder) and leaves its answer or its error in the folder."""
    status = 1
    try:
        _become_rank(parent)
        answer = {"answer": function(rank, folder)}
        status = 0
    except MemoryError as error:
        answer = {"error": f"rank {rank}: {error or 'out of memory'}", "out_of_memory": True}
    except BaseException as error:  # also SystemExit of a library: the worker reports it
        traceback.print_exc()
        text = str(error).strip().splitlines()
        answer = {
            "error": f"rank {rank}: {type(error).__name__}: {text[-1] if text else ''}",
            "out_of_memory": type(error).__name__ == "OutOfMemoryError",
        }
    try:
        sys.stdout.flush()
        sys.stderr.flush()
        temporary = folder / f"answer-{rank}.part"
        temporary.write_text(json.dumps(answer))
        temporary.rename(folder / f"answer-{rank}.json")
    finally:
        os._exit(status)


class Crash(Exception):
    """A signal ended a rank: the arm ends by the same signal, as it would in the runtime itself."""

    def __init__(self, number):
        super().__init__(f"signal {number}")
        self.number = number


class Failure(Exception):
    """A rank ended with an error."""

    def __init__(self, text, out_of_memory=False):
        super().__init__(text)
        self.out_of_memory = out_of_memory


def _end(children):
    for child in children:
        os.kill(child, signal.SIGKILL)
    for child in children:
        os.waitpid(child, 0)


def _reap(children, folder):
    """Waits for all children; once one fails, ends the others, which would wait for it for ever."""
    running = dict(children)
    while running:
        pid, status = os.wait()
        rank = running.pop(pid, None)
        if rank is None or status == 0:
            continue
        _end(running)
        if os.WIFSIGNALED(status):
            raise Crash(os.WTERMSIG(status))
        path = folder / f"answer-{rank}.json"
        answer = json.loads(path.read_text()) if path.exists() else {}
        raise Failure(
            answer.get("error", f"rank {rank} exited with status {os.WEXITSTATUS(status)}"),
            answer.get("out_of_memory", False),
        )


def temporary_folder(prefix):
    """A folder below the folder that fp8lab removes when this process has ended, even if it was killed."""
    parent = os.environ.get("FP8LAB_TMPDIR")
    if parent:
        os.makedirs(parent, mode=0o700, exist_ok=True)
    return tempfile.TemporaryDirectory(prefix=prefix, dir=parent)


def run(function, count, folder=None):
    """Calls function(rank, folder) in `count` processes. Returns their results in the order of ranks."""
    with temporary_folder("fp8lab-ranks-") as temporary:
        folder = pathlib.Path(folder or temporary)
        parent, children = os.getpid(), {}
        sys.stdout.flush()
        sys.stderr.flush()
        for rank in range(count):
            pid = os.fork()
            if pid == 0:
                _run_child(function, rank, folder, parent)
            children[pid] = rank
        _reap(children, folder)
        return [json.loads((folder / f"answer-{rank}.json").read_text())["answer"] for rank in range(count)]
