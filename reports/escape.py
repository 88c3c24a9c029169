"""Escaping of text for Markdown, by the same rules as lib/harness/cell/escape.h."""

import re

from documents import printable

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
