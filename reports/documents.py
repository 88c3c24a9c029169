"""Documents from files, and their texts in a terminal and in Markdown."""

import errno
import gzip
import json
import os
import pathlib
import re
import stat
from typing import Any

MOST_DEPTH = 64
MOST_BYTES = 512 << 20  # kMostDocumentBytes of lib/harness/cell/regular_file.h


class Malformed(ValueError):
    """The text is no valid document. `record` names the part that is wrong."""

    def __init__(self, text: str, record: str = "") -> None:
        super().__init__(text)
        self.record = record

    @property
    def located(self) -> str:
        return f"{self.record}: {self}" if self.record else str(self)


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
        document = json.loads(text, parse_int=integer, parse_constant=str)  # NaN is no JSON: text, which fits no figure
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


# --- Markdown, by the same rules as lib/harness/cell/escape.h -------------------------------------------------------------

_MARKUP = re.compile(r"[\\`*\[\]|~]|(?<![^\W_])_|_(?![^\W_])")
# The beginning of a line that Markdown reads as a list, a heading, a quotation or a rule.
_BLOCK = re.compile(r"(?=[>=#]|[-+](?:[-+ ]|$))|(?<=^)(\d+)(?=[.)](?: |$))")


def _plain(text: str) -> str:
    return printable(text).replace("\n", " ").replace("\t", " ")


def markdown(text: str) -> str:
    """One line of Markdown, for a paragraph or a table, that is rendered as `text`."""
    plain = _plain(text).strip(" ")
    out = _MARKUP.sub(lambda found: "\\" + found[0], plain).replace("&", "&amp;").replace("<", "&lt;")
    block = _BLOCK.match(plain)
    return f"{block[1] or ''}\\{out[len(block[1] or ''):]}" if block and not out.startswith("\\") else out


def markdown_code(text: str) -> str:
    """One line of Markdown that is rendered as `text` in code style."""
    plain = _plain(text).replace("|", "\\|")  # Markdown splits a table into cells before it parses code
    fence = "`" * (1 + max(map(len, re.findall("`+", plain)), default=0))
    space = " " if not plain or plain.startswith("`") or plain.endswith("`") else ""
    return f"{fence}{space}{plain}{space}{fence}"
