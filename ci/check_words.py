#!/usr/bin/env python3
"""Holds names, comments, messages and documents to the words of the field, and to sentences that are read once.

Usage: check_words.py [--count] [--habit NAME] [--lower] [ROOT]. Prints every word of the table below that the tree uses as
a term of its own, as `file:line: error: what`, with the word that PyTorch FSDP, Transformer Engine, NCCL or CUDA have for
it. A line that says `former` is left out: files that earlier versions wrote keep their names. --count prints the number of
findings of each folder. The glossary is lib/glossary.md.

Habits make a reader read a sentence twice. They are patterns and not a grammar: some lines with one are good English, so no
line is an error by itself. The table of habits has the largest allowed number of lines of each. --habit prints the lines of
one habit. --lower writes smaller numbers into the table; nothing writes larger ones. Exits 1 if a word is found, or if a
habit has more lines than its number.
"""

import argparse
import collections
import dataclasses
import functools
import io
import pathlib
import re
import sys
import tokenize


@dataclasses.dataclass(frozen=True)
class Word:
    pattern: str  # of one part of a name, or of a word of prose, in lower case
    instead: str
    allowed: str = r"(?!)"  # of the line around it: other meanings of the word
    within: str = ""  # the only folder in which the word is looked for; everywhere if empty


WORDS = (
    Word("wholes?", "unsharded (a parameter, its data), or entire, full"),
    Word("halves", "orientations: row-wise and column-wise data", r"(?i)\bfp16|f16|bf16|16[- ]bit"),
    Word("codes", "quantized data, or payload where bytes travel",
         r"(?i)exit[_ -]?codes|error codes|return codes|status codes|\b256\b|(all|every|possible|neighbouring|adjacent) "
         r"(\w+ )?codes|codes of (the|a|each|every) type"),
    Word("cards?", "GPU; `cuda` for the device"),
    Word("meet|meets|meeting|meetings", "barrier, rendezvous, connect; satisfy (a condition)"),
    Word("seats?", "slot"),
    Word("comings", "arrivals"),
    Word("crew|teams?", "process group, subgroup, or the state that its ranks share"),
    Word("lanes?", "stream", within="lib/comm"),
    Word("farewells?", "shutdown message"),
    Word("greetings?|hello", "handshake", r"(?i)zmtp"),
    Word("abandonments?", "abort flag"),
    Word("patience", "timeout, deadline"),
    Word("looks", "spin count; say what it does instead of how it looks"),
    Word("turns?", "slot index, stage; rotation, transpose",
         r"(?i)\b(in|by) turns?\b|in its turn|turn(s|ed|ing)? (on|off|out|up|into|red)\b"),
    Word("courses?", "schedule", r"(?i)\bof course\b"),
    Word("takes?|gives?", "allocate, free", within="lib/harness/predict"),
    Word("ways", "algorithms, paths"),
    Word("noted|told|said", "recorded, reported"),
    Word("bring|brings|brought", "post, receive, gather; contain, provide"),
)


@dataclasses.dataclass(frozen=True)
class Habit:
    name: str
    most: int  # lines of the tree; --lower replaces it
    pattern: str  # of a line of prose, in any case
    write: str


