"""Files: YAML and JSON by content, errors that name file, line and key, and outputs that appear whole or not at all."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from typing import Any, Literal

import pytest
from msgspec import Struct, field

from dovetail import host
from dovetail.core.errors import InputError
from dovetail.core.files.document import Document
from dovetail.core.files.output import refuse_overwrite, written_whole
from dovetail.core.files.reading import is_json_lines, read_bytes, yaml_text
from dovetail.report.data.collect import collect
from dovetail.report.static import draw
from dovetail.workflow.choices import REQUEST_LINES
from dovetail.workflow.inputs.write import write_requests


class Model(Struct, forbid_unknown_fields=True):
    memory_gb: float
    layers: list[int] = field(default_factory=list)


class Node(Struct, forbid_unknown_fields=True):
    id: str
    model: str | None = None


class Config(Struct, forbid_unknown_fields=True):
    models: dict[str, Model] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    pools: dict[str, dict[str, list[Node]]] = field(default_factory=dict)
    best: Node | None = None
    source: str = field(default="", name="from")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config.any"


def read(path: Path, to: Any) -> Any:
    document = Document.read(path)
    return document.convert(document.data, to)


def problem(path: Path, text: str | bytes, to: Any = Config) -> str:
    """What reading a file with this text complains about, without the folder."""
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(InputError) as caught:
        read(path, to)
    return str(caught.value).replace(f"{path.parent}{os.sep}", "")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5e-05", 5e-05),
        ("1e3", 1000),
        ("-2E+4", -20000),
        ("1.5e3", 1500),
        (".5e-1", 0.05),
        ("1.e2", 100),
        ("1e-1", 0.1),
    ],
)
def test_numbers_with_an_exponent_are_numbers(path: Path, text: str, value: float) -> None:
    path.write_text(f"a: {text}\nb: '{text}'\nc: [{text}, x{text}, {text}x]\n")
    assert Document.read(path).data == {"a": value, "b": text, "c": [value, f"x{text}", f"{text}x"]}
    assert Document.read(path, as_text=True).data["a"] == text


@pytest.mark.parametrize("text", ["22:00", "9:30", "-1:30", "22:00:00", "1:30.5"])
def test_a_time_of_day_is_no_number_of_base_60(path: Path, text: str) -> None:
    path.write_text(f"a: {text}\nb: [{text}]\n")
    assert Document.read(path).data == {"a": text, "b": [text]}


def test_a_count_may_have_an_exponent_if_it_is_whole(path: Path) -> None:
    path.write_text("models: {a: {memory_gb: 1e-2, layers: [1e3]}}")
    assert read(path, Config).models["a"] == Model(0.01, [1000])
    assert problem(path, "models: {a: {memory_gb: 1, layers: [1e-3]}}") == (
        "config.any:1: models.a.layers.0: expected int, found float"
    )


def test_what_is_written_reads_back_as_it_was(path: Path) -> None:
    data = {"1e3": "5e-05", "plain": ["e3", "1e", "0x1", "1.5E+10"], "numbers": [1e300, 5e-05, 10**20]}
    path.write_text(yaml_text(data))
    assert Document.read(path).data == data


@contextmanager
def unprivileged() -> Iterator[None]:
    """As a user to whom permissions apply."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


# --- what is read -----------------------------------------------------------------------------------

DATA = {"models": {"llm": {"memory_gb": 3.5, "layers": [1, 2]}}, "from": "händ"}


@pytest.mark.parametrize("suffix", [".yaml", ".yml", ".json", ".jsonl", ".txt", ""])
@pytest.mark.parametrize(
    "text",
    [
        "models:\n  llm:\n    memory_gb: 3.5\n    layers: [1, 2]\nfrom: händ\n",
        "models:\r\n  llm:\r\n    memory_gb: 3.5\r\n    layers:\r\n    - 1\r\n    - 2\r\nfrom: händ\r\n",
        '{"models": {"llm": {"memory_gb": 3.5, "layers": [1, 2]}}, "from": "händ"}',
        '{\n\t"models": {\n\t\t"llm": {"memory_gb":3.5,\t"layers":[1,2]}},\r\n\t"from": "händ"}\n',
        '\n\n  {"models": {"llm": {"memory_gb": 3.5, "layers": [1, 2]}}, "from": "h\\u00e4nd"}',
        "{models: {llm: {memory_gb: 3.5, layers: [1, 2]}}, from: händ}",
    ],
    ids=["YAML", "YAML with CRLF", "JSON", "JSON with tabs", "JSON after blank lines", "YAML that looks like JSON"],
)
@pytest.mark.parametrize("mark", ["", "\ufeff"], ids=["", "byte order mark"])
def test_yaml_and_json_are_known_by_their_content(tmp_path: Path, text: str, suffix: str, mark: str) -> None:
    path = tmp_path / f"file{suffix}"
    path.write_bytes((mark + text).encode())
    assert Document.read(path).data == DATA


