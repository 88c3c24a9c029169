#!/usr/bin/env python3
"""Holds lib/ to the lock-step rule: no expression decides whether a rank calls a collective. Ranks that hold different
values would otherwise not call the same ones, and wait for each other.

Usage: check_collectives.py [ROOT] [--list]. Prints every violation as `file:line: error: what` and exits 1 if there is
one. --list prints the functions that count as collectives and exits 0.

Which functions are collectives is found, not declared: the functions of ProcessGroup below, and every function of lib/ whose
body calls one. If the text does not contain a receiver's type, a call counts if all functions of that name are
collectives. Lambdas belong to the function around them.
"""

import dataclasses
import pathlib
import re
import sys

import check_layers

# The collectives of lib/comm/process_group.h. `split` and `on` have namesakes: they count if a group is the receiver.
CALLS = frozenset({"all_gather", "all_gather_async", "reduce_scatter", "all_reduce", "broadcast", "ring_exchange",
                   "all_to_all", "barrier"})
OF_GROUPS = re.compile(r"\b(?:world|group|host|ranks|replicas)\w*(?:\(\))?(?:\.|->)(on|split)\s*\(")
# NCCL's own functions, not ProcessGroup's.
FOREIGN = re.compile(r"\b(?:api\(\)\.|std::)$")

REMEDY = "take its result in a statement of its own, which every rank reaches, and decide with that"
BRACKET = re.compile(r"[][(){}]")
CALL = re.compile(r"\b([A-Za-z_]\w*)\s*\(")
VARIABLE = re.compile(r"\b([A-Z]\w*)(?:\s+\w+|>)\s*[({]")
CONTROL = frozenset({"if", "for", "while", "switch", "catch", "return", "sizeof", "alignof", "decltype", "noexcept",
                     "static_assert", "requires", "constexpr", "operator"})
SHORT_CIRCUIT = re.compile(r"\s(&&|\|\||\?)\s")
OWN_RANK = re.compile(r"\b(?:own_)?rank_?(?:\(\))?\s(?:==|!=|<|>|<=|>=)\s"
                      r"|\s(?:==|!=)\s(?:\w+(?:\.|->))?rank_?(?:\(\))?[\s)]")


@dataclasses.dataclass(frozen=True)
class Function:
    owner: str  # its class, or empty
    name: str
    path: str
    begin: int  # beginning of its body, with the initialisers of a constructor
    end: int


@dataclasses.dataclass(frozen=True)
class Finding:
    path: str
    line: int
    what: str

    def __str__(self):
        return f"{self.path}:{self.line}: error: {self.what} [collectives]\n    remedy: {REMEDY}"


