"""Policies by level and name. Ours and a third party's register the same way.

A third-party package names its module under the entry-point group `dovetail.policies`; importing the module runs the
`@policy` decorators in it, and the names work in every command. Ours are in `policies/` of their level: a module there
is imported when a policy in it is asked for by name, and its source is enough for a list of them.
"""

from __future__ import annotations

import inspect
import math
import re
import sys
import typing
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

from dovetail.core.errors import DovetailError, InputError, PolicyError, did_you_mean
from dovetail.core.policy_source import REQUIRED, PolicySource, read_policies

GROUP = "dovetail.policies"
LEVELS = "dovetail.levels"
_FILE = "policies in "  # and its path: the module's name
_policies: dict[tuple[str, str], Callable[..., Any]] = {}
_sources: dict[str, dict[str, PolicySource]] = {}
_files: dict[str, dict[str, Any]] = {}  # what files of policies define, by their path
_plugins_loaded = False
_EXPECTED: dict[Any, str] = {bool: "expected true or false", int: "expected a whole number", float: "expected a number"}
T = TypeVar("T", bound=Callable[..., Any])


def policy(name: str, *, level: str) -> Callable[[T], T]:
    """Register a policy class or factory; its keyword parameters become the policy's options."""

    def register(factory: T) -> T:
        known = _policies.get((level, name))
        at = known.__module__ if known else factory.__module__
        if known is None and name in _ours(level) and not at.startswith(f"dovetail.{level}."):
            at = _ours(level)[name].module  # ours, not imported yet
        in_files = at.startswith(_FILE) and factory.__module__.startswith(_FILE)  # each is asked for by its path
        same = at == factory.__module__ and (known is None or known.__qualname__ == factory.__qualname__)
        if not (same or in_files):
            raise InputError(f"{level} policy {name!r} is registered twice: {at}, {factory.__module__}")
        _policies[level, name] = factory
        return factory

    return register


def _ours(level: str) -> dict[str, PolicySource]:
    """The policies in a level's own package, by name; nothing of it is imported."""
    if level not in _sources:
        try:
            spec = find_spec(f"dovetail.{level}.policies")
        except ModuleNotFoundError:  # somebody else's level
            spec = None
        folders = spec.submodule_search_locations if spec else None
        _sources[level] = read_policies(spec.name, folders, level) if spec and folders else {}
    return _sources[level]


def _load_plugins() -> None:
    global _plugins_loaded
    if _plugins_loaded:
        return
    _plugins_loaded = True
    from importlib.metadata import entry_points

    for entry in entry_points(group=GROUP):
        try:
            entry.load()
        except (Exception, SystemExit) as error:
            warnings.warn(f"policy plug-in {entry.name} ({entry.value}) does not load: {error}", stacklevel=2)


def names(level: str) -> list[str]:
    _load_plugins()
    return sorted({name for of, name in _policies if of == level} | set(_ours(level)))


def written_options(name: str) -> tuple[str, dict[str, str]]:
    """A policy's name, and the options that are written behind it.

    >>> written_options("tiresias,thresholds_s=60,600,seed=3"), written_options("mine.py:Mine")
    (('tiresias', {'thresholds_s': '60,600', 'seed': '3'}), ('mine.py:Mine', {}))
    """
    at = name.rfind(".py:") + 1  # a folder may be called anything
    plain, *options = re.split(r",(?=[A-Za-z_]\w*=)", name[at:])
    return name[:at] + plain, dict(each.split("=", 1) for each in options)


def find(level: str, name: str) -> Callable[..., Any]:
    """The class or function that makes a policy, by its name or as `file.py:name`, whatever options are behind it."""
    name, _ = written_options(name)
    if ".py:" in name:
        return _in_file(name)
    if name.endswith(".py"):
        has = ", ".join(_names_in(_contents(name))) or "none"
        raise InputError(f"policy {name}: expected which one in the file, as {name}:NAME; it has {has}")
    _load_plugins()
    if name in _ours(level):
        import_module(_ours(level)[name].module)
    factory = _policies.get((level, name))
    if factory is None:
        raise InputError(f"no {level} policy is called {name!r}{did_you_mean(name, names(level))}")
    return factory


