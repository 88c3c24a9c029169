"""Checks of documents against JSON Schemas, by fastjsonschema, with messages for readers."""

import functools
import json
import re
from typing import Any

import fastjsonschema
from documents import described, short

# Above every real figure, and small enough that sums, squares and the margins of a plot's axis stay finite.
GREATEST = 1e100
_BOUNDS = {"number": (-GREATEST, GREATEST), "integer": (-(2**63), 2**63 - 1)}
_WORDS = {"string": "text", "boolean": "true or false", "null": "null", "array": "a list", "object": "an object"}

TEXT = {"type": "string"}
FLAG = {"type": "boolean"}
COUNT = {"type": "integer", "minimum": 0}
INTEGER = {"type": "integer"}
LIST = {"type": "array"}
OBJECT = {"type": "object"}


def members(required: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    """The schema of an object that has these members; it may have others."""
    return {"type": "object", "required": [*required], "properties": required | (optional or {})}


class Shape:
    """A schema, with the definitions that it names."""

    def __init__(self, schema: dict[str, Any], definitions: dict[str, Any] | None = None) -> None:
        self._schema = {**schema, "$defs": definitions or {}}

    @functools.cached_property
    def _check(self) -> Any:
        return fastjsonschema.compile(_for_reading(self._schema), use_default=False)

    def fault(self, value: Any, path: str = "") -> str:
        """The message about the first part of `value` that does not have the shape, or an empty text."""
        try:
            self._check(value)
        except fastjsonschema.JsonSchemaValueException as error:
            return _message(value, error, path)
        return ""


def _for_reading(schema: Any) -> Any:
    """The schema without refusals of members that a newer program may have added, and with bounds of every number."""
    if isinstance(schema, list):
        return [_for_reading(inner) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    out = {key: _for_reading(inner) for key, inner in schema.items() if key not in ("$schema", "$id")}
    if out.get("additionalProperties") is False:
        del out["additionalProperties"]
    types = out.get("type")
    for kind in types if isinstance(types, list) else [types]:
        if isinstance(kind, str) and kind in _BOUNDS:
            out.setdefault("minimum", _BOUNDS[kind][0])
            out.setdefault("maximum", _BOUNDS[kind][1])
    return out


def _message(value: Any, error: Any, path: str) -> str:
    keys, part = _place(value, error.name)
    if error.rule == "required":
        keys.append(next(key for key in error.rule_definition if key not in part))
    for key in keys:
        path = f"{path}[{key}]" if isinstance(key, int) else step(path, key)
    about = f"`{path}`" if path else "it"
    if error.rule == "required":
        return f"{about} is missing"
    return f"{about} must be {_words(error.definition)}, but is {described(part)}"


def _place(value: Any, name: str) -> tuple[list[str | int], Any]:
    """The keys from `value` to the part that fastjsonschema names, such as data.arms.after.losses[1], and the part."""
    rest, keys = name.removeprefix("data"), []
    while rest:
        if isinstance(value, list) and (index := re.match(r"\[(\d+)\]", rest)):
            keys.append(int(index[1]))
            rest = rest[index.end() :]
        elif isinstance(value, dict):
            # A key may hold the characters that separate keys.
            fitting = [key for key in value if re.match(rf"\.{re.escape(key)}(?=[.\[]|$)", rest)]
            if not fitting:
                break
            keys.append(max(fitting, key=len))
            rest = rest[1 + len(keys[-1]) :]
        else:
            break
        value = value[keys[-1]]
    return keys, value


def _words(schema: dict[str, Any]) -> str:
    if "title" in schema:
        return schema["title"]
    if "enum" in schema:
        return f"one of {', '.join(map(str, schema['enum']))}"
    if "const" in schema:
        return json.dumps(schema["const"])
    if "type" not in schema:
        return f"what the schema allows, {json.dumps(schema)}"
    words = []
    for kind in schema["type"] if isinstance(schema["type"], list) else [schema["type"]]:
        if kind in _BOUNDS:
            least = schema.get("minimum", _BOUNDS[kind][0])
            bound = f" from {least} on" if least != _BOUNDS[kind][0] else ""
            words.append({"number": "a number" if bound else "a finite number", "integer": "an integer"}[kind] + bound)
        else:
            words.append(_WORDS[kind])
    if "boolean" in (schema["type"] if isinstance(schema["type"], list) else []):
        words = ["true", "false", *(word for word in words if word != _WORDS["boolean"])]
    out = " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
    return f"{out} like {schema['pattern']}" if "pattern" in schema else out


def is_number(value: Any) -> bool:
    return type(value) in (int, float) and -GREATEST <= value <= GREATEST


def plain_fault(value: Any, path: str) -> str:
    """The message if `value` is not JSON that is shown as it is: finite numbers, and not nested deeply."""
    if _is_plain(value, 8):
        return ""
    return f"`{path}` must be text, finite numbers, and lists and objects of few levels, but is {described(value)}"


def _is_plain(value: Any, depth: int) -> bool:
    if isinstance(value, dict):
        return depth > 0 and all(_is_plain(inner, depth - 1) for inner in value.values())
    if isinstance(value, list):
        return depth > 0 and all(_is_plain(inner, depth - 1) for inner in value)
    return value is None or type(value) in (str, bool) or is_number(value)


def step(path: str, key: str) -> str:
    plain = key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else f'"{short(key)}"'
    return f"{path}.{plain}" if path else plain