def test_what_is_converted_has_its_types(path: Path) -> None:
    path.write_text("models:\n  llm:\n    memory_gb: 3\n")
    document = Document.read(path)
    assert document.convert(document.data, Config) == Config(models={"llm": Model(3.0)})


def test_merged_keys_of_yaml_may_be_given_again(path: Path) -> None:
    path.write_text("base: &base {a: 1, b: 2}\nother: &other {b: 4}\nnew:\n  <<: [*base, *other]\n  b: 3\n")
    assert Document.read(path).data["new"] == {"a": 1, "b": 3}
    path.write_text("base: &base {a: 1}\nother: &other {b: 4}\nnew:\n  <<: *base\n  <<: *other\n")
    assert Document.read(path).data["new"] == {"a": 1, "b": 4}
    path.write_text("base: &base {a: 1}\nover: {it: &over {<<: *base, a: 2}}\nnew: {<<: *over, a: 3}\n")
    assert Document.read(path).data == {"base": {"a": 1}, "over": {"it": {"a": 2}}, "new": {"a": 3}}


def test_keys_that_only_look_alike_are_different(path: Path) -> None:
    path.write_text("1: number\n'1': text\n[a]: list\n")
    assert problem(path, path.read_bytes()).startswith("config.any:3: not YAML: found unhashable key")
    path.write_text("1: number\n'1': text\n")
    assert Document.read(path).data == {1: "number", "1": "text"}


# --- what cannot be read ----------------------------------------------------------------------------


def test_a_file_that_is_not_there_is_told_apart_from_a_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"missing\.yaml: no such file$"):
        read_bytes(tmp_path / "missing.yaml")
    with pytest.raises(InputError, match=r": is a folder; expected a file$"):
        read_bytes(tmp_path)


def test_a_name_that_cannot_be_a_file_is_bad_input(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(InputError, match="cannot be read: Not a directory"):
        read_bytes(file / "below")
    with pytest.raises(InputError, match="cannot be read: File name too long"):
        read_bytes(tmp_path / ("x" * 300))
    with pytest.raises(InputError, match="cannot be read: embedded null byte"):
        read_bytes(Path("a\0b"))


def test_a_file_that_may_not_be_read_says_so(path: Path) -> None:
    path.write_text("a: 1")
    path.chmod(0)
    with unprivileged(), pytest.raises(InputError, match=r"may not be read \(permission denied\)"):
        read_bytes(path)


@pytest.mark.parametrize("text", [b"", b" \n\t\n", b"\xef\xbb\xbf", b"\xef\xbb\xbf\r\n"])
def test_an_empty_file_is_bad_input(path: Path, text: bytes) -> None:
    assert problem(path, text) == "config.any: is empty; expected YAML or JSON"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: [1, 2\nc: 3\n", "config.any:3: not YAML: "),
        ("a: 1\n\tb: 2\n", "config.any:2: not YAML: found a tab character"),
        ("a: 1\n---\nb: 2\n", "config.any:2: not YAML: but found another document"),
        ("a: !!python/object:os.system {}\n", "config.any:1: not YAML: could not determine a constructor"),
        ("a: 1\nb: 2024-13-45\n", "config.any:2: not YAML: 2024-13-45: month must be in 1..12"),
        (b"a: 1\nb: caf\xe9\nc: 3\n", "config.any:2: not YAML: invalid"),
        (b"a: 1\nb: \x01\n", "config.any:2: not YAML: control characters are not allowed"),
        ('{"a": 1,\n "b": tru}{', "config.any:2: not JSON: "),
        ('{"a": 1,\n "b": [1, 2,\n', "config.any:3: not JSON: Input data was truncated"),
        (b'{"a": 1,\n "b": "caf\xe9"}', "config.any:2: not JSON: "),
        ("[" * 100_000, "config.any: is nested too deeply"),
        ('{"a": 1}\n{"a": 2}\n', "config.any:2: not JSON: "),
    ],
)
def test_what_is_neither_yaml_nor_json_names_the_line(path: Path, text: str | bytes, message: str) -> None:
    assert problem(path, text).startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", "config.any:3: the key 'a' is given twice, first on line 1"),
        ("x:\n  - a: 1\n    b: 1\n    b: 1\n", "config.any:4: the key 'b' is given twice, first on line 3"),
        ("{a: 1, b: {c: 1, c: 2}}", "config.any:1: the key 'c' is given twice, first on line 1"),
        (
            "a: &a {x: 1, z: 1}\nb:\n  <<: *a\n  y: 1\n  y: 2\n",
            "config.any:5: the key 'y' is given twice, first on line 4",
        ),
        ("a: {b: &b {x: 1, x: 1}}\nc: {<<: *b}\n", "config.any:1: the key 'x' is given twice, first on line 1"),
    ],
)
def test_a_key_given_twice_is_an_error_where_the_last_would_silently_win(path: Path, text: str, message: str) -> None:
    assert problem(path, text) == message


