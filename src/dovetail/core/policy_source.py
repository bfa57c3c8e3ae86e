"""What the source of a policy says about it, read without importing the policy and all that it computes with."""

from __future__ import annotations

import ast
import pkgutil
import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any

REQUIRED = "required"  # in the place of an option's default
_NAMED = re.compile(  # a decorator, or what is assigned: not an example in a docstring
    r"""^(?:@|\w+ *= *)policy\(\s*["']([^"']+)["']\s*,\s*level\s*=\s*["']([^"']+)["']\s*,?\s*\)""", re.MULTILINE
)


class PolicySource:
    """Where a policy is defined: its module, and its class there. The source is parsed when it is asked for: whoever
    runs one policy has no use for the others."""

    def __init__(self, module: str, name: str, level: str, source: str, base: str) -> None:
        self.module = module
        self._name, self._level, self._source, self._base = name, level, source, base

    @cached_property
    def _parsed(self) -> tuple[ast.Module, ast.Module]:
        return ast.parse(self._base), ast.parse(self._source)

    @cached_property
    def classes(self) -> dict[str, ast.ClassDef]:
        """The classes in its file, and in `base.py` beside it."""
        base, tree = self._parsed
        return {node.name: node for node in (*base.body, *tree.body) if isinstance(node, ast.ClassDef)}

    @cached_property
    def definition(self) -> ast.ClassDef | None:
        """Its class, or None if it is something else."""
        for node in self._parsed[1].body:
            if isinstance(node, ast.ClassDef) and any(
                _registered(call, self._level) == self._name for call in node.decorator_list
            ):
                return node
        return None

    def promise(self) -> str:
        """The first line of its docstring."""
        text = ast.get_docstring(self.definition) if self.definition else None
        if text is None:
            raise LookupError("no docstring of its own")
        return text.split("\n")[0]

    def options(self) -> dict[str, Any]:
        """The keyword parameters of its constructor, with their defaults."""
        for definition in self._ancestry():
            for statement in definition.body:
                if isinstance(statement, ast.FunctionDef) and statement.name == "__init__":
                    given = statement.args
                    names = [argument.arg for argument in given.posonlyargs + given.args][1:]  # not self
                    needed = [None] * (len(names) - len(given.defaults))
                    by_place = zip(names, [*needed, *given.defaults], strict=True)
                    by_name = zip([each.arg for each in given.kwonlyargs], given.kw_defaults, strict=True)
                    return {name: _literal(default) for name, default in (*by_place, *by_name)}
        return {}

    def trait(self, name: str) -> Any:
        """The value of a class attribute."""
        for definition in self._ancestry():
            for statement in definition.body:
                for target, value in _assigned(statement):
                    if isinstance(target, ast.Name) and target.id == name:
                        return _literal(value)
        raise LookupError(name)

    def _ancestry(self) -> Iterator[ast.ClassDef]:
        """The class and those it inherits from, as long as they are in its file or in `base.py` beside it."""
        definition = self.definition
        while definition is not None:
            yield definition
            if not definition.bases:
                return
            base = definition.bases[0]
            definition = self.classes.get(base.id) if isinstance(base, ast.Name) else None
        raise LookupError("not a class, or a base class is elsewhere")


def _assigned(statement: ast.stmt) -> list[tuple[ast.expr, ast.expr]]:
    """Names and values of `a = 1` or `a, b = 1, 2`."""
    match statement:
        case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
            return list(zip(names, values, strict=True))
        case ast.Assign(targets=[name], value=value):
            return [(name, value)]
    return []


def _literal(value: ast.expr | None) -> Any:
    try:
        return REQUIRED if value is None else ast.literal_eval(value)
    except ValueError:
        raise LookupError(ast.unparse(value) if value else "") from None


def read_policies(package: str, path: Iterable[str], level: str) -> dict[str, PolicySource]:
    """The policies of a level that the modules of a package register with `policy(name, level=...)`, by name."""
    sources: dict[str, str] = {}
    for finder, module, _ in pkgutil.iter_modules(path, f"{package}."):
        loader = getattr(finder.find_spec(module, None), "loader", None)
        sources[module] = (loader.get_source(module) if loader else "") or ""
    base = sources.get(f"{package}.base", "")
    return {
        name: PolicySource(module, name, level, source, base)
        for module, source in sources.items()
        for name, of in _NAMED.findall(source)
        if of == level
    }


def _registered(call: ast.AST, level: str) -> str | None:
    """The name in `policy("name", level="...")`, if a node is this call and the level is the one that is asked for."""
    match call:
        case ast.Call(
            func=ast.Name(id="policy"),
            args=[ast.Constant(value=str(name))],
            keywords=[ast.keyword(arg="level", value=ast.Constant(value=of))],
        ) if of == level:
            return name
    return None
