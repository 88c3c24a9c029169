"""Shows that every row of check_words.py fires where it must and is silent where it must."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

import check_words

# A word of each row, in the order of the table.
BAD = ["wholes", "halves", "codes", "cards", "meeting", "seat", "comings", "team", "lane", "farewell", "hello", "abandonment",
       "patience", "looks", "turn", "course", "take", "ways", "told", "brought"]
GOOD = [
    "the exit codes of the program",
    "all 256 codes of the type",
    "two halves of a 16-bit pair",
    "of course",
    "they run in turn, and alternate by turns",
    "a ZMTP greeting",
]


class CheckWords(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)

    def found(self, text, name="lib/comm/a.cpp"):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        found = [(file, line, word) for file, line, word, _ in check_words.findings(self.root)]
        path.unlink()
        return found

    def test_every_row_fires_in_prose_and_in_names(self):
        self.assertEqual(len(check_words.WORDS), len(BAD))
        for row, word in zip(check_words.WORDS, BAD):
            name = (row.within or "lib/core") + "/a.cpp"
            with self.subTest(word=word):
                self.assertEqual([(name, 2, word)], self.found(f"int a;\n// a {word} is here\n", name))
                self.assertEqual([(name, 1, word)], self.found(f"int old_{word};\n", name))
                self.assertEqual([(name, 1, word.capitalize())], self.found(f"struct Old{word.capitalize()};\n", name))

    def test_other_meanings_are_allowed(self):
        for text in GOOD:
            with self.subTest(text=text):
                self.assertEqual([], self.found(text + "\n"))

    def test_some_words_belong_to_a_folder(self):
        self.assertEqual([], self.found("// a warp's lane takes it\n", "lib/backend/cuda/a.cu"))

    def test_names_of_files_count(self):
        self.assertEqual([("lib/core/card.h", 0, "card")], self.found("", "lib/core/card.h"))

    def test_the_glossary_and_what_was_measured_are_left_out(self):
        for name in ("lib/glossary.md", "reports/measured/README.md", "ci/check_words.py"):
            self.assertEqual([], self.found("card\n", name))

    def test_names_in_files_of_earlier_versions_are_left_out(self):
        self.assertEqual([], self.found('std::string_view former_name = "card";\n'))

    def test_the_program_counts_and_fails(self):
        path = self.root / "lib/comm/a.cpp"
        path.parent.mkdir(parents=True)
        path.write_text("// a card\n", encoding="utf-8")
        program = [sys.executable, pathlib.Path(check_words.__file__)]
        for arguments, expected in (([], "lib/comm/a.cpp:1: error: `card` [words]"), (["--count"], "1 lib/comm/a.cpp")):
            done = subprocess.run([*program, *arguments, self.root], capture_output=True, text=True, check=False)
            self.assertEqual(1, done.returncode)
            self.assertIn(expected, done.stdout)
            self.assertIn("check_words: 1 errors", done.stdout)


if __name__ == "__main__":
    unittest.main()