HABITS = (
    # Not after a noun of place, a verb of showing or a preposition, and not as the head of a column.
    Habit("where", 27,
          r"(?<!\bplace )(?<!\bplaces )(?<!\bline )(?<!\bfolder )(?<!\bpoint )(?<!\bsee )(?<!\bshows )(?<!\bshow )"
          r"(?<!\bsays )(?<!\bsay )(?<!\bis )(?<!\bare )(?<!\bfrom )(?<!\bto )(?<!\bwhat, )(?<!\| )\bwhere\b(?!:)",
          "if, when"),
    Habit("bare_of", 11, r"^(of|Of)\b", "name the noun: `Bytes of ...`"),
    Habit("code_that_speaks", 7, r"\b(asks|knows|says|wants|answers|heeds|tells)\b",
          "returns, contains, requires, prints, names"),
    Habit("that_of", 4, r"\b(that|those) of\b", "repeat the noun"),
    Habit("alone", 8, r"(?<!\brun )(?<!\bruns )(?<!\bran )(?<!\bstands )(?<!\bstand )(?<!\bcompiles )\balone\b", "only"),
    Habit("beside", 1, r"\bbesides?\b", "next to, compared with, in addition to"),
    Habit("old_words", 6,
          r"\banew\b|\bnobody\b|\bin vain\b|\bheed|\bmend(s|ed|ing)?\b|\bspeaks? of\b|\bstands? in\b|\b(is|are|was|were) of\b",
          "again, no one, without result, use, fix, covers, is in, belongs to"),
    Habit("but_for", 11, r"\bbut for\b|\bin any case\b|\bas many\b|\bone that\b|\bones that\b|\bwhat an? \w+ has\b",
          "except, always, the same number, name the thing"),
)
FOLDERS = ("lib", "bench", "scenarios", "correctness", "reports", "ci", "README.md")
# The table itself, its test, and the glossary; what was measured keeps the words of its day.
RULES = {"ci/check_words.py", "ci/test_check_words.py"}
SKIPPED = RULES | {"lib/glossary.md"}
GENERATED_FOLDERS = {"__pycache__", "corpus"}
SKIPPED_FOLDERS = GENERATED_FOLDERS | {"measured"}
SUFFIXES = {".h", ".cpp", ".cu", ".cuh", ".py", ".md", ".yaml", ".yml", ".toml", ".txt", ".cmake", ".sh", ""}
PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
FORMER = re.compile(r"(?i)former")
PATTERNS = [(word, re.compile(word.pattern), re.compile(word.allowed)) for word in WORDS]


def files(root, skipped=frozenset(SKIPPED), skipped_folders=frozenset(SKIPPED_FOLDERS)):
    for folder in FOLDERS:
        top = root / folder
        for path in [top] if top.is_file() else sorted(top.rglob("*")):
            name = path.relative_to(root)
            if (path.is_file() and path.suffix in SUFFIXES and name.as_posix() not in skipped
                    and not skipped_folders & set(name.parts[:-1])):
                yield name.as_posix(), path


@functools.cache  # a tree has far fewer parts than places that hold one
def words_of(part):
    return [(word, allowed) for word, pattern, allowed in PATTERNS if pattern.fullmatch(part)]


def findings(root):
    """Every (file, line, text of the word, Word) of the tree under `root`."""
    for name, path in files(root):
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for number, line in enumerate([name, *text.splitlines()]):  # the file's own name counts as its line 0
            if FORMER.search(line):
                continue
            for match in PART.finditer(line):
                for word, allowed in words_of(match.group().lower()):
                    if name.startswith(word.within) and not allowed.search(line):
                        yield name, number, match.group(), word


HABIT_PATTERNS = [(habit.name, re.compile(habit.pattern, re.IGNORECASE)) for habit in HABITS]
# A comment, or a string, of C++: what is found first at a place wins, so that `//` in a string begins no comment.
CPP = re.compile(r'R"(?P<raw>[^(\s]*)\((?P<rawtext>.*?)\)(?P=raw)"|"(?P<string>(?:\\.|[^"\\\n])*)"|\'(?:\\.|[^\'\\\n])+\''
                 r'|//[/!<]*(?P<line>[^\n]*)|/\*(?P<block>.*?)\*/', re.DOTALL)
HASH = re.compile(r"(?:^|\s)#+ ?(.*)$")


def lines_from(text, first, after_code=False):
    """(line number, text, whether code precedes it) of each line of a piece of prose that begins in line `first`."""
    return [(first + index, line.strip(" *#/|"), after_code and index == 0) for index, line in enumerate(text.split("\n"))]


def joined(pieces):
    """Puts dots before `of` at the beginning of a wrapped line, which is no habit."""
    before = None
    for number, text, after_code in pieces:
        wrapped = before == number - 1 and not after_code
        yield number, (f"... {text}" if wrapped and text[:3].lower() == "of " else text)
        before = number if text else None


def of_cpp(text):
    # A string of one word is a part of a sentence that code puts together, and no prose.
    for match in CPP.finditer(text):
        for group in ("rawtext", "string", "line", "block"):
            words = match.group(group)
            if words and (group != "string" or " " in words.strip()):
                code = text[text.rfind("\n", 0, match.start()) + 1:match.start()]
                words = f"...{words}" if group == "string" and words[0] == " " else words  # continues a sentence
                yield from lines_from(words, text.count("\n", 0, match.start(group)) + 1, bool(code.strip()))


