"""The side of `fp8lab watch` that runs in the program: what it does if something fails. PyTorch is replaced."""

import contextlib
import importlib.abc
import importlib.machinery
import json
import os
import pathlib
import shutil
import sys
import tempfile
import types
import unittest
from unittest import mock


class Empty(types.ModuleType):
    """A module of PyTorch; its classes are empty, and its functions do nothing. As a decorator it returns the function."""

    __path__ = []
    __file__ = "/empty/torch/__init__.py"

    def __call__(self, *arguments, **_):
        return arguments[0] if arguments and callable(arguments[0]) else self

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        value = type(name, (), {}) if name[0].isupper() or name in ("dtype", "device") else Empty(name)
        setattr(self, name, value)
        return value


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.partition(".")[0] == "torch" else None

    def create_module(self, spec):
        return Empty(spec.name)

    def exec_module(self, module):
        module.__path__ = []


sys.meta_path.insert(0, Finder())
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "lib/subjects"))

from fp8lab_subjects.watching import session as sessions, values  # noqa: E402

sessions.torch.__version__ = "2"
sessions.torch.no_grad = contextlib.nullcontext
sessions.is_compiling = lambda: False
sessions.torch.distributed = types.SimpleNamespace(is_available=lambda: False)


class WatchedProcess(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def session(self, measure):
        session = sessions.Session(self.folder, measure, "")
        session._optimizers, session.begun = [lambda: None], 0.0
        session.optimizers = session.models = list
        return session

    def document(self):
        (path,) = pathlib.Path(self.folder).glob("process-*.json")
        return json.loads(path.read_text())

    def step(self, session):
        session._after_update(None)

    def test_a_process_that_has_ended_stays_ended(self):
        session = self.session("host")
        self.step(session)
        session.document.ended(None)
        session.document._write({"state": "running", "where": "after step 1"})  # the thread looked before
        self.assertEqual(self.document()["state"], "ended")
        self.assertNotIn("where", self.document())

    def test_results_that_cannot_be_written_do_not_reach_the_optimizer(self):
        session = self.session("host")
        shutil.rmtree(self.folder)
        self.step(session)
        self.assertIn("FileNotFoundError", session.failed["results"])
        self.assertEqual(session.step, 2)
        os.mkdir(self.folder)
        self.step(session)
        self.assertEqual(session.failed, {})  # all figures are in the file now
        self.assertEqual(self.document()["steps"], 2)

    def test_results_that_cannot_be_written_hide_no_error_of_the_program(self):
        session = self.session("host")
        shutil.rmtree(self.folder)
        shown = []
        with mock.patch.object(sys, "stderr") as errors:
            session._crashed(lambda *error: shown.append(error), (ValueError, ValueError("own"), None))
        self.assertEqual(str(shown[0][1]), "own")
        self.assertIn("fp8lab watch: while results were written: FileNotFoundError", errors.write.call_args[0][0])

    def test_rank_and_number_of_ranks_outlive_the_process_group(self):
        session = self.session("host")
        group = types.SimpleNamespace(is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda: 3,
                                      get_world_size=lambda: 4)
        with mock.patch.object(sessions.torch, "distributed", group), mock.patch.dict(os.environ, clear=True):
            self.step(session)
            group.is_initialized = lambda: False
            session.document.ended(None)
        self.assertEqual((self.document()["rank"], self.document()["world"]), (3, 4))

    def test_an_instrument_that_fails_finds_nothing_that_it_did_not_see(self):
        session = self.session("parity")
        (weights,) = session.instruments
        weights.names, weights.seen, weights.unmoved = {1: "w"}, {1: True}, {1: 1}
        weights.before_update = mock.Mock(side_effect=NotImplementedError("no kernel"))
        self.assertEqual([one["kind"] for one in session.describe()["findings"]], ["still"])
        session.tell("before_update", None)
        self.step(session)
        document = self.document()
        self.assertEqual(document["findings"], [])
        self.assertEqual([one["text"] for one in document["failed"]],
                         ["parity: NotImplementedError: no kernel (step 1, before_update)"])

    def test_figures_that_cannot_be_made_fail_their_instrument_only(self):
        session = self.session("host,parity")
        session.instruments[0].result = mock.Mock(side_effect=KeyError("host"))
        session.instruments[1].names = {1: "w"}
        session.instruments[1].seen = {1: True}
        self.step(session)
        self.assertEqual([one["subject"] for one in self.document()["failed"]], ["host"])
        self.assertEqual(self.document()["result"]["metrics"]["parity.weights_moved"]["value"], 1)

    def test_a_second_process_of_a_rank_leaves_the_recording_of_the_first(self):
        with mock.patch.dict(os.environ, {values.FOLDER: self.folder}):
            first, second = self.session("values"), self.session("values")
            for one in (first, second):
                one.instruments[0].lines = ["a line"]
                self.step(one)
                one._detach()
        self.assertEqual(first.failed, {})
        self.assertIn("FileExistsError", second.failed["values"])
        self.assertIn("a line", pathlib.Path(self.folder, "rank-0.tsv").read_text())

    def test_the_lines_say_where_tensors_were_recorded(self):
        with mock.patch.dict(os.environ, {values.FOLDER: self.folder}):
            session = self.session("values")
            recorder = session.instruments[0]
            self.assertIn({"topic": "values", "text": "no tensor was recorded"}, session.describe()["lines"])
            recorder.tensors, recorder.of_steps = 12, (1, 3)
            text = f"12 tensors of steps 1 to 3 in {self.folder}/rank-0.tsv"
            self.assertIn({"topic": "values", "text": text}, session.describe()["lines"])


if __name__ == "__main__":
    unittest.main()
