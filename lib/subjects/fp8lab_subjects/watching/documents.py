"""The file of a process: replaced at once after steps, so that a program that is killed leaves what was measured."""

import json
import os
import sys
import threading
import time
import traceback

from ..protocol import exact
from . import report, words
from .owners import is_programs_own

SCHEMA = "fp8lab.watch/1"
EVERY_S = 0.2  # at most so often; the first steps always
ALWAYS_WRITTEN = 3
STUCK_S = 2.0  # a phase that lasts longer is written with the line of the program


class Document:
    def __init__(self, folder, session):
        self.path = os.path.join(folder, f"process-{os.getpid()}.json")
        self.session, self.owned = session, True
        self.lock = threading.Lock()
        self.written_at = 0.0
        self.measured = None  # what describe() returned after the last step
        self.is_finished = False  # what is written last stays
        self.error = None
        self.main = threading.get_ident()

    def start(self):
        self._write({"state": "started"})
        threading.Thread(target=self._watch_for_standstill, name="fp8lab watch", daemon=True).start()

    def step_ended(self):
        now = time.monotonic()
        if self.session.steps_ended > ALWAYS_WRITTEN and now - self.written_at < EVERY_S:
            return
        self.update("running")

    def update(self, state):
        session = self.session
        session.failed.pop("results", None)  # this writes all of them
        session.busy, was_off, session.storages.off = True, session.storages.off, True
        begin = time.perf_counter()
        try:
            self.measured = session.describe()
        finally:
            session.busy, session.storages.off = False, was_off
        self._write({**self.measured, "state": state})
        session.spent["writing"] = session.spent.get("writing", 0.0) + time.perf_counter() - begin
        self.written_at = time.monotonic()

    def ended(self, error):
        """At the end of the process; `error` in words, or None."""
        if not self.owned or os.getpid() != int(self.path.rsplit("-", 1)[1].split(".")[0]):
            return
        self.error = self.error or error
        self.is_finished = True
        try:
            self.update("error" if self.error else "ended")
        except Exception as problem:
            why = f"while results were written: {type(problem).__name__}: {problem}"
            try:
                self._write({**(self.measured or {}), "state": "error", "error": why})
            except Exception:  # such as a full disk
                sys.stderr.write(f"fp8lab watch: {why}\n")

    def disown(self):
        self.owned = False

    def _write(self, content):
        if not self.owned:
            return
        if self.error:
            content = {**content, "error": self.error}
        with self.lock:
            if self.is_finished and content["state"] == "running":
                return  # the thread looked before the end
            temporary = f"{self.path}.{threading.get_ident()}"
            with open(temporary, "w", encoding="utf-8") as file:
                json.dump(exact({"schema": SCHEMA, "pid": os.getpid(), **content}), file)
            os.replace(temporary, self.path)

    def _watch_for_standstill(self):
        """For a program that hangs, the file shows where, though its main thread no longer runs."""
        while self.owned and not self.is_finished:
            time.sleep(STUCK_S)
            session = self.session
            since = session.phase_since
            lasts = time.monotonic() - since
            if lasts < STUCK_S or session.phase == "setup" or self.error:
                continue
            phase, step, module = session.place()
            where = {"phase": phase, "step": step, "module": module, "seconds": round(lasts, 1),
                     "line": self._line(), "collective": session.collective}
            try:
                measured = self.measured or report.who(session)
                self._write({**measured, "state": "running", "where": words.place(where)})
            except Exception:
                continue  # the main thread changes what is read, or the disk is full

    def _line(self):
        """The innermost line of the program itself, "train.py:33 in main"."""
        frame = sys._current_frames().get(self.main)
        for one in reversed(traceback.extract_stack(frame) if frame else []):
            if is_programs_own(one.filename):
                return f"{os.path.basename(one.filename)}:{one.lineno} in {one.name}"
        return ""
