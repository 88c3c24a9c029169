"""Shows that every row of check_words.py fires if it must and is silent if it must."""

import contextlib
import io
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


# A line with each habit, in the order of the table, and one that has none although it is close.
HABITS = [
    ("an error where shards differ", "the folder where results go"),
    ("Of each rank, the bytes", "the bytes of each rank"),
    ("the program knows it", "you know it"),
    ("memory is that of the GPU", "the memory of that GPU"),
    ("the after arm alone is planned", "it must run alone"),
    ("a copy beside the shard", "a copy next to the shard"),
    ("built anew", "a new build"),
    ("all but for one", "all except one"),
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

class Habits(unittest.TestCase):
    def found(self, name, text):
        return [(number, habit) for number, habit, _ in check_words.habits_of(name, text)]

    def test_every_habit_is_found_and_its_neighbour_is_not(self):
        self.assertEqual(len(check_words.HABITS), len(HABITS))
        for habit, (bad, good) in zip(check_words.HABITS, HABITS):
            with self.subTest(habit=habit.name):
                self.assertEqual([(1, habit.name)], self.found("a.md", bad))
                self.assertEqual([], self.found("a.md", good))

    def test_comments_and_texts_count_and_code_does_not(self):
        self.assertEqual([(1, "beside"), (2, "alone"), (3, "beside"), (5, "that_of")], self.found(
            "a.cpp", 'int beside;  // it lies beside\nfail("one arm alone");\n/* beside */\nint alone = 0;\n'
                     'R"(first\nthat of)";\n'.replace("first\n", "")))
        self.assertEqual([(1, "beside"), (3, "alone")], self.found("a.py", '"""It lies beside."""\nalone = 1\nx = "one alone"\n'))
        self.assertEqual([(2, "alone"), (4, "alone")],
                         self.found("run", '#!/bin/bash\n# one alone\nalone=1\nsay "one alone"\n'))
        self.assertEqual([(3, "alone")], self.found("a.yaml", "name: alone\nalone: 1\ntitle: One arm alone\n"))
        self.assertEqual([(4, "alone")], self.found("a.md", "```\nalone\n```\none alone\n"))

    def test_two_slashes_in_a_text_begin_no_comment(self):
        self.assertEqual([], self.found("a.cpp", 'call("http://a", beside);\n'))

    def test_of_at_the_beginning_of_a_wrapped_line_is_none(self):
        self.assertEqual([(3, "bare_of")], self.found("a.h", "// The bytes\n// of a rank.\nint a;  ///< of a rank\n"))

    def test_a_line_counts_once_for_a_habit(self):
        self.assertEqual([(1, "alone")], self.found("a.md", "one alone, the other alone"))

    def test_more_lines_than_allowed_are_an_error_and_fewer_are_none(self):
        few = {habit.name: [] for habit in check_words.HABITS}
        most = {habit.name: [("a.md", 1, "")] * (habit.most + 1) for habit in check_words.HABITS}
        with contextlib.redirect_stdout(io.StringIO()) as out:
            self.assertEqual(0, check_words.judged_habits(few))
            self.assertEqual(len(check_words.HABITS), check_words.judged_habits(most))
        self.assertIn("check_words.py --habit where prints the lines", out.getvalue())

    def test_numbers_only_fall(self):
        script = pathlib.Path(check_words.__file__).read_text(encoding="utf-8")
        first, *others = check_words.HABITS
        counts = {first.name: first.most - 1} | {habit.name: habit.most + 1 for habit in others}
        self.assertEqual(script.replace(f'Habit("{first.name}", {first.most},', f'Habit("{first.name}", {first.most - 1},'),
                         check_words.lowered(script, counts))

    def test_lines_of_a_tree_are_listed(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "lib/core/a.h")
            path.parent.mkdir(parents=True)
            path.write_text("// one rank alone\n", encoding="utf-8")
            program = [sys.executable, pathlib.Path(check_words.__file__), "--habit", "alone", folder]
            done = subprocess.run(program, capture_output=True, text=True, check=False)
            self.assertEqual((0, "lib/core/a.h:1: one rank alone\n"), (done.returncode, done.stdout))



if __name__ == "__main__":
    unittest.main()
