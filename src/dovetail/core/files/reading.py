"""YAML by content and any suffix, JSON, TOML: read as they stand, and what is wrong told by file and line."""

from __future__ import annotations

import re
import stat
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import msgspec
import yaml

from dovetail.core.errors import InputError

SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_SafeDumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_MERGE = "tag:yaml.org,2002:merge"
_EXPONENT = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+$")
BOM = b"\xef\xbb\xbf"


def open_bytes(path: Path) -> BinaryIO:
    """A file to read, or an error that a person can act on."""
    try:
        return path.open("rb")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise InputError(f"{path}: is a folder; expected a file") from None
    except PermissionError:
        raise InputError(f"{path}: may not be read (permission denied)") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {getattr(error, 'strerror', error)}") from None


def check_rereadable(path: Path) -> None:
    """Refuse what gives its bytes only once, where they are read more than once."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return  # opening it tells why
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise InputError(f"{path}: expected a file, not a pipe or device: it is read more than once")


def skip_bom(file: BinaryIO) -> int:
    """Go to what follows a byte order mark, in a file that is read line by line; gives where that is.

    >>> from io import BytesIO
    >>> skip_bom(BytesIO(BOM + b"{}")), skip_bom(BytesIO(b"{}"))
    (3, 0)
    """
    file.seek(0)
    return file.seek(len(BOM) if file.read(len(BOM)) == BOM else 0)


def read_bytes(path: Path, expected: str = "YAML or JSON") -> bytes:
    """What a file holds, without a byte order mark; an empty file is an error."""
    with open_bytes(path) as file:
        text = file.read().removeprefix(BOM)
    if not text.strip():
        raise InputError(f"{path}: is empty; expected {expected}")
    return text


class _Loader(SafeLoader):  # type: ignore[misc]
    """YAML as everybody loads it, but a key that is given twice is an error, where the last one would silently win."""

    def __init__(self, stream: bytes) -> None:
        super().__init__(stream)
        self._flat: set[int] = set()

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Called before a mapping is built, and again for each that is merged into another."""
        if id(node) in self._flat:
            return
        self._flat.add(id(node))
        first: dict[tuple[str, str], yaml.ScalarNode] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE:
                before = first.setdefault((key.tag, key.value), key)
                if before is not key:
                    raise _DoubleKeyError(before, key)
        super().flatten_mapping(node)

    def construct_yaml_timestamp(self, node: yaml.ScalarNode) -> Any:
        try:
            return super().construct_yaml_timestamp(node)
        except ValueError as error:
            raise yaml.MarkedYAMLError(problem=f"{node.value}: {error}", problem_mark=node.start_mark) from None

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int | str:
        """22:00 is a time of day, and to YAML 1.1 a number of base 60."""
        return str(node.value) if ":" in node.value else int(super().construct_yaml_int(node))

    def construct_yaml_float(self, node: yaml.ScalarNode) -> float | str:
        """1e3 is as good a count as 1000."""
        if ":" in node.value:
            return str(node.value)
        value = float(super().construct_yaml_float(node))
        whole = "e" in node.value.lower() and abs(value) < 2**53 and value.is_integer()
        return int(value) if whole else value


_Loader.add_constructor("tag:yaml.org,2002:timestamp", _Loader.construct_yaml_timestamp)
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.construct_yaml_float)
# YAML 1.1 wants a dot and a sign in such numbers, and makes text of 5e-05 and 1e3, which 1.2 and JSON read as numbers.
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+.0123456789"))


class _Dumper(_SafeDumper):  # type: ignore[misc]
    """YAML that reads back as it was: text that looks like one of these numbers stands in quotes."""


_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+.0123456789"))


def yaml_text(data: Any, *, sort_keys: bool = False, default_flow_style: bool | None = False) -> str:
    """Data as YAML.

    >>> yaml_text({"job": "1e3", "rate": 1e300})
    "job: '1e3'\\nrate: 1.0e+300\\n"
    """
    layout: dict[str, Any] = {"sort_keys": sort_keys, "default_flow_style": default_flow_style, "allow_unicode": True}
    return str(yaml.dump(data, Dumper=_Dumper, **layout))


class _TextLoader(_Loader):
    """YAML in which nothing but text is known."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}


class _DoubleKeyError(yaml.MarkedYAMLError):
    def __init__(self, first: yaml.ScalarNode, second: yaml.ScalarNode) -> None:
        problem = f"the key {second.value!r} is given twice, first on line {first.start_mark.line + 1}"
        super().__init__(problem=problem, problem_mark=second.start_mark)


def parse(path: Path, text: bytes, as_text: bool = False) -> Any:
    """TOML by its suffix, JSON if it is JSON, YAML otherwise."""
    if path.suffix == ".toml":
        return _parse_toml(path, text)
    wrong: Exception | None = None
    try:
        if not as_text and text.lstrip()[:1] in b"{[":
            try:
                return msgspec.json.decode(text)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                wrong = error
        return yaml.load(text, Loader=_TextLoader if as_text else _Loader)
    except RecursionError:
        raise InputError(f"{path}: is nested too deeply") from None
    except (yaml.YAMLError, UnicodeDecodeError, ValueError) as error:
        line = _line(error, text)
        if isinstance(error, _DoubleKeyError):
            raise InputError(f"{path}:{line}: {error.problem}") from None
        if wrong is not None:
            found = re.search(r"\(byte (\d+)\)", str(wrong))
            line = text[: int(found.group(1))].count(b"\n") + 1 if found else line or 1
            raise InputError(f"{path}:{line}: not JSON: {wrong}") from None
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
        raise InputError(f"{path}{f':{line}' if line else ''}: not YAML: {problem}") from None


def _parse_toml(path: Path, text: bytes) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(text.decode("utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        found = re.search(r" \(at line (\d+), column \d+\)$", str(error))
        line, message = (f":{found[1]}", str(error)[: found.start()]) if found else ("", str(error))
        raise InputError(f"{path}{line}: not TOML: {message}") from None


def _line(error: Exception, text: bytes) -> int | None:
    """Where a loader found something wrong."""
    mark, position = getattr(error, "problem_mark", None), getattr(error, "position", None)
    if mark is not None:
        return int(mark.line) + 1
    return None if position is None else text[:position].count(b"\n") + 1


def is_json_lines(path: Path) -> bool:
    """Whether a file is a sequence of JSON objects, one per line (and not one JSON document).

    One object alone, or none at all, is a sequence if the file is called so: `.jsonl`.
    """
    try:
        with path.open("rb") as file:
            skip_bom(file)
            lines = (line for line in (file.readline(1 << 24) for _ in range(64)) if line.strip())
            first, second = next(lines, b""), next(lines, b"")
    except (OSError, ValueError):
        return False
    if not first:
        return path.suffix == ".jsonl"
    if not first.lstrip().startswith(b"{"):
        return False
    try:
        msgspec.json.decode(first)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return second.lstrip().startswith(b"{") or (not second and path.suffix == ".jsonl")
