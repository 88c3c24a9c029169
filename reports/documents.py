"""Documents from files. They are checked once, when they are read, so that all other code may rely on their types.

A shape describes a value. It is a `Leaf`; a list with the shape of every item; or a mapping with the shapes of keys. A
key whose name ends in `?` is optional, keys that are not named are allowed, and "*" stands for every key.
"""

import dataclasses
import errno
import gzip
import json
import os
import pathlib
import re
import stat
from collections.abc import Callable, Iterable
from typing import Any

MOST_DEPTH = 64
MOST_BYTES = 512 << 20  # kMostDocumentBytes of lib/harness/cell/regular_file.h
# Above every real figure, and small enough that sums, squares and the margins of a plot's axis stay finite.
GREATEST = 1e100


class Malformed(ValueError):
    """The text is no valid document, or not one of the expected shape. `record` names the part that is wrong."""

    def __init__(self, text: str, record: str = "") -> None:
        super().__init__(text)
        self.record = record

    @property
    def located(self) -> str:
        return f"{self.record}: {self}" if self.record else str(self)


@dataclasses.dataclass(frozen=True)
class Leaf:
    words: str
    fits: Callable[[Any], bool]


def _is_number(value: Any) -> bool:
    kind = type(value)
    return (kind is float or kind is int) and -GREATEST <= value <= GREATEST


def _is_integer(value: Any) -> bool:
    return type(value) is int and -(2**63) <= value < 2**63


def _is_plain(value: Any, depth: int = 8) -> bool:
    """True for JSON that is not nested too deeply and whose numbers are finite."""
    if isinstance(value, dict):
        return depth > 0 and all(_is_plain(inner, depth - 1) for inner in value.values())
    if isinstance(value, list):
        return depth > 0 and all(_is_plain(inner, depth - 1) for inner in value)
    return value is None or type(value) in (str, bool) or _is_number(value)


TEXT = Leaf("text", lambda value: type(value) is str)
TEXT_OR_NULL = Leaf("text or null", lambda value: value is None or type(value) is str)
FLAG = Leaf("true or false", lambda value: type(value) is bool)
FLAG_OR_NULL = Leaf("true, false or null", lambda value: value is None or type(value) is bool)
INTEGER = Leaf("an integer", _is_integer)
COUNT = Leaf("an integer from 0 on", lambda value: _is_integer(value) and value >= 0)
NUMBER = Leaf("a finite number", _is_number)
NUMBER_OR_NULL = Leaf("a finite number or null", lambda value: value is None or _is_number(value))
NOT_NEGATIVE = Leaf("a number from 0 on", lambda value: _is_number(value) and value >= 0)
LIST = Leaf("a list", lambda value: type(value) is list)
SCALAR = Leaf("text, a number, a switch or null", lambda value: _is_plain(value, 0))
PLAIN = Leaf("text, finite numbers, and lists and objects of few levels", _is_plain)


def one_of(*words: str) -> Leaf:
    return Leaf(f"one of {', '.join(words)}", lambda value: type(value) is str and value in words)


class _Misfit(Exception):
    """A part that does not have its shape. `path` is made on the way out, since nearly all values fit."""

    def __init__(self, message: str, key: str = "") -> None:
        super().__init__(message)
        self.path: list[str | int] = [key] if key else []


def misfit(value: Any, shape: Any, path: str = "") -> str:
    """The message about the first part of `value` that does not have the shape, or an empty text."""
    try:
        _demand(value, shape)
    except _Misfit as fault:
        for key in reversed(fault.path):
            path = f"{path}[{key}]" if isinstance(key, int) else step(path, key)
        return f"{f'`{path}`' if path else 'it'} {fault}"
    return ""


