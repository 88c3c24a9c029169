#!/usr/bin/env python3
"""Holds names, comments, messages and documents to the words of the field.

Usage: check_words.py [--count] [ROOT]. Prints every word of the table below that the tree uses as a term of its own, as
`file:line: error: what`, with the word that PyTorch FSDP, Transformer Engine, NCCL or CUDA have for it, and exits 1 if
there is one. A line that says `former` is left out: files that earlier versions wrote keep their names. --count prints
the number of findings of each folder. The glossary is lib/glossary.md.
"""

import argparse
import collections
import dataclasses
import functools
import pathlib
import re
import sys


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
FOLDERS = ("lib", "bench", "scenarios", "correctness", "reports", "ci", "README.md")
# The table itself, its test, and the glossary; what was measured keeps the words of its day.
SKIPPED = {"ci/check_words.py", "ci/test_check_words.py", "lib/glossary.md"}
SKIPPED_FOLDERS = {"__pycache__", "corpus", "measured"}
SUFFIXES = {".h", ".cpp", ".cu", ".cuh", ".py", ".md", ".yaml", ".yml", ".toml", ".txt", ".cmake", ".sh", ""}
PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
FORMER = re.compile(r"(?i)former")
PATTERNS = [(word, re.compile(word.pattern), re.compile(word.allowed)) for word in WORDS]


def files(root):
    for folder in FOLDERS:
        top = root / folder
        for path in [top] if top.is_file() else sorted(top.rglob("*")):
            name = path.relative_to(root)
            if (path.is_file() and path.suffix in SUFFIXES and name.as_posix() not in SKIPPED
                    and not SKIPPED_FOLDERS & set(name.parts[:-1])):
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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", action="store_true", help="print the number of findings of each folder")
    parser.add_argument("root", nargs="?", default=pathlib.Path(__file__).resolve().parent.parent, type=pathlib.Path)
    arguments = parser.parse_args()
    found = list(findings(arguments.root))
    if arguments.count:
        counts = collections.Counter("/".join(name.split("/")[:3]) for name, *_ in found)
        for folder, count in sorted(counts.items()):
            print(f"{count:6} {folder}")
    else:
        for name, number, text, word in found:
            print(f"{name}:{number}: error: `{text}` [words]\n    instead: {word.instead}")
    print(f"check_words: {len(found)} errors")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