# --- what does not fit ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nodes:\n- id: a\n- id: 3\n", "config.any:3: nodes.1.id: expected str, found int"),
        ("nodes:\n- id: a\n- 3\n", "config.any:3: nodes.1: expected object, found int"),
        ("nodes: 3\n", "config.any:1: nodes: expected array, found int"),
        ("[1, 2]", "config.any: expected object, found array"),
        ("just text", "config.any: expected object, found str"),
        ("# nothing but a comment\n", "config.any: expected object, found null"),
        ("from: 7", "config.any:1: from: expected str, found int"),
        ("nodes:\n- id: a\n- model: b\n", "config.any:3: nodes.1: missing key `id`"),
        (
            "models:\n  llm:\n    memory_gb: 1\n  sd:\n    memory_gb: much\n",
            "config.any:5: models.sd.memory_gb: expected float, found str",
        ),
        ("models:\n  llm:\n    memory_gb: 1\n  sd: 7\n", "config.any:4: models.sd: expected object, found int"),
        ("models:\n  llm: {memory_gb: 1}\n  7: {memory_gb: 1}\n", "config.any:3: models.7: expected str, found int"),
        (
            "pools:\n  a:\n    x: [{id: n}]\n  b:\n    x: [{id: n}]\n    y:\n    - id: n\n    - id: 5\n",
            "config.any:8: pools.b.y.1.id: expected str, found int",
        ),
        ('{\n"nodes":[\n{"id":"a"},\n{\t"id":3}]}', "config.any:4: nodes.1.id: expected str, found int"),
        (
            '{\n\t"nodes": [\n\t\t{"id": "a"},\n\t\t{\n\t\t\t"id": 3\n\t\t}\n\t]\n}\n',
            "config.any:5: nodes.1.id: expected str, found int",
        ),
        ('\t{"nodes":\n[{"id":3}]}', "config.any:2: nodes.0.id: expected str, found int"),
        ("models:\r\n  llm:\r\n    memory_gb: x\r\n", "config.any:3: models.llm.memory_gb: expected float, found str"),
    ],
)
def test_a_wrong_type_names_the_line_the_key_what_was_found_and_what_was_expected(
    path: Path, text: str, message: str
) -> None:
    assert problem(path, text) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("models: {}\nnode: []\n", "config.any:2: node: unknown key 'node'; did you mean 'nodes'?"),
        ("form: here\n", "config.any:1: form: unknown key 'form'; did you mean 'from'?"),
        (
            "models:\n  llm:\n    memory_gib: 1\n    memory_gb: 1\n",
            "config.any:3: models.llm.memory_gib: unknown key 'memory_gib'; did you mean 'memory_gb'?",
        ),
        ("nodes:\n- id: a\n  mdel: b\n", "config.any:3: nodes.0.mdel: unknown key 'mdel'; did you mean 'model'?"),
        ("best:\n  id: a\n  mdel: b\n", "config.any:3: best.mdel: unknown key 'mdel'; did you mean 'model'?"),
        ("best:\n  id: a\n  zzz: b\n", "config.any:3: best.zzz: unknown key 'zzz'; known: id, model"),
        (
            "pools:\n  a:\n    x:\n    - id: n\n      modle: z\n",
            "config.any:5: pools.a.x.0.modle: unknown key 'modle'; did you mean 'model'?",
        ),
    ],
)
def test_an_unknown_key_gets_the_nearest_of_its_own_place(path: Path, text: str, message: str) -> None:
    assert problem(path, text) == message