def _demand(value: Any, shape: Any) -> None:
    if isinstance(shape, Leaf):
        if not shape.fits(value):
            raise _wrong(shape.words, value)
    elif isinstance(shape, list):
        if type(value) is not list:
            raise _wrong("a list", value)
        _demand_all(enumerate(value), shape[0])
    elif type(value) is not dict:
        raise _wrong("an object", value)
    elif "*" in shape:
        _demand_all(value.items(), shape["*"])
    else:
        for name, inner in shape.items():
            key = name.removesuffix("?")
            if key in value:
                _demand_all([(key, value[key])], inner)
            elif name == key:
                raise _Misfit("is missing", key)


def _demand_all(items: Iterable[tuple[str | int, Any]], shape: Any) -> None:
    for key, value in items:
        try:
            _demand(value, shape)
        except _Misfit as fault:
            fault.path.append(key)
            raise


def _wrong(expected: str, value: Any) -> _Misfit:
    return _Misfit(f"must be {expected}, but is {described(value)}")


def step(path: str, key: str) -> str:
    plain = key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else f'"{short(key)}"'
    return f"{path}.{plain}" if path else plain


def short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."


def described(value: Any) -> str:
    """A description of a value for messages: `the text "x"`, `the number 3`, `a list of 2`."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'the text "{short(value)}"'
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return f"an object of {len(value)} member{'s' * (len(value) != 1)}"
    return f"the number {short(str(value))}"


# --- reading ----------------------------------------------------------------------------------------------------------------

# Marks of writing direction, line separators, surrogates and noncharacters.
_INVISIBLE = "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff\ufffe\uffff"
# These, and all control characters except tab and line feed.
_HIDDEN = re.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f{_INVISIBLE}]")
# The forms in which hidden characters can occur in JSON; a document without a match, as most are, needs no cleaning.
_MAY_HIDE = re.compile(rf"\\[bfru]|[\x7f-\x9f{_INVISIBLE}]")


def printable(text: str) -> str:
    """`text` with escapes, such as `\\x1b`, for characters that are invisible or that control a terminal."""
    return _HIDDEN.sub(lambda found: _shown(ord(found[0])), text)


def one_line(text: str) -> str:
    """printable() on one line: line feeds and tabs become escapes too."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def _shown(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}"


def read_text(path: pathlib.Path) -> str:
    """The text of a regular file, expanded if gzip compressed it. Raises OSError, EOFError, zlib.error or
    UnicodeDecodeError; a pipe, which may never end, and more than MOST_BYTES are an OSError."""
    # O_NONBLOCK: a pipe in the file's place opens at once.
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a file but a pipe or a device; copy its content to a file")
        packed = file.peek(2)[:2] == b"\x1f\x8b"
        content = (gzip.GzipFile(fileobj=file) if packed else file).read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise OSError(errno.EFBIG, f"{'expands to ' * packed}more than {MOST_BYTES} bytes, the most that is read of such a file")
    return content.decode("utf-8")


def parsed(text: str) -> Any:
    """The JSON document in `text`, with all texts printable. Raises Malformed."""
    try:
        document = json.loads(text, parse_int=integer)
    except json.JSONDecodeError as error:
        raise Malformed(f"is not JSON: {error.msg} (column {error.colno})", f"line {error.lineno}") from error
    except RecursionError:
        raise Malformed(f"is nested deeper than {MOST_DEPTH} levels") from None
    return cleaned(document) if _MAY_HIDE.search(text) else document


def integer(digits: str) -> int | float:
    """Parses an integer for the JSON decoder. Long ones become floats, because Python refuses to print huge
    integers."""
    return int(digits) if len(digits) < 19 else float(digits)


def cleaned(value: Any, depth: int = 0) -> Any:
    """`value` with printable texts."""
    if depth > MOST_DEPTH:
        raise Malformed(f"is nested deeper than {MOST_DEPTH} levels")
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list):
        return [cleaned(inner, depth + 1) for inner in value]
    if isinstance(value, dict):
        return {printable(key): cleaned(inner, depth + 1) for key, inner in value.items()}
    return value