def blanked(text):
    """`text` without comments, literals and preprocessor lines; positions and lines stay."""
    code = check_layers.without_comments(text, literals=True)
    return re.sub(r"(?m)^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda line: re.sub(r"[^\n]", " ", line.group()), code)


def closing(code, opening):
    """The position of the bracket that closes the one at `opening`, or the end."""
    depth = 0
    for bracket in BRACKET.finditer(code, opening):
        depth += 1 if bracket.group() in "([{" else -1
        if depth == 0:
            return bracket.start()
    return len(code)


def functions(path, code):
    """Every function defined in `code`, as clang-format lays them out: the brace of a body stands behind a blank."""
    at, begin = 0, 0
    classes = []  # (name, end) of those around
    while at < len(code):
        char = code[at]
        if char in ";}":
            begin = at + 1
        elif char == "(" or (char == "{" and (code[at - 1].isalnum() or code[at - 1] in "_>")):
            at = closing(code, at)  # parameters, or an initialiser
        elif char == "{":
            header = code[begin:at]
            call = next((match for match in CALL.finditer(header) if match.group(1) not in CONTROL), None)
            scope = re.search(r"\b(?:class|struct|namespace|enum|union)\b[^()]*$", header)
            if scope or call is None or "=" in header[:call.start()]:
                named = re.search(r"\b(?:class|struct)\s+(?:alignas\s*)?(\w+)", header)
                if named:
                    classes.append((named.group(1), closing(code, at)))
                elif not scope or "enum" in scope.group():
                    at = closing(code, at)  # a table
                begin = at + 1
            else:
                end = closing(code, at)
                classes = [known for known in classes if known[1] > at]
                qualifier = re.search(r"(\w+)::~?$", header[:call.start()])
                owner = qualifier.group(1) if qualifier else classes[-1][0] if classes else ""
                yield Function(owner, call.group(1), path, begin + call.end(), end)
                at = end
                begin = at + 1
        at += 1


class Collectives:
    """Which of lib/'s functions are collectives, and the places of their calls."""

    def __init__(self, sources):
        self.sources = sources
        self.functions = [function for path, code in sources.items() for function in functions(path, code)]
        self._by_name = {}
        for function in self.functions:
            self._by_name.setdefault(function.name, []).append(function)
        self._calls = {function: list(self._read_calls(function)) for function in self.functions}
        self.found = set()
        while True:
            more = {function for function in self.functions if function not in self.found and any(self.calls(function))}
            if not more:
                break
            self.found |= more

    def _meant(self, caller, name, before):
        """The functions that a call of `name` behind the text `before` may mean."""
        all_of_it = self._by_name.get(name, [])
        qualifier = re.search(r"(\w+)::$", before)
        if qualifier:
            return [f for f in all_of_it if f.owner in ("", qualifier.group(1))]
        if re.search(r"(?:\.|->)$", before):
            return [f for f in all_of_it if f.owner and f != caller]
        own = [f for f in all_of_it if caller.owner and f.owner == caller.owner]
        return own or [f for f in all_of_it if not f.owner]

    def _read_calls(self, function):
        """(name, position, functions that may be meant) of what the body of `function` calls; none are meant if the
        call is a group's own."""
        code = self.sources[function.path]
        for match in CALL.finditer(code, function.begin, function.end):
            name, before = match.group(1), code[max(0, match.start() - 80):match.start()]
            if name in CONTROL or FOREIGN.search(before):
                continue
            meant = self._meant(function, name, before)
            if name in CALLS or meant:
                yield name, match.start(), () if name in CALLS else meant
        for match in OF_GROUPS.finditer(code, function.begin, function.end):
            yield match.group(1), match.start(1), ()
        # A variable of a class, whose constructor is called.
        for match in VARIABLE.finditer(code, function.begin, function.end):
            makers = [f for f in self._by_name.get(match.group(1), []) if f.owner == f.name]
            if makers:
                yield match.group(1), match.start(1), makers

    def calls(self, function):
        """(name, position) of every collective that the body of `function` calls."""
        for name, position, meant in self._calls[function]:
            if all(f in self.found for f in meant):
                yield name, position


def operands_around(code, position, begin, end):
    """What decides whether, or with what else, the call at `position` is evaluated: an operator of the expressions
    around it, or the keyword of the condition that it is part of, or nothing."""
    def before():
        skipping = False  # behind a comma are other arguments
        at = position - 1
        while at >= begin:
            char = code[at]
            if char in ")]":
                depth = 0
                while at >= begin:
                    depth += (code[at] in ")]") - (code[at] in "([")
                    if depth == 0:
                        break
                    at -= 1
            elif char in "{};":
                return
            elif char in "([":
                skipping = False
                keyword = re.search(r"\b(if|while|for|switch)\s*(?:constexpr\s*)?$", code[max(0, at - 20):at])
                if char == "(" and keyword:
                    # The range of a for is taken once, whatever it holds.
                    if keyword.group(1) != "for":
                        yield keyword.group(1)
                    return
            elif char == ",":
                skipping = True
            elif not skipping and (match := SHORT_CIRCUIT.match(code, at - 1)):
                yield match.group(1)
            at -= 1

    def after():
        skipping = False
        at = closing(code, code.index("(", position)) + 1
        while at < end:
            char = code[at]
            if char in "([{":
                at = closing(code, at)
            elif char in ";}":
                return
            elif char in ")]":
                skipping = False
            elif char == ",":
                skipping = True
            elif not skipping and (match := SHORT_CIRCUIT.match(code, at - 1)):
                yield match.group(1)
            at += 1

    return next(before(), None) or next(after(), None)


def branches_on_rank(code, begin, end):
    """(begin, end) of what only ranks of some number reach."""
    for match in re.finditer(r"\bif\s*\(", code[begin:end]):
        opening = begin + match.end() - 1
        condition_end = closing(code, opening)
        if not OWN_RANK.search(code[opening:condition_end + 1]):
            continue
        at = condition_end + 1
        while True:
            body = re.compile(r"\s*").match(code, at).end()
            stop = closing(code, body) if code[body] == "{" else code.index(";", body)
            yield body, stop
            other = re.compile(r"\s*else\b").match(code, stop + 1)
            if other is None:
                break
            at = other.end()


def check(root):
    tree = check_layers.Tree(root)
    collectives = Collectives({path: blanked(text) for path, text in tree.sources() if path.startswith("lib/")})
    findings = set()
    for function in collectives.functions:
        code = collectives.sources[function.path]
        branches = list(branches_on_rank(code, function.begin, function.end))
        for name, position in collectives.calls(function):
            line = check_layers.line_of(code, position)
            if operator := operands_around(code, position, function.begin, function.end):
                findings.add(Finding(function.path, line, f"collective `{name}` in an expression with `{operator}`"))
            if any(begin <= position < end for begin, end in branches):
                findings.add(Finding(function.path, line, f"collective `{name}` in a branch on this rank's number"))
    names = sorted({"::".join(filter(None, (f.owner, f.name))) for f in collectives.found})
    return names, sorted(findings, key=lambda finding: (finding.path, finding.line))


def main():
    arguments = [argument for argument in sys.argv[1:] if argument != "--list"]
    root = arguments[0] if arguments else pathlib.Path(__file__).resolve().parent.parent
    names, findings = check(root)
    if "--list" in sys.argv:
        print("\n".join(names))
        return 0
    for finding in findings:
        print(finding)
    print(f"check_collectives: {len(findings)} errors, {len(names)} collectives")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