def of_python(text):
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield from lines_from(token.string, token.start[0], bool(token.line[:token.start[1]].strip()))
        elif token.type == tokenize.STRING and " " in token.string.strip("'\" "):
            yield from lines_from(re.sub(r"^\w*(\"\"\"|'''|\"|')|(\"\"\"|'''|\"|')$", "", token.string), token.start[0])


def of_markdown(text):
    fenced = False
    for number, line in enumerate(text.split("\n"), 1):
        if line.startswith("```"):
            fenced = not fenced
        elif not fenced:
            for part in line.strip("| ").split(" | ") if line.startswith("|") else [line]:
                yield number, part.strip(), False


def of_hashes(text):
    for number, line in enumerate(text.split("\n"), 1):
        comment = HASH.search(line)
        if comment:
            yield number, comment.group(1), bool(line[:comment.start()].strip())
        words = re.search(r"""(?:title|words|note|reason|echo|say|description)\W+(\w.*)$""", line)
        if words and not comment:
            yield number, words.group(1), False


def prose(name, text):
    """(line number, text) of each line of prose in a file."""
    suffix = name[name.rfind("."):] if "." in name.rsplit("/", 1)[-1] else ""
    if suffix in (".h", ".cpp", ".cu", ".cuh", ".in"):
        return joined(of_cpp(text))
    if suffix == ".md":
        return joined(of_markdown(text))
    if suffix == ".py" or text.startswith("#!/usr/bin/env python3"):
        return joined(of_python(text))
    return joined(of_hashes(text))


def habits_of(name, text):
    """(line number, name of the habit, line) of each line of a file with a habit; a line counts once for each habit."""
    found = set()
    for number, line in prose(name, text):
        for habit, pattern in HABIT_PATTERNS:
            if pattern.search(line):
                found.add((number, habit, line))
    return sorted(found)


def habit_lines(root):
    """The (file, line, text) of each line with a habit, by the habit's name."""
    found = {habit.name: [] for habit in HABITS}
    for name, path in files(root, RULES, GENERATED_FOLDERS):
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for number, habit, line in habits_of(name, text):
            found[habit].append((name, number, line))
    return found


def judged_habits(found):
    """The number of habits with too many lines; prints these, and the ones whose number can be lowered."""
    errors = 0
    for habit in HABITS:
        count = len(found[habit.name])
        if count > habit.most:
            errors += 1
            print(f"ci/check_words.py: error: {count} lines have the habit `{habit.name}`, {habit.most} are allowed [habits]\n"
                  f"    write: {habit.write}; ci/check_words.py --habit {habit.name} prints the lines")
        elif count < habit.most:
            print(f"ci/check_words.py: {count} lines have the habit `{habit.name}`, {habit.most} are allowed; run --lower")
    return errors


def lowered(script, counts):
    """The text of this script with the number of each habit that `counts` has fewer lines of."""
    return re.sub(r'(?m)^    Habit\("(\w+)", (\d+),',
                  lambda row: f'    Habit("{row[1]}", {min(int(row[2]), counts[row[1]])},', script)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", action="store_true", help="print the number of findings of each folder")
    parser.add_argument("--habit", choices=[habit.name for habit in HABITS], help="print the lines of a habit")
    parser.add_argument("--lower", action="store_true", help="write smaller numbers into ci/habits.toml")
    parser.add_argument("root", nargs="?", default=pathlib.Path(__file__).resolve().parent.parent, type=pathlib.Path)
    arguments = parser.parse_args()
    lines = habit_lines(arguments.root)
    if arguments.habit:
        for name, number, text in lines[arguments.habit]:
            print(f"{name}:{number}: {text}")
        return 0
    if arguments.lower:
        script = pathlib.Path(__file__)
        counts = {name: len(found) for name, found in lines.items()}
        script.write_text(lowered(script.read_text(encoding="utf-8"), counts), encoding="utf-8")
        return 0
    found = list(findings(arguments.root))
    if arguments.count:
        counts = collections.Counter("/".join(name.split("/")[:3]) for name, *_ in found)
        for folder, count in sorted(counts.items()):
            print(f"{count:6} {folder}")
    else:
        for name, number, text, word in found:
            print(f"{name}:{number}: error: `{text}` [words]\n    instead: {word.instead}")
    errors = len(found) + judged_habits(lines)
    print(f"check_words: {errors} errors")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