def test_a_part_of_the_data_is_placed_in_the_whole_file(path: Path) -> None:
    path.write_text("models:\n  llm:\n    memory_gb: 1\n  sd:\n    layers: [1, x]\n    memory_gb: 1\n")
    document = Document.read(path)
    with pytest.raises(InputError, match=r":5: models\.sd\.layers\.1: expected int, found str$"):
        document.convert(document.data["models"]["sd"], Model, ("models", "sd"))


def test_a_key_that_does_not_exist_has_the_line_of_the_deepest_that_does(path: Path) -> None:
    path.write_text("models:\n  llm:\n    memory_gb: 1\n")
    document = Document.read(path)
    assert document.line_of(("models", "llm", "width")) == 2
    assert document.line_of(("models", "llm", "memory_gb", "deeper")) == 3
    assert document.line_of(("nobody",)) is None
    assert str(document.error((), "expected more")) == f"{path}: expected more"


# --- JSON lines -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "suffix", "answer"),
    [
        (b'{"a": 1}\n{"a": 2}\n', ".jsonl", True),
        (b'{"a": 1}\n{"a": 2}\n', ".txt", True),
        (b'\r\n{"a": 1}\r\n\r\n{"a": 2}', ".json", True),
        (b'{"a": 1}\n{"a": tor', ".json", True),
        (b'{"a": 1}\n', ".jsonl", True),
        (b'{"a": 1}\n', ".json", False),
        (b'{\n"a": 1\n}\n', ".jsonl", False),
        (b"[1, 2]\n[3, 4]\n", ".jsonl", False),
        (b"a: 1\nb: 2\n", ".jsonl", False),
        (b'{"a": \xff}\n{"a": 2}\n', ".jsonl", False),
        (b"", ".jsonl", True),
        (b"\n\n", ".jsonl", True),
        (b"", ".json", False),
        (b"", ".yaml", False),
    ],
)
def test_json_lines_are_objects_one_per_line(tmp_path: Path, text: bytes, suffix: str, answer: bool) -> None:
    path = tmp_path / f"requests{suffix}"
    path.write_bytes(text)
    assert is_json_lines(path) is answer


def test_what_cannot_be_opened_is_not_json_lines(tmp_path: Path) -> None:
    assert not is_json_lines(tmp_path / "missing.jsonl")
    assert not is_json_lines(tmp_path)


# --- what is written --------------------------------------------------------------------------------


def write(path: Path, content: bytes, error: BaseException | None = None) -> None:
    with written_whole(path) as file:
        file.write(content)
        if error is not None:
            raise error


