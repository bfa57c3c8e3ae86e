"""How a node's outputs choose among what its end may add (`decide:` beside `then:`): plain tests, no code."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

_TESTS = ("equals", "contains", "matches", "above", "below", "each")

_IN_WORDS = {"above": "is above", "below": "is below"}


class Decision(Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """When a branch is taken: if what is looked at passes the test. That is the node's `output` (its only one, if none
    is named), or a `field` of it, where that is JSON: dots lead inside. `each`: one copy for each item of a list.

    >>> loop = Decision(field="score", below=7)
    >>> [loop.times({"verdict": answer}) for answer in ('{"score": 4}', '{"score": 9}', "no idea")]
    [1, 0, 0]
    >>> Decision(output="topics", each=True).times({"topics": ["sea", "sky"], "text": "two"})
    2
    """

    output: str = ""
    field: str = ""
    equals: Any | UnsetType = UNSET
    contains: str | UnsetType = UNSET
    matches: str | UnsetType = UNSET
    above: float | UnsetType = UNSET
    below: float | UnsetType = UNSET
    each: bool | UnsetType = UNSET

    def problem(self) -> tuple[str, str] | None:
        """What is wrong, and under which key."""
        given = [test for test in _TESTS if getattr(self, test) is not UNSET]
        if len(given) != 1:
            return "", f"expected one of {', '.join(_TESTS)}, found {' and '.join(given) or 'none'}"
        if self.matches is not UNSET:
            try:
                re.compile(self.matches)
            except re.error as error:
                return "matches", f"{self.matches!r} is no regular expression: {error}"
        return ("each", "expected true, or another test") if self.each is False else None

    def times(self, outputs: Mapping[str, Any]) -> int:
        """How many copies these outputs ask for; 0: the branch is not taken."""
        found = self._look(outputs)
        if self.each is not UNSET:
            return len(found) if isinstance(found, list | tuple) else 0
        return int(self._passes(found))

    def in_words(self) -> str:
        """What the test found."""
        what = ".".join(filter(None, (self.output or "its output", self.field)))
        test = next(test for test in _TESTS if getattr(self, test) is not UNSET)
        value = getattr(self, test)
        shown = f"{value:g}" if isinstance(value, float) else repr(value)
        return f"as many as {what} has items" if test == "each" else f"{what} {_IN_WORDS.get(test, test)} {shown}"

    def _passes(self, found: Any) -> bool:
        if self.equals is not UNSET:
            return _is(found, self.equals) or (isinstance(found, str) and found.strip() == self.equals)
        if self.contains is not UNSET:
            if isinstance(found, list | tuple):
                return any(_is(item, self.contains) for item in found)
            return self.contains in (found if isinstance(found, str | dict) else str(found))
        if self.matches is not UNSET:
            return isinstance(found, str) and re.search(self.matches, found) is not None
        try:
            number = float(found)
        except (OverflowError, TypeError, ValueError):
            return False
        return number > self.above if self.above is not UNSET else self.below is not UNSET and number < self.below

    def _look(self, outputs: Mapping[str, Any]) -> Any:
        name = self.output or ("text" if "text" in outputs else next(iter(outputs), ""))
        found: Any = outputs.get(name)
        found = found.tolist() if hasattr(found, "tolist") else found  # an array, or one number of it
        for key in self.field.split(".") if self.field else ():
            if isinstance(found, str | bytes):
                found = json_in(found)
            if isinstance(found, list) and key.isdecimal() and int(key) < len(found):
                found = found[int(key)]
            else:
                found = found.get(key) if isinstance(found, dict) else None
        if self.each is not UNSET and isinstance(found, str):
            found = json_in(found)
        return found


def _is(found: Any, expected: Any) -> bool:
    try:
        return bool(found == expected)
    except ValueError:  # arrays, which are nothing that a file can name
        return False


Decide = dict[str, Decision]


def json_in(text: str | bytes) -> Any:
    """The JSON that a text is, or that stands in it: in a fence, or from its first brace to its last; else None.

    >>> json_in('Here you are: {"score": 4}. Anything else?')
    {'score': 4}
    """
    text = text if isinstance(text, str) else text.decode(errors="replace")
    fenced = re.search(r"```(?:json)?\s*\n(.*?)```", text, re.DOTALL)
    parts = [text, fenced.group(1) if fenced else ""]
    pairs = sorted((text.find(first), text.rfind(last) + 1) for first, last in ("{}", "[]"))
    for part in [*parts, *(text[begin:end] for begin, end in pairs if begin >= 0)]:
        try:
            return msgspec.json.decode(part)
        except (msgspec.DecodeError, RecursionError):
            continue
    return None
