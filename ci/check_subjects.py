#!/usr/bin/env python3
"""Holds commit subjects to the form that lib/extending.md gives: `area: what changed`.

Usage: check_subjects.py [RANGE]. Checks the commits of RANGE, or all that follow the commit below; merges are left out. An
area is a file or folder of the tree, named from the top, from ci/, lib/ or lib/harness/; several are separated by commas.
Prints every violation as `commit: error: what` and exits 1 if there is one.
"""

import functools
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SINCE = "254247a9230b67065154bd207d3e29d02b10893c"  # earlier subjects are as they are
LONGEST = 120
SUBJECT = re.compile(r"(?P<areas>[\w./-]+(?:, [\w./-]+)*): (?P<what>.+)")


@functools.cache  # most commits have most files
def areas_of_file(name):
    names = [name, *(name[len(top):] for top in ("lib/harness/", "lib/", "ci/") if name.startswith(top))]
    return {*names, *(re.sub(r"(?<=[^/])\.[^/]*$", "", name) for name in names)}


def areas_of(commit):
    """What a subject may name in the tree of `commit`: files, also without what follows their first dot, and folders."""
    return set().union(*map(areas_of_file, git("ls-tree", "-r", "-t", "--name-only", commit).stdout.splitlines()))


def faults(subject, areas):
    match = SUBJECT.fullmatch(subject)
    if not match:
        return [f"`{subject}` is not of the form `area: what changed`"]
    found = []
    for area in match["areas"].split(", "):
        if area not in areas:
            found.append(f"`{area}` is no file or folder of the top, of ci/, lib/ or lib/harness/")
    if len(subject) > LONGEST:
        found.append(f"{len(subject)} characters, and {LONGEST} are allowed")
    if match["what"].endswith("."):
        found.append("a subject ends without a full stop")
    return found


def is_merge(commit):
    """Also if a shallow clone hides the parents from git log."""
    header = git("cat-file", "-p", commit).stdout.partition("\n\n")[0]
    return len(re.findall(r"(?m)^parent ", header)) > 1


def git(*arguments):
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


def main():
    if "--help" in sys.argv or len(sys.argv) > 2:
        print(__doc__)
        return 0 if "--help" in sys.argv else 2
    if git("rev-parse", "--git-dir").returncode != 0:
        print("check_subjects: this tree is no clone, so it has no subjects")
        return 0
    commits = sys.argv[1] if len(sys.argv) == 2 else f"{SINCE}..HEAD"
    is_shallow = len(sys.argv) == 1 and git("cat-file", "-e", SINCE).returncode != 0
    if is_shallow:
        commits = "HEAD~1..HEAD" if git("cat-file", "-e", "HEAD~1").returncode == 0 else "HEAD"
    listed = git("log", "--no-merges", "--format=%h%x09%s", commits)
    if listed.returncode != 0:
        print(f"check_subjects: error: {listed.stderr.strip()}", file=sys.stderr)
        return 2
    errors = 0
    for line in listed.stdout.splitlines():
        commit, _, subject = line.partition("\t")
        if is_shallow and is_merge(commit):
            continue
        for fault in faults(subject, areas_of(commit)):
            print(f"{commit}: error: {fault}")
            errors += 1
    print(f"check_subjects: {errors} errors")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