def test_a_file_appears_when_it_is_whole_and_the_folders_above_it_too(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "summary.json"
    with written_whole(path) as file:
        file.write(b"one, ")
        assert not path.exists()
        file.write(b"two")
    assert path.read_bytes() == b"one, two"
    assert [entry.name for entry in path.parent.iterdir()] == ["summary.json"]


def test_until_then_a_reader_sees_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    path.write_bytes(b"old")
    with written_whole(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("error", [RuntimeError("a bug"), KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_an_error_on_the_way_leaves_the_old_one_and_nothing_else(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "summary.json"
    path.write_bytes(b"old")
    expected = InputError if isinstance(error, OSError) else type(error)
    with pytest.raises(expected):
        write(path, b"new", error)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "there" / "target", tmp_path / "link"
    target.parent.mkdir()
    link.symlink_to(target)
    for content in (b"first", b"second"):  # at first the link leads nowhere
        write(link, content)
        assert link.is_symlink()
        assert target.read_bytes() == content


def test_a_device_is_written_to_and_not_replaced() -> None:
    write(Path(os.devnull), b"lost")
    assert stat.S_ISCHR(Path(os.devnull).stat().st_mode)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_is_told_without_a_traceback() -> None:
    with pytest.raises(InputError, match=r"^/dev/full: cannot be written: No space left on device$"):
        write(Path("/dev/full"), b"x")


def write_after(action: Callable[[], None], path: Path) -> None:
    with written_whole(path) as file:
        action()
        file.write(b"x")


def test_a_pipe_whose_reader_has_gone_is_told_as_such(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(BrokenPipeError):
        write_after(lambda: os.close(reader), pipe)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written: Is a directory"):
        write(tmp_path, b"x")
    with pytest.raises(InputError, match="cannot be written: "):
        write(Path(os.devnull) / "below", b"x")


def test_a_folder_that_may_not_be_written_to_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    with unprivileged(), pytest.raises(InputError, match="cannot be written: Permission denied"):
        write(tmp_path / "file", b"x")


def test_permissions_stay_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "secret.json"
    path.touch(mode=0o600)
    write(path, b"x")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_new_file_may_be_read_by_those_whom_the_umask_allows(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        write(tmp_path / "shared.json", b"x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "shared.json").stat().st_mode) == 0o644


def test_the_longest_name_that_a_folder_allows_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 255)
    write(path, b"x")
    assert path.read_bytes() == b"x"


def test_two_files_can_be_written_at_the_same_time(tmp_path: Path) -> None:
    with written_whole(tmp_path / "a") as a, written_whole(tmp_path / "b") as b:
        a.write(b"a")
        b.write(b"b")
    assert [(tmp_path / name).read_bytes() for name in "ab"] == [b"a", b"b"]


def fresh(name: str) -> Any:
    """A module as a program has it that has just begun."""
    spec = find_spec(name)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_programs_on_two_machines_can_write_to_one_folder_at_the_same_time(tmp_path: Path) -> None:
    """Both have just begun, and have the same process id."""
    here, there = fresh("dovetail.core.files.output"), fresh("dovetail.core.files.output")
    with here.written_whole(tmp_path / "a") as a, there.written_whole(tmp_path / "b") as b:
        a.write(b"a")
        b.write(b"b")
    assert [(tmp_path / name).read_bytes() for name in "ab"] == [b"a", b"b"]


_FOREIGN = "is there, and does not look like one of Dovetail's; remove it or name another output"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *((name, "what I thought of this run\n") for name in ("notes.html", "notes.svg", "notes.PNG", "notes.jsonl")),
        ("joints.html", "<html><title>Dovetail joints</title>"),
        ("mine.svg", "<svg><!-- Created with matplotlib --><g class='chart'/></svg>"),
        ("dovetail.svg", '<svg><g class="chart"><text>a dovetail saw</text></g></svg>'),
        ("mine.png", "\x89PNG Software\0Matplotlib version3.9"),
        ("mine.jsonl", '{"requests": 3, "workflow": "mine"}\n'),
        ("request.jsonl", '{"request_id":"r1"}\n'),  # unless requests are what is written
    ],
)
def test_what_does_not_look_like_ours_is_not_written_over(tmp_path: Path, name: str, content: str) -> None:
    path = tmp_path / name
    refuse_overwrite([path], [])
    path.touch()
    refuse_overwrite([path], [])  # nothing is lost
    path.write_text(content)
    with pytest.raises(InputError, match=_FOREIGN):
        refuse_overwrite([path], [])


def test_what_dovetail_wrote_may_be_written_again(tmp_path: Path) -> None:
    run, page, *pictures = (tmp_path / name for name in ("run.jsonl", "page.html", "jobs.svg", "schedule.svg"))
    run_of = host.simulate(host.load([{"id": "a", "threads": 1, "work": 5}], cores=2), journal=run)
    run_of.report(page)
    run_of.plot("jobs").save(pictures[0])
    run_of.plot("schedule").save(pictures[1])
    refuse_overwrite([run, page, *pictures], [])
    run.write_bytes(run.read_bytes()[:7])  # one that was interrupted, to go on with
    refuse_overwrite([run], [])


@pytest.mark.parametrize("format", ["png", "svg"])
def test_what_matplotlib_drew_for_dovetail_may_be_written_again(tmp_path: Path, format: Literal["png", "svg"]) -> None:
    run, picture = tmp_path / "run.jsonl", tmp_path / f"run.{format}"
    host.simulate(host.load([{"id": "a", "threads": 1, "work": 5}], cores=2), journal=run)
    picture.write_bytes(draw([collect(run)], format))
    refuse_overwrite([picture], [])


def test_requests_may_be_written_over_requests_but_not_over_other_lines(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    write_requests([{"request_id": "r1", "workflow_id": "chat"}], path, "jsonl")
    refuse_overwrite([path], [], REQUEST_LINES)
    path.write_text('{"workflow": "mine", "request": 3}\n')
    with pytest.raises(InputError, match=_FOREIGN):
        refuse_overwrite([path], [], REQUEST_LINES)