def _in_file(text: str) -> Callable[..., Any]:
    """What `file.py:name` names."""
    path, _, name = text.rpartition(":")
    contents = _contents(path)
    found = contents.get(name)
    if found is None:
        raise InputError(f"{path}: has no {name!r}{did_you_mean(name, _names_in(contents))}")
    if inspect.isclass(found) or inspect.isfunction(found):
        return found
    return lambda: found


def _names_in(contents: Mapping[str, Any]) -> list[str]:
    """The classes and functions that a file defines itself."""
    mine = (each for each in contents.items() if inspect.isclass(each[1]) or inspect.isfunction(each[1]))
    return [name for name, value in mine if value.__module__ == contents.get("__name__")]


def _contents(path: str) -> dict[str, Any]:
    """What a file of policies defines; it is run once."""
    place = str(Path(path).resolve())
    if place not in _files:
        if not Path(path).is_file():
            raise InputError(f"{path}: no such file")
        # A dot in its name would be a package's, which pickle imports first.
        module = ModuleType(_FILE + place.removesuffix(".py").replace("%", "%25").replace(".", "%2E"))
        module.__file__ = place
        sys.modules[module.__name__] = module  # where pickle looks for its classes
        try:
            exec(compile(Path(place).read_bytes(), place, "exec", dont_inherit=True), vars(module))
        except (Exception, SystemExit) as error:
            del sys.modules[module.__name__]
            raise InputError(f"{path}: does not load: {type(error).__name__}: {error}") from error
        _files[place] = vars(module)
    return _files[place]


def named_options(options: Any) -> Mapping[str, Any]:
    """What a user gave as options, if they are by name."""
    if not isinstance(options, Mapping | None):
        raise InputError(f"options {options!r}: expected names and values of the policy's options")
    return options or {}


def choose(level: str, choice: Any, options: Mapping[str, Any] | None = None) -> tuple[str, Any]:
    """A policy as users give one: a name or `file.py:name`, perhaps with options as `name,option=value`, or a class,
    function or object of their own. Gives what a journal's header calls it as well.

    >>> class Mine: ...
    >>> choose("host", Mine)[0], choose("host", Mine())[0], choose("host", "fcfs")[0]
    ('Mine', 'Mine', 'fcfs')
    """
    options = named_options(options)
    if isinstance(choice, str):
        return choice, create(level, choice, options)
    if choice is None or isinstance(choice, int | float | bytes | list | tuple | dict):
        raise InputError(f"expected a {level} policy: a name, file.py:name, or one of your own; found {choice!r}")
    if options:
        raise InputError(f"a policy of your own has its options already; found {', '.join(options)}")
    if not (inspect.isclass(choice) or inspect.isfunction(choice)):
        return type(choice).__name__, choice
    try:
        parameters = list(inspect.signature(choice).parameters.values())
    except ValueError:  # built in: not known, and no policy
        parameters = []
    if lacking := [
        p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]:
        raise InputError(f"policy {choice.__name__} needs {lacking[0]!r}: give an object of it")
    return choice.__name__, _made(choice.__name__, choice)


def _made(name: str, factory: Callable[..., Any], /, **options: Any) -> Any:
    """What a class or function makes; one that fails or exits is named."""
    try:
        return factory(**options)
    except DovetailError:
        raise
    except ValueError as error:
        raise InputError(f"policy {name}: {error}") from error
    except (Exception, SystemExit) as error:
        raise PolicyError(f"policy {name} failed: {type(error).__name__}: {error}") from error


class Listed(NamedTuple):
    """What a list of policies says of one: options have their defaults, or `REQUIRED`."""

    name: str
    promise: str
    options: dict[str, Any]
    traits: dict[str, Any]


