"""One process per core, for what takes long: reading timelines and painting figures."""

import concurrent.futures
import gc
import os
from collections.abc import Callable
from typing import Any, Self

import interrupts


class Workers:
    """Functions and their arguments travel to the processes, so arguments should be small."""

    def __enter__(self) -> Self:
        gc.freeze()  # exempt the many cells, which live to the end, from garbage collection in all processes
        gc.set_threshold(20_000)  # collect rarely, because a figure has thousands of objects
        self._pool = concurrent.futures.ProcessPoolExecutor(max(1, len(os.sched_getaffinity(0))))
        return self

    def __exit__(self, *_: object) -> None:
        with interrupts.held():  # an interrupted join marks the pool's thread as ended, and its processes wait for ever
            self._pool.shutdown(cancel_futures=True)  # after a failure what remains is not needed

    def submit(self, work: Callable[..., Any], *arguments: Any) -> "concurrent.futures.Future[Any]":
        with interrupts.held():
            return self._pool.submit(work, *arguments)
