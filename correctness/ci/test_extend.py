"""Shows that ci/extend makes its additions, that they compile, and that it reports when one cannot be made."""

import dataclasses
import os
import pathlib
import subprocess
import tempfile
import unittest

from scripts import ROOT, module

BUILD = pathlib.Path(os.environ["FP8LAB_PROGRAM"]).parents[1]


@unittest.skipUnless((ROOT / ".git").exists(), "ci/extend lists the files of a clone, and this tree is none")
class Extend(unittest.TestCase):
    def test_every_addition_can_be_made_and_compiles(self):
        done = subprocess.run([ROOT / "ci/extend", "--syntax", BUILD], capture_output=True, text=True, check=False)
        self.assertEqual(0, done.returncode, done.stderr)
        self.assertRegex(done.stdout, r"a fix: \d+ by hand")

    def test_an_addition_that_does_not_compile_is_reported(self):
        extend = module("extend")
        kind = next(kind for kind in extend.KINDS if kind.name == "a fix")
        wrong = dataclasses.replace(kind, additions=tuple(
            dataclasses.replace(one, text="    int example_decision = }\n") if one.file.endswith("fixes.cpp") else one
            for one in kind.additions))
        with tempfile.TemporaryDirectory() as folder:
            copy = pathlib.Path(folder)
            extend.copy_tree(copy)
            for addition in wrong.additions:
                addition.apply(copy)
            with self.assertRaisesRegex(extend.ExtendError, "a fix: lib/fixes/fixes.cpp does not compile"):
                extend.check_syntax(BUILD, dataclasses.replace(wrong, additions=wrong.additions[2:3]), copy)

    def test_a_missing_place_is_named(self):
        extend = module("extend")
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "a.h").write_text("one\ntwo\ntwo\n", encoding="utf-8")
            for gone, lines in (("three", 0), ("two", 2)):
                with self.assertRaisesRegex(extend.ExtendError, f"a.h: {lines} lines hold `{gone}`"):
                    extend.Edit("a.h", "", gone, "").apply(pathlib.Path(folder))

    def test_a_local_name_may_change(self):
        extend = module("extend")
        edit = extend.Edit("a.cpp", "", 'put("bytes", $mark.live);', '  put("example", $mark.live);\n')
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "a.cpp"
            for name in ("mark", "after_backward"):
                file.write_text(f'{{\n  put("bytes", {name}.live);\n}}\n', encoding="utf-8")
                edit.apply(pathlib.Path(folder))
                self.assertEqual(f'{{\n  put("example", {name}.live);\n  put("bytes", {name}.live);\n}}\n',
                                 file.read_text(encoding="utf-8"))


if __name__ == "__main__":
    unittest.main()
