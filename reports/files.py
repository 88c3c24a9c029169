"""The files of a report. They are written as `.part` and renamed together once all are written. So no reader finds a
partial file, and an older report stays unchanged if a new one fails or is interrupted."""

import contextlib
import errno
import pathlib
import re
import signal
from collections.abc import Iterable, Iterator
from typing import Any


class Unwritable(Exception):
    """A file cannot be written; the message names it, the reason, and what to do."""


class Files:
    """A context manager. At its end the files get their final names; after an exception they are removed."""

    def __init__(self) -> None:
        self._paths: dict[pathlib.Path, None] = {}
        self._older: set[pathlib.Path] = set()
        self._made: list[pathlib.Path] = []  # directories that were made, or were about to be

    def __enter__(self) -> "Files":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        with held():
            try:
                if kind is None:
                    self._name()
            finally:
                self._remove()

    def make_directory(self, path: pathlib.Path) -> None:
        with _named_on_error(path):
            if path.is_dir():
                return
            self.make_directory(path.parent)
            self._made.append(path)  # first, since an interrupt may come as soon as it is there
            path.mkdir(exist_ok=True)

    def write(self, path: pathlib.Path, content: bytes | str) -> None:
        self.make_directory(path.parent)
        self._paths[path] = None
        with _named_on_error(path):
            part = _part(path)
            if part.is_file() and not part.is_symlink():  # an interrupted report left it
                part.unlink()
            # A link of that name is not followed, since others may write to the folder.
            with open(part, "xb") as file:
                file.write(content.encode("utf-8") if isinstance(content, str) else content)

    def replace_older(self, paths: Iterable[pathlib.Path]) -> None:
        """Takes files of an older report, which are removed at the end unless they are written again."""
        self._older.update(paths)

    def _name(self) -> None:
        self._older.difference_update(self._paths)
        while self._paths:
            path = next(iter(self._paths))
            with _named_on_error(path):
                _part(path).replace(path)
            del self._paths[path]
        self._made.clear()
        for path in self._older:
            with contextlib.suppress(OSError):
                path.unlink()

    def _remove(self) -> None:
        """Removes files that were not renamed yet, and the directories that were made for them."""
        for path in self._paths:
            with contextlib.suppress(OSError):
                _part(path).unlink()
        for directory in reversed(self._made):
            with contextlib.suppress(OSError):  # it may contain other files by now
                directory.rmdir()


def _remedy(error: OSError) -> str:
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "give another directory with -o, in which files may be made"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "make room, or give a directory on another disk with -o"
    if error.errno in (errno.EEXIST, errno.ENOTDIR, errno.EISDIR):
        return "something else of that name is in the way; move it, or give another directory with -o"
    return "give another directory with -o"


def refuse_to_replace(directory: pathlib.Path, names: tuple[str, ...], beside: str, mark: str) -> None:
    """Raises Unwritable for a file that no report made: one of `names` without `mark` near its beginning, or `beside`
    without one of `names`."""
    marked = False
    for path in (directory / name for name in names):
        if not path.is_file():  # there is none, or something that renaming replaces unread
            continue
        try:
            with path.open("rb") as file:
                beginning = file.read(4096)
        except OSError:  # writing it will say what is wrong
            continue
        if beginning and mark.encode() not in beginning:
            raise _not_ours(path)
        marked = True
    if not marked and (directory / beside).exists():
        raise _not_ours(directory / beside)


def _not_ours(path: pathlib.Path) -> Unwritable:
    return Unwritable(f"{path}: exists, and no report made it; move it, or give another directory with -o")


def figures_of(report: pathlib.Path) -> set[pathlib.Path]:
    """The figures that an older report.md links to."""
    try:
        text = report.read_text(encoding="utf-8", errors="replace") if report.is_file() else ""
    except OSError:
        return set()
    return {report.parent / "figures" / name for name in re.findall(r"\(figures/([^/()\s]+\.(?:png|svg))\)", text)}


def _part(path: pathlib.Path) -> pathlib.Path:
    return path.with_name(path.name + ".part")


@contextlib.contextmanager
def _named_on_error(path: pathlib.Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:  # the error of a failed write does not name the file
        raise Unwritable(f"{path}: cannot be written: {error.strerror}; {_remedy(error)}") from error


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Code that Ctrl-C must not interrupt: blocks SIGINT until the end of the context, at which a pending one arrives. Processes that are started inside
    inherit the block and never see an interrupt, so their parent must end them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
