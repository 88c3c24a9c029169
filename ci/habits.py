"""Counts habits that make a reader read a sentence twice, in documents, comments and texts of the program.

A habit is a pattern and not a grammar: some lines that it finds are good English. So no line is an error by itself. The
file `ci/habits.toml` has the number of lines of each habit, and check_words.py fails if the tree has more.
"""

import dataclasses
import io
import re
import tokenize


@dataclasses.dataclass(frozen=True)
class Habit:
    name: str
    pattern: str  # of a line of prose, in any case
    write: str


HABITS = (
    Habit("where", r"(?<!\bplace )(?<!\bplaces )(?<!\bline )(?<!\bfolder )(?<!\bpoint )(?<!\bsee )(?<!\bshows )(?<!\bshow )"
                   r"(?<!\bsays )(?<!\bsay )(?<!\bis )(?<!\bare )(?<!\bfrom )(?<!\bto )(?<!\bwhat, )(?<!\| )\bwhere\b(?!:)",
          "if, when"),
    Habit("bare_of", r"^(of|Of)\b", "name the noun: `Bytes of ...`"),
    Habit("code_that_speaks", r"\b(asks|knows|says|wants|answers|heeds|tells)\b", "returns, contains, requires, prints, names"),
    Habit("that_of", r"\b(that|those) of\b", "repeat the noun"),
    Habit("alone", r"(?<!\brun )(?<!\bruns )(?<!\bran )(?<!\bstands )(?<!\bstand )(?<!\bcompiles )\balone\b", "only"),
    Habit("beside", r"\bbesides?\b", "next to, compared with, in addition to"),
    Habit("old_words", r"\banew\b|\bnobody\b|\bin vain\b|\bheed|\bmend(s|ed|ing)?\b|\bspeaks? of\b|\bstands? in\b|\b(is|are|was|were) of\b",
          "again, no one, without result, use, fix, covers, is in, belongs to"),
    Habit("but_for", r"\bbut for\b|\bin any case\b|\bas many\b|\bone that\b|\bones that\b|\bwhat an? \w+ has\b",
          "except, always, the same number, name the thing"),
)
PATTERNS = [(habit.name, re.compile(habit.pattern, re.IGNORECASE)) for habit in HABITS]
# A comment, or a string, of C++: what is found first at a place wins, so that `//` in a string begins no comment.
CPP = re.compile(r'R"(?P<raw>[^(\s]*)\((?P<rawtext>.*?)\)(?P=raw)"|"(?P<string>(?:\\.|[^"\\\n])*)"|\'(?:\\.|[^\'\\\n])+\''
                 r'|//[/!<]*(?P<line>[^\n]*)|/\*(?P<block>.*?)\*/', re.DOTALL)
HASH = re.compile(r"(?:^|\s)#+ ?(.*)$")


def lines_from(text, first):
    """(line number, text) of each line of a piece of prose that begins in line `first`."""
    return [(first + index, line.strip(" *#/|")) for index, line in enumerate(text.split("\n"))]


def joined(pieces):
    """Leaves `of` at the beginning of a line only if the line before it has no prose, since a wrapped line is no habit."""
    before = None
    for number, text in pieces:
        yield number, (f"... {text}" if before == number - 1 and text[:3].lower() == "of " else text)
        before = number if text else None


def of_cpp(text):
    for match in CPP.finditer(text):
        for group in ("rawtext", "string", "line", "block"):
            if match.group(group):
                yield from lines_from(match.group(group), text.count("\n", 0, match.start(group)) + 1)


def of_python(text):
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield from lines_from(token.string, token.start[0])
        elif token.type == tokenize.STRING and " " in token.string:
            yield from lines_from(re.sub(r"^\w*(\"\"\"|'''|\"|')|(\"\"\"|'''|\"|')$", "", token.string), token.start[0])


def of_markdown(text):
    fenced = False
    for number, line in enumerate(text.split("\n"), 1):
        if line.startswith("```"):
            fenced = not fenced
        elif not fenced:
            for part in line.strip("| ").split(" | ") if line.startswith("|") else [line]:
                yield number, part.strip()


def of_hashes(text):
    for number, line in enumerate(text.split("\n"), 1):
        comment = HASH.search(line)
        if comment:
            yield number, comment.group(1)
        words = re.search(r"""(?:title|words|note|reason|echo|say|description)\W+(\w.*)$""", line)
        if words and not comment:
            yield number, words.group(1)


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


def findings(name, text):
    """(line number, name of the habit, line) of each line of a file with a habit; a line counts once for each habit."""
    found = set()
    for number, line in prose(name, text):
        for habit, pattern in PATTERNS:
            if pattern.search(line):
                found.add((number, habit, line))
    return sorted(found)