def listing(level: str, traits: Sequence[str] = ()) -> list[Listed]:
    """All policies of a level, with the class attributes that are asked for.

    Ours are not imported for it, unless one is written so that only running it tells.
    """
    return [_from_source(level, name, traits) or _from_factory(level, name, traits) for name in names(level)]


def _from_source(level: str, name: str, traits: Sequence[str]) -> Listed | None:
    source = _ours(level).get(name)
    try:
        known = {trait: source.trait(trait) for trait in traits} if source else {}
        return Listed(name, source.promise(), source.options(), known) if source else None
    except LookupError:
        return None


def _from_factory(level: str, name: str, traits: Sequence[str]) -> Listed:
    options = {key: REQUIRED if p.default is p.empty else p.default for key, p in options_of(level, name).items()}
    made = find(level, name)
    if traits and not inspect.isclass(made) and REQUIRED not in options.values():
        made = create(level, name)
    return Listed(name, promise(level, name), options, {trait: getattr(made, trait, None) for trait in traits})


def promise(level: str, name: str) -> str:
    """The first line of a policy's docstring: what it promises."""
    return (inspect.getdoc(find(level, name)) or "").split("\n")[0]


def options_of(level: str, name: str) -> dict[str, inspect.Parameter]:
    """The options a policy takes: the keyword parameters of its constructor."""
    parameters = inspect.signature(find(level, name)).parameters
    return {key: p for key, p in parameters.items() if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}


def create(level: str, name: str, options: Mapping[str, Any] | None = None) -> Any:
    """A policy by name, with its options checked and converted; unknown names and options get a hint. Options may stand
    behind the name: those that are given go before them.
    """
    import msgspec

    from dovetail.core.files.plain import plain

    name, written = written_options(name)
    factory, known = find(level, name), options_of(level, name)
    hints = typing.get_type_hints(factory.__init__ if inspect.isclass(factory) else factory)
    checked = {}
    for key, given in (written | dict(named_options(options))).items():
        value = given if isinstance(given, msgspec.Struct) else plain(given)  # a problem stays what it is
        if key not in known:
            raise InputError(f"policy {name} has no option {key!r}{did_you_mean(key, known)}")
        try:
            checked[key] = msgspec.convert(value, hints.get(key, Any), strict=False)
        except msgspec.ValidationError as error:
            choices = typing.get_args(hints.get(key)) if typing.get_origin(hints.get(key)) is typing.Literal else ()
            known_values = f"; known: {', '.join(map(str, choices))}" if choices else ""
            wrong = _EXPECTED.get(hints.get(key), str(error))
            raise InputError(f"policy {name}, option {key}={value!r}: {wrong}{known_values}") from None
        if isinstance(checked[key], float) and not math.isfinite(checked[key]):
            raise InputError(f"policy {name}, option {key}={value!r}: expected a finite number")
    lacking = [key for key, parameter in known.items() if parameter.default is parameter.empty and key not in checked]
    if lacking:
        raise InputError(f"policy {name} needs the option {lacking[0]!r}")
    return _made(name, factory, **checked)


def room(level: str, name: str) -> ModuleType | None:
    """A level's module by its name, or None: `dovetail.<level>.<name>`, or in the package that an entry point of the
    group `dovetail.levels` names for the level. What has no `words` is no level.

    >>> room("workflow", "words").__name__, room("core", "check"), room("mine", "check")
    ('dovetail.workflow.words', None, None)
    """
    if not level.isidentifier() or level == __name__.split(".")[1]:  # the core has words too, and is no level
        return None
    from importlib.metadata import entry_points

    package = next((entry.value for entry in entry_points(group=LEVELS) if entry.name == level), f"dovetail.{level}")
    try:
        found = find_spec(f"{package}.words") and find_spec(f"{package}.{name}")
    except ModuleNotFoundError:
        return None
    return import_module(f"{package}.{name}") if found else None
