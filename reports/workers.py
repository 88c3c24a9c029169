"""One process per core, for what takes long, reading timelines and drawing figures; and its progress."""

import concurrent.futures
import gc
import os
import sys
import time
from collections.abc import Callable
from typing import Any, Self, TextIO

import files


class Workers:
    """Functions and their arguments travel to the processes, so arguments should be small."""

    def __enter__(self) -> Self:
        gc.freeze()  # exempt the many cells, which live to the end, from garbage collection in all processes
        gc.set_threshold(20_000)  # collect rarely, because a figure has thousands of objects
        self._pool = concurrent.futures.ProcessPoolExecutor(max(1, len(os.sched_getaffinity(0))))
        return self

    def __exit__(self, *_: object) -> None:
        with files.held():  # an interrupted join marks the pool's thread as ended, and its processes wait for ever
            self._pool.shutdown(cancel_futures=True)  # after a failure what remains is not needed

    def submit(self, work: Callable[..., Any], *arguments: Any) -> "concurrent.futures.Future[Any]":
        with files.held():
            return self._pool.submit(work, *arguments)


QUIET_S, LOG_S, TERMINAL_S = 5.0, 10.0, 0.2


class Progress:
    """What a report is doing, and how much is left, from the fifth second on: a line that is rewritten on a terminal, and a
plain line every ten seconds in a log."""

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream or sys.stderr
        self._clock = clock
        self._is_terminal = self._stream.isatty()
        self._started = clock()
        self._next = self._started + QUIET_S
        self._width = 0

    def show(self, what: str, done: int = 0, of: int = 0, since: float | None = None) -> None:
        """`since`: when the `of` pieces of work began; the time left is estimated from it."""
        now = self._clock()
        if now < self._next:
            return
        self._next = now + (TERMINAL_S if self._is_terminal else LOG_S)
        line = f"report: {what}" + (f", {done} of {of}" if of else "") + f", {now - self._started:.0f} s"
        if since is not None and 0 < done < of:
            line += f", about {(now - since) * (of - done) / done:.0f} s left"
        self._write(f"\r{line:<{self._width}}" if self._is_terminal else line + "\n")
        self._width = len(line)

    def each(self, what: str, futures: "list[concurrent.futures.Future[Any]]") -> list[Any]:
        """The results of futures, in their order."""
        since, out = self._clock(), []
        for number, future in enumerate(futures):
            while not future.done():
                self.show(what, number, len(futures), since)
                concurrent.futures.wait([future], timeout=TERMINAL_S)
            out.append(future.result())
        return out

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Clears the line of a terminal."""
        if self._is_terminal and self._width:
            self._write(f"\r{'':<{self._width}}\r")
        self._width = 0

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            self._next = float("inf")  # it cannot be shown; the report is still written

