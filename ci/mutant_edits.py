"""Edits of C++ that name a function and a pattern, and one program that holds many of them behind switches.

An edit has `file`; `function`, whose definition holds the place (absent: anywhere in the file); `old`, C++ that occurs there once;
and `new`. White space, line breaks and comments make no difference. `$name` in `old` stands for a local name, whatever it is
called, and `$name` in `new` for the same one. `bind` lists further patterns of the function, such as `int $role`, which give
names that `old` lacks. So an edit holds when a local name or the form of a line changes.
"""

import bisect
import dataclasses
import functools
import re

TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*|/\*.*?\*/|(?<![^\n])[ \t]*\#(?:\\\n|[^\n])*)
    |(?P<word>\$?[A-Za-z_]\w*)|(?P<other>R"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'
    |\.?\d(?:[eEpP][+-]|'(?=\w)|[\w.])*|::|->|<<=|[-+*/%&|^<>=!]=|\+\+|--|&&|\|\||.)""", re.VERBOSE | re.DOTALL)
OPEN, CLOSE = "([{", ")]}"
# Words that are no name of a variable. Some of them end the type of a declaration.
TYPE_WORDS = {"auto", "bool", "char", "const", "double", "float", "int", "long", "short", "signed", "unsigned", "void"}
KEYWORDS = TYPE_WORDS | {
    "break", "case", "class", "constexpr", "continue", "default", "delete", "do", "else", "enum", "explicit", "false", "for",
    "if", "inline", "mutable", "namespace", "new", "noexcept", "nullptr", "operator", "override", "return", "sizeof", "static",
    "struct", "switch", "template", "this", "throw", "true", "typename", "using", "virtual", "while", "static_cast",
    "const_cast", "dynamic_cast", "reinterpret_cast", "decltype", "public", "private", "protected", "try", "catch", "final"}


class EditError(Exception):
    """What is wrong, and in which place."""


@dataclasses.dataclass(frozen=True)
class Token:
    text: str
    begin: int
    end: int


@functools.lru_cache(maxsize=None)
def tokens_of(text):
    return tuple(Token(found.group(), found.start(), found.end()) for found in TOKEN.finditer(text)
                 if found.group("space") is None)


@dataclasses.dataclass(frozen=True)
class Function:
    """A definition: indices of the tokens of its beginning, of its `{` and of its `}`."""

    name: str
    begin: int
    opens: int
    closes: int


def closing(tokens, at):
    """The index of the bracket that closes the one at `at`."""
    depth = 0
    for i in range(at, len(tokens)):
        depth += (tokens[i].text in OPEN) - (tokens[i].text in CLOSE)
        if depth == 0:
            return i
    raise EditError(f"a bracket is not closed: `{tokens[at].text}`, character {tokens[at].begin}")


def skip_template(tokens, i):
    while tokens[i].text == "template":
        depth = 0
        for j in range(i + 1, len(tokens)):
            depth += (tokens[j].text == "<") - (tokens[j].text == ">")
            if depth == 0:
                i = j + 1
                break
    return i


def name_before(tokens, begin, opens):
    """The name of what has its parameters at `opens`, and the index of its first token."""
    for i in range(opens - 1, begin - 1, -1):
        if tokens[i].text == "operator":
            return i, "".join(one.text for one in tokens[i:opens])
    i = opens - 1
    name = tokens[i].text
    if i > begin and tokens[i - 1].text == "~":
        i, name = i - 1, "~" + name
    while i - 2 >= begin and tokens[i - 1].text == "::" and tokens[i - 2].text.isidentifier():
        i, name = i - 2, tokens[i - 2].text + "::" + name
    return i, name


def definition(tokens, begin, brace, scopes):
    """The function whose body opens at `brace`; None if the brace belongs to an initialiser."""
    parameters = None
    i = begin
    while i < brace:
        text = tokens[i].text
        if text == "operator":
            i += 1 if tokens[i + 1].text != "(" else 3
            while tokens[i].text != "(":
                i += 1
        elif text == "=" and parameters is None:
            return None
        elif text == ":" and parameters is not None and tokens[brace - 1].text not in (")", "}"):
            return None
        if tokens[i].text == "(":
            if parameters is None and tokens[i - 1].text not in ("decltype", "explicit", "alignas", "noexcept"):
                parameters = i
            i = closing(tokens, i)
        elif tokens[i].text in "{[":
            i = closing(tokens, i)
        i += 1
    if parameters is None or parameters == begin:
        return None
    own = name_before(tokens, begin, parameters)[1]
    return Function("::".join([*filter(None, scopes), own]), begin, brace, closing(tokens, brace))


@functools.lru_cache(maxsize=None)
def functions_of(text):
    """Every function that a file defines in namespaces and classes, in their order."""
    tokens, found, scopes = tokens_of(text), [], []
    i = begin = 0
    while i < len(tokens):
        at = tokens[i].text
        if at == "}":
            if scopes:
                scopes.pop()
            begin = i + 1
        elif at == ";" or (at == ":" and tokens[i - 1].text in ("public", "private", "protected")):
            begin = i + 1
        elif at in "([":
            i = closing(tokens, i)
        elif at == "{":
            first = skip_template(tokens, begin)
            words = [one.text for one in tokens[first:i]]
            if "namespace" in words[:2] or words[:1] == ["extern"]:
                scopes.append("")
            elif words and words[0] in ("class", "struct", "union"):
                scopes.append(next((one for one in words[1:] if one.isidentifier() and one != "alignas"), ""))
            else:
                function = definition(tokens, first, i, scopes)
                i = closing(tokens, i)
                if function:
                    found.append(function)
                    begin = i + 1
                i += 1
                continue
            begin = i + 1
        i += 1
    return tuple(found)


def local_names(text, function):
    """The names that a function declares: parameters, variables, structured bindings and captures. Some may be none."""
    tokens = tokens_of(text)[function.begin:function.closes + 1]
    found = set()
    for before, at, after in zip(tokens, tokens[1:], tokens[2:]):
        word = at.text
        if not re.fullmatch(r"[a-z][a-z0-9_]*(?<!_)", word) or word in KEYWORDS:
            continue
        of_type = before.text in TYPE_WORDS or (before.text.isidentifier() and before.text not in KEYWORDS)
        if of_type and after.text in ("=", ";", ",", ")", "(", "{", ":", "["):
            found.add(word)
        if before.text in (">", "&", "*", "&&") and after.text in ("=", ";", ",", ")", ":"):
            found.add(word)
        if before.text in ("[", ",") and after.text in (",", "]", "="):
            found.add(word)
    return found - {function.name.rsplit("::", maxsplit=1)[-1]}


def is_local_use(tokens, i):
    return tokens[i - 1].text not in (".", "->", "::") if i else True


def matched(pattern, tokens, at, names):
    """Names by `$name` if the pattern matches the tokens from `at` on; None otherwise."""
    if at + len(pattern) > len(tokens):
        return None
    names = dict(names)
    for i, one in enumerate(pattern):
        seen = tokens[at + i].text
        if one.text.startswith("$"):
            if not seen.isidentifier() or not seen[0].islower() or seen in KEYWORDS or not is_local_use(tokens, at + i):
                return None
            if names.setdefault(one.text, seen) != seen or list(names.values()).count(seen) > 1:
                return None
        elif one.text != seen:
            return None
    return names


@dataclasses.dataclass(frozen=True)
class Place:
    """Characters of the file that an edit replaces, by what, and the function that holds them, if one is named."""

    begin: int
    end: int
    text: str
    function: Function | None


def substituted(text, names, about):
    def name(found):
        if found.group() not in names:
            raise EditError(f"{about}: `new` has {found.group()}, which is neither in `old` nor in `bind`")
        return names[found.group()]
    return re.sub(r"\$\w+", name, text)


def places(text, edit, about):
    """Every place that an edit matches."""
    tokens, found = tokens_of(text), []
    ranges = [(None, 0, len(tokens))]
    if "function" in edit:
        ranges = [(one, one.begin, one.closes + 1) for one in functions_of(text) if one.name == edit["function"]]
        if not ranges:
            raise EditError(f"{about}: {edit['file']} defines no function `{edit['function']}`")
    pattern = tokens_of(edit["old"])
    for function, begin, end in ranges:
        within = tokens[begin:end]
        names = [{}]
        for bound in edit.get("bind", []):
            bound = tokens_of(bound)
            names = [one for given in names for one in (matched(bound, within, i, given) for i in range(len(within)))
                     if one is not None]
            names = [one for i, one in enumerate(names) if one not in names[:i]]
        for given in names:
            for i in range(len(within)):
                seen = matched(pattern, within, i, given)
                if seen is not None:
                    found.append((Place(within[i].begin, within[i + len(pattern) - 1].end, "", function), seen))
    return found


def place(text, edit, about):
    """The one place of an edit; an error if there is none or there are several."""
    found = places(text, edit, about)
    if len(found) != 1:
        range_of = f"{edit['function']} of {edit['file']}" if "function" in edit else edit["file"]
        raise EditError(f"{about}: {len(found)} places in {range_of} match `{edit['old']}`, and one should")
    one, names = found[0]
    return dataclasses.replace(one, text=substituted(edit["new"].strip(), names, about))


def planted(text, edit, about):
    """The file's text with the edit."""
    one = place(text, edit, about)
    return text[:one.begin] + one.text + text[one.end:]


def in_body(text, one):
    """Whether a place lies in the body of its function, which can be compiled once more."""
    return one.function is not None and tokens_of(text)[one.function.opens].begin <= one.begin


def switched(text, edits, variable):
    """The file with each edit behind `variable == its number`: the function's body once for each number, then as it is.

    `edits` are pairs of a number and a place, all in bodies of functions.
    """
    tokens, bodies = tokens_of(text), {}
    for number, one in edits:
        bodies.setdefault(one.function, {}).setdefault(number, []).append(one)
    for function in sorted(bodies, key=lambda one: -one.opens):
        begin, end = tokens[function.opens].begin, tokens[function.closes].end
        is_constexpr = "constexpr" in (one.text for one in tokens[function.begin:function.opens])
        branches = []
        for number, changes in bodies[function].items():
            body = text[begin:end]
            for one in sorted(changes, key=lambda one: -one.begin):
                body = body[:one.begin - begin] + one.text + body[one.end - begin:]
            guard = "!__builtin_is_constant_evaluated() && " if is_constexpr else ""
            branches.append(f"/*{number}>*/if ({guard}{variable} == {number}) {body} else /*<{number}*/")
        text = text[:begin] + "{ " + "".join(branches) + text[begin:end] + " }" + text[end:]
    return f'extern "C" int {variable};\n{text}'


def number_at(text, line):
    """The number of the edit whose branch holds a line of a file that switched() wrote; None if none does."""
    marks = [found.start() for found in re.finditer("\n", text)]
    at = marks[line - 1] if line - 1 < len(marks) else len(text)
    opens = [(found.start(), int(found.group(1))) for found in re.finditer(r"/\*(\d+)>\*/", text)]
    i = bisect.bisect(opens, (at, 0)) - 1
    if i < 0 or text.find(f"/*<{opens[i][1]}*/", opens[i][0]) < at and "\n" in text[text.find(f"/*<{opens[i][1]}*/", opens[i][0]):at]:
        return None
    return opens[i][1]
