"""Shared by the peers' scripts: the command line, timing by events after a large copy, and Google Benchmark's JSON."""

import argparse
import json
import sys

import torch

COPY_BYTES = 1 << 30


def arguments(description, rounds):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=rounds, help="calls that are timed (default: %(default)s)")
    parser.add_argument("--filter", default="", metavar="TEXT", help="only rows whose name contains this")
    parser.add_argument("--out", metavar="FILE", help="file for the JSON; default: standard output")
    return parser


class Timer:
    """Times calls. A copy of COPY_BYTES runs first: it hides the call's launches, and its bandwidth is the GPU's."""

    def __init__(self):
        self.source = torch.empty(COPY_BYTES // 2, device="cuda", dtype=torch.bfloat16).normal_()
        self.target = torch.empty_like(self.source)

    def microseconds(self, call):
        """The times of the call and of the copy before it."""
        begin, middle, end = (torch.cuda.Event(enable_timing=True) for _ in range(3))
        begin.record()
        self.target.copy_(self.source)
        middle.record()
        call()
        end.record()
        end.synchronize()
        return 1e3 * middle.elapsed_time(end), 1e3 * begin.elapsed_time(middle)

    @staticmethod
    def copy_bandwidth(microseconds):
        """Bytes read plus bytes written per second."""
        return 2e6 * COPY_BYTES / microseconds


def row(name, rounds, microseconds, **counters):
    full_name = f"{name}/iterations:{rounds}/manual_time"
    return {"name": full_name, "run_name": full_name, "run_type": "iteration", "iterations": rounds, "real_time": microseconds,
            "cpu_time": microseconds, "time_unit": "us", "p50_us": microseconds, **counters}


def write(rows, out):
    context = {"library": f"torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}",
               "device": torch.cuda.get_device_name()}
    with (open(out, "w", encoding="utf-8") if out else sys.stdout) as file:
        json.dump({"context": context, "benchmarks": rows}, file, indent=1)
