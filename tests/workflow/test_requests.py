"""Request files: what each fault is told as, what --on-error makes of it, and that all formats mean the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from dovetail.core.errors import InputError
from dovetail.core.events import Arrived
from dovetail.workflow.choices import Mode
from dovetail.workflow.compat.gswarm_files import reading
from dovetail.workflow.inputs import requests as module
from dovetail.workflow.inputs.configuration import read_system
from dovetail.workflow.inputs.fit import check_fit, make_pool
from dovetail.workflow.inputs.requests import Requests
from dovetail.workflow.inputs.system import System
from dovetail.workflow.problem import load
from dovetail.workflow.simulate import run

SYSTEM: dict[str, Any] = {
    "models": {
        "llm": {"memory_gb": 8, "gpus_required": 1, "load_time_seconds": 10, "tokens_per_second": 50},
        "sd": {"memory_gb": 4, "gpus_required": 2, "load_time_seconds": 5},
    },
    "workflows": {
        "story": {
            "nodes": [{"id": "write", "model": "llm"}, {"id": "draw", "model": "sd"}],
            "edges": [{"from": "write", "to": "draw"}],
        }
    },
}
REQUESTS = """\
requests:
- request_id: a
  timestamp: "2024-01-01T10:00:00"
  workflow_id: story
  node_execution_times: {write: 2, draw: 3}
- request_id: b
  timestamp: "2024-01-01T10:00:30"
  workflow_id: story
  node_execution_times: {write: 4, draw: 5}
"""
A, B = Arrived("a", "story", (2.0, 3.0)), Arrived("b", "story", (4.0, 5.0))


@pytest.fixture
def system(tmp_path: Path) -> System:
    path = tmp_path / "system.json"
    path.write_text(json.dumps(SYSTEM))
    return read_system(path)


class Reader:
    """Writes a text to a file and reads it as requests."""

    def __init__(self, folder: Path, system: System) -> None:
        self.folder = folder
        self.system = system

    def __call__(self, text: str, name: str = "requests.yaml", **options: Any) -> Requests:
        path = self.folder / name
        path.write_text(text)
        return reading(options.pop("compat", False)).requests(path, self.system, **options)

    def refused(self, text: str, name: str = "requests.yaml", **options: Any) -> str:
        with pytest.raises(InputError) as caught:
            self(text, name, **options)
        return str(caught.value).replace(f"{self.folder}/", "")


@pytest.fixture
def read(tmp_path: Path, system: System) -> Reader:
    return Reader(tmp_path, system)


def changed(*pairs: tuple[str, str]) -> str:
    text = REQUESTS
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    return text


def rows(text: str = REQUESTS) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load(text)["requests"]
    return found


def lines(items: list[Any]) -> str:
    return "".join(json.dumps(item) + "\n" for item in items)


# --- what is read ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("requests.yaml", REQUESTS),
        ("requests.yml", REQUESTS),
        ("requests.json", REQUESTS),  # content decides, not the suffix
        ("requests.json", json.dumps({"requests": rows()})),
        ("requests.yaml", json.dumps({"metadata": {"seed": 1}, "requests": rows()}, indent=1)),
        ("requests.jsonl", lines(rows())),
        ("requests", lines(rows())),
        ("requests.jsonl", "\n" + lines(rows()).replace("\n", "\n\n").rstrip()),
    ],
)
def test_yaml_json_and_json_lines_mean_the_same(read: Reader, name: str, text: str) -> None:
    found = read(text, name, mode="online")
    assert list(found.arrivals()) == [(0.0, A), (30.0, B)]
    assert (len(found), found.total, found.skipped_count) == (2, 2, 0)
    assert found.forecast == {"llm": 6.0, "sd": 16.0}
    assert found.estimates == {"given": 4}


def test_offline_everything_is_there_at_the_start_in_the_order_of_the_file(read: Reader) -> None:
    assert list(read(changed(("10:00:00", "11:00:00"))).arrivals()) == [(0.0, A), (0.0, B)]


def test_online_the_earliest_is_at_zero_wherever_it_stands(read: Reader) -> None:
    text = changed(("10:00:00", "11:00:00"))
    expected = [(0.0, B), (3570.0, A)]
    assert list(read(text, mode="online").arrivals()) == expected
    assert list(read(lines(rows(text)), "r.jsonl", mode="online").arrivals()) == expected


def test_requests_of_one_instant_come_in_the_order_of_the_file(read: Reader) -> None:
    items = [{**rows()[0], "request_id": f"r{i}"} for i in (3, 1, 2)]
    for text, name in ((json.dumps({"requests": items}), "r.json"), (lines(items), "r.jsonl")):
        assert [work.job for _, work in read(text, name, mode="online").arrivals()] == ["r3", "r1", "r2"]


@pytest.mark.parametrize(
    ("first", "second", "seconds"),
    [
        ("2024-01-01T10:00:00", "2024-01-01T10:00:00.5", 0.5),  # unquoted: YAML makes them times
        ("2024-01-01", "2024-01-02", 86400.0),
        ("'2024-01-01'", "2024-01-02", 86400.0),
        ("'2024-01-01T10:00:00Z'", "'2024-01-01T12:00:00+01:00'", 3600.0),
        ("2024-01-01T10:00:00Z", "2024-01-01T12:00:00+01:00", 3600.0),
        ("0", "0.25", 0.25),
        ("-5", "1.5", 6.5),
        ("999999999998", "999999999999.5", 1.5),
    ],
)
def test_times_with_and_without_zone_dates_and_numbers(read: Reader, first: str, second: str, seconds: float) -> None:
    text = changed(('"2024-01-01T10:00:00"', first), ('"2024-01-01T10:00:30"', second))
    assert [at_s for at_s, _ in read(text, mode="online").arrivals()] == [0.0, seconds]


def test_a_deadline_and_a_priority_travel_with_the_request(read: Reader) -> None:
    text = REQUESTS + "  deadline_seconds: 60\n  priority: 2.5\n"
    assert list(read(text).arrivals())[1][1] == Arrived("b", "story", (4.0, 5.0), 60.0, 2.5)


def test_missing_times_come_from_the_model_and_are_counted(read: Reader) -> None:
    found = read(changed(("{write: 2, draw: 3}", "{draw: 3}"), ("  node_execution_times: {write: 4, draw: 5}\n", "")))
    assert [work.sizes for _, work in found.arrivals()] == [(20.0, 3.0), (20.0, 10.0)]
    assert found.estimates == {"given": 1, "tokens": 2, "default": 1}
    assert found.forecast == {"llm": 40.0, "sd": 26.0}


def test_a_time_too_many_is_ignored_with_a_warning(read: Reader) -> None:
    found = read(changed(("draw: 3}", "draw: 3, frame: 1}"), ("draw: 5}", "draw: 5, frame: 1}")))
    text = "node_execution_times names 'frame', which is not a node of workflow 'story': ignored"
    assert found.warnings == {text: 2}
    assert [work.sizes for _, work in found.arrivals()] == [(2.0, 3.0), (4.0, 5.0)]


def test_an_empty_set_is_a_set(read: Reader) -> None:
    for text, name in (("requests: []", "r.yaml"), ("", "r.jsonl"), ("\n\n", "r.jsonl")):
        found = read(text, name, mode="online")
        assert (list(found.arrivals()), len(found)) == ([], 0)


# --- what is refused ------------------------------------------------------------------------------

POSITIVE = "expected a positive number up to 1e+12, found"
FAULTS = {
    "unknown workflow": (
        (
            "workflow_id: story\n  node_execution_times: {write: 4",
            "workflow_id: stry\n  node_execution_times: {write: 4",
        ),
        "requests.yaml:8: requests.1.workflow_id: request 'b': unknown workflow 'stry'; did you mean 'story'?",
    ),
    "id used twice": (
        ("request_id: b", "request_id: a"),
        "requests.yaml:6: requests.1.request_id: request 'a': 'a' is used twice",
    ),
    "id of a wrong type": (
        ("request_id: b", "request_id: 7"),
        "requests.yaml:6: requests.1.request_id: expected str, found int",
    ),
    "empty id": (
        ("request_id: b", 'request_id: ""'),
        "requests.yaml:6: requests.1.request_id: expected a name, found nothing",
    ),
    "no workflow": (
        ("workflow_id: story\n  node_execution_times: {write: 4, draw: 5}", "priority: 1"),
        "requests.yaml:6: requests.1: request 'b': missing key `workflow_id`",
    ),
    "typo in a key": (
        ("node_execution_times: {write: 4", "node_execution_time: {write: 4"),
        "requests.yaml:9: requests.1.node_execution_time: request 'b': unknown key 'node_execution_time'; "
        "did you mean 'node_execution_times'?",
    ),
    "typo in a node": (
        ("draw: 5", "drw: 5"),
        "requests.yaml:9: requests.1.node_execution_times.drw: request 'b': not a node of workflow 'story'; "
        "did you mean 'draw'?",
    ),
    "zero": (
        ("draw: 5", "draw: 0"),
        f"requests.yaml:9: requests.1.node_execution_times.draw: request 'b': {POSITIVE} 0.0",
    ),
    "negative": (
        ("draw: 5", "draw: -5"),
        f"requests.yaml:9: requests.1.node_execution_times.draw: request 'b': {POSITIVE} -5.0",
    ),
    "endless": (
        ("draw: 5", "draw: .inf"),
        f"requests.yaml:9: requests.1.node_execution_times.draw: request 'b': {POSITIVE} inf",
    ),
    "no number": (
        ("draw: 5", "draw: .nan"),
        f"requests.yaml:9: requests.1.node_execution_times.draw: request 'b': {POSITIVE} nan",
    ),
    "longer than anything": (
        ("draw: 5", "draw: 1.0e+13"),
        f"requests.yaml:9: requests.1.node_execution_times.draw: request 'b': {POSITIVE} 10000000000000.0",
    ),
    "too large for a float": (
        ("draw: 5", "draw: 1" + 400 * "0"),
        "requests.yaml:9: requests.1.node_execution_times.draw: request 'b': Number out of range",
    ),
    "time that is a word": (
        ("draw: 5", "draw: soon"),
        "requests.yaml:9: requests.1.node_execution_times.draw: request 'b': expected float, found str",
    ),
    "times that are a list": (
        ("{write: 4, draw: 5}", "[4, 5]"),
        "requests.yaml:9: requests.1.node_execution_times: request 'b': expected object, found array",
    ),
    "bad time of arrival": (
        ('"2024-01-01T10:00:30"', "tomorrow"),
        "requests.yaml:7: requests.1.timestamp: request 'b': 'tomorrow' is not an ISO 8601 time or a number of seconds",
    ),
    "time of arrival that is no number": (
        ('"2024-01-01T10:00:30"', ".nan"),
        "requests.yaml:7: requests.1.timestamp: request 'b': nan is not an ISO 8601 time or a number of seconds",
    ),
    "time of arrival beyond all counting": (
        ('"2024-01-01T10:00:30"', "1.0e+12"),
        "requests.yaml:7: requests.1.timestamp: request 'b': 1000000000000 is not an ISO 8601 time or "
        "a number of seconds",
    ),
    "time of arrival that is true": (
        ('"2024-01-01T10:00:30"', "true"),
        "requests.yaml:7: requests.1.timestamp: request 'b': True is not an ISO 8601 time or a number of seconds",
    ),
    "time with a zone among times without": (
        ('"2024-01-01T10:00:30"', '"2024-01-01T10:00:30Z"'),
        "requests.yaml:7: requests.1.timestamp: request 'b': '2024-01-01T10:00:30Z' is a time with zone, "
        "but that of 'a' is a time without zone: do not mix them",
    ),
    "number among times": (
        ('"2024-01-01T10:00:30"', "30"),
        "requests.yaml:7: requests.1.timestamp: request 'b': 30 is a number of seconds, "
        "but that of 'a' is a time without zone: do not mix them",
    ),
    "deadline in the past": (
        ("draw: 5}", "draw: 5}\n  deadline_seconds: 0"),
        f"requests.yaml:10: requests.1.deadline_seconds: request 'b': {POSITIVE} 0.0",
    ),
    "endless deadline": (
        ("draw: 5}", "draw: 5}\n  deadline_seconds: .inf"),
        f"requests.yaml:10: requests.1.deadline_seconds: request 'b': {POSITIVE} inf",
    ),
    "no priority": (
        ("draw: 5}", "draw: 5}\n  priority: -1"),
        f"requests.yaml:10: requests.1.priority: request 'b': {POSITIVE} -1.0",
    ),
    "not a request": (
        (REQUESTS[REQUESTS.index("- request_id: b") :], "- b\n"),
        "requests.yaml:6: requests.1: expected object, found str",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_with_file_line_request_and_field(read: Reader, fault: str) -> None:
    change, message = FAULTS[fault]
    assert read.refused(changed(change)) == message


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("mode", ["offline", "online"])
def test_a_faulty_request_can_be_rejected_with_its_reason(read: Reader, fault: str, mode: Mode) -> None:
    change, message = FAULTS[fault]
    found = read(changed(change), on_error="reject", mode=mode)
    good, faulty = sorted((work for _, work in found.arrivals()), key=lambda work: bool(work.fault))
    assert good == A
    assert faulty.job == ("b" if "request 'b'" in message else "a#2" if "'a' is used" in message else "request#2")
    assert faulty.fault.split(": ")[-1] == message.split(": ")[-1]
    assert (found.total, len(found), found.skipped_count) == (2, 2, 0)
    assert found.forecast == {"llm": 2.0, "sd": 6.0}, "a rejected request is no work"
    assert found.estimates == {"given": 2}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_request_can_be_left_out(read: Reader, fault: str) -> None:
    change, message = FAULTS[fault]
    found = read(changed(change), on_error="skip")
    assert [work for _, work in found.arrivals()] == [A]
    assert [text.replace(f"{read.folder}/", "") for text in found.skipped] == [message]
    assert (found.total, len(found), found.skipped_count) == (2, 1, 1)
    assert found.forecast == {"llm": 2.0, "sd": 6.0}


@pytest.mark.parametrize("on_error", ["fail", "reject", "skip"])
@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("", "r.yaml", "r.yaml: is empty; expected YAML or JSON"),
        ("requests:", "r.yaml", "r.yaml:1: requests: expected array, found null"),
        ("request: []", "r.yaml", "r.yaml:1: request: unknown key 'request'; did you mean 'requests'?"),
        ('{"requests": []', "r.json", "not JSON"),
        ('{"request": []}', "r.json", "r.json:1: request: unknown key 'request'; did you mean 'requests'?"),
        ("[1, 2]", "r.json", "expected object, found array"),
    ],
)
def test_what_is_not_a_file_of_requests(read: Reader, text: str, name: str, message: str, on_error: Any) -> None:
    assert message in read.refused(text, name, on_error=on_error)


def test_a_missing_file_is_told(tmp_path: Path, system: System) -> None:
    for name in ("r.yaml", "r.jsonl"):
        with pytest.raises(InputError, match=f"{name}: no such file"):
            Requests(tmp_path / name, system)


def test_online_a_request_needs_a_time(read: Reader) -> None:
    text = changed(('  timestamp: "2024-01-01T10:00:30"\n', ""))
    assert len(read(text)) == 2
    message = "requests.yaml:6: requests.1.timestamp: request 'b': missing; online mode needs the time of arrival"
    assert read.refused(text, mode="online") == message


def test_faults_are_shown_together_and_those_alike_are_counted(read: Reader) -> None:
    items = [{"request_id": f"r{i}", "workflow_id": "none" if i % 2 else "story"} for i in range(10)]
    items += [{"request_id": "r0", "workflow_id": "story"}, {"request_id": "r2", "workflow_id": "story"}]
    assert read.refused(json.dumps({"requests": items}, indent=0), "r.json").split("\n") == [
        "r.json:9: requests.1.workflow_id: request 'r1': unknown workflow 'none'; known: story (and 4 more like it)",
        "r.json:44: requests.10.request_id: request 'r0': 'r0' is used twice",
        "r.json:48: requests.11.request_id: request 'r2': 'r2' is used twice",
    ]
    many = [{"request_id": f"r{i}", "workflow_id": f"w{i}"} for i in range(50)]
    told = read.refused(json.dumps({"requests": many}), "r.json").split("\n")
    assert (len(told), told[-1]) == (21, "... and 30 more")


def test_in_a_large_file_the_number_of_the_request_stands_for_the_line(
    read: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SMALL", 0)
    message = f"requests.yaml: requests.1: request 'b': node_execution_times.draw: {POSITIVE} 0.0"
    assert read.refused(changed(("draw: 5", "draw: 0"))) == message


def test_the_line_of_json_lines_is_the_line(read: Reader) -> None:
    items = [rows()[0], {**rows()[1], "workflow_id": "none"}]
    text = lines(items).replace("\n", "\n\n")
    message = "r.jsonl:3: request 'b': workflow_id: unknown workflow 'none'; known: story"
    assert read.refused(text, "r.jsonl") == message


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "r.jsonl:1: Input data was truncated"),
        ("oops", "r.jsonl:1: JSON is malformed: invalid character (byte 0)"),
        ("[]", "r.jsonl:1: expected object, found array"),
        (
            '{"request_id": "x", "workflow_id": "story", "node_execution_times": {"write": 1e999}}',
            "Number out of range",
        ),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_a_broken_line_is_told_wherever_it_stands(read: Reader, line: str, message: str, first: bool) -> None:
    good = lines(rows())
    text = f"{line}\n{good}" if first else f"{good}{line}\n"
    assert message.replace("r.jsonl:1", f"r.jsonl:{1 if first else 3}") in read.refused(text, "r.jsonl")
    found = read(text, "r.jsonl", on_error="reject")
    assert [work for _, work in found.arrivals() if not work.fault] == [A, B]
    assert len(found) == 3


def test_a_request_whose_workflow_is_faulty_tells_why(tmp_path: Path, read: Reader) -> None:
    check_fit(read.system, make_pool(read.system, "1"), tmp_path / "system.json")
    message = (
        "requests.yaml:4: requests.0.workflow_id: request 'a': workflow 'story' cannot run: "
        "system.json: workflows.story: node 'draw' (model 'sd') needs 2 GPUs, the pool has 1 (and 1 more like it)"
    )
    assert read.refused(REQUESTS) == message


def test_a_workflow_that_nobody_asks_for_may_be_too_wide(tmp_path: Path) -> None:
    config = {**SYSTEM, "workflows": {**SYSTEM["workflows"], "talk": {"nodes": [{"id": "say", "model": "llm"}]}}}
    (tmp_path / "s.json").write_text(json.dumps(config))
    (tmp_path / "r.jsonl").write_text('{"request_id": "a", "workflow_id": "talk"}\n')
    problem = load(tmp_path / "s.json", tmp_path / "r.jsonl", gpus="1")
    assert run(problem).figures.completed == 1


# --- ids, clocks and other requests' faults -------------------------------------------------------


def test_an_id_is_taken_even_by_a_faulty_request(read: Reader) -> None:
    text = changed(("request_id: b", "request_id: a"), ("draw: 3", "draw: 0"))
    assert len(read.refused(text).split("\n")) == 2
    found = read(text, on_error="reject")
    assert [(work.job, bool(work.fault)) for _, work in found.arrivals()] == [("a", True), ("a#2", True)]


def test_a_faulty_request_does_not_set_the_clock(read: Reader) -> None:
    text = changed(("draw: 3", "draw: 0"), ('"2024-01-01T10:00:00"', "5"))
    found = read(text, on_error="reject", mode="online")
    assert [(at_s, work.job, bool(work.fault)) for at_s, work in found.arrivals()] == [
        (0.0, "a", True),
        (0.0, "b", False),
    ]


def test_a_rejected_request_arrives_at_its_time_if_that_can_be_read(read: Reader) -> None:
    found = read(changed(("draw: 5", "draw: 0")), on_error="reject", mode="online")
    assert [(at_s, work.job) for at_s, work in found.arrivals()] == [(0.0, "a"), (30.0, "b")]


def test_stand_in_names_do_not_break_a_run(tmp_path: Path, system: System) -> None:
    items = [rows()[0], rows()[0], {**rows()[0], "request_id": "a#2"}, {"workflow_id": "story"}, {}]
    (tmp_path / "r.json").write_text(json.dumps({"requests": items}))
    problem = load(tmp_path / "system.json", tmp_path / "r.json", gpus="2", on_error="reject")
    figures = run(problem).figures
    assert figures.completed >= 1
    assert figures.completed + figures.rejected == 5


# --- a stream is what a list is -------------------------------------------------------------------


def described(found: Requests) -> tuple[Any, ...]:
    """All that a run can see of a file."""
    facts = (found.total, len(found), found.skipped_count, found.skipped, found.digest)
    return facts, found.forecast, dict(found.estimates), found.warnings, list(found.arrivals()), list(found.arrivals())


def messy() -> list[Any]:
    """Requests in no order, with every kind of fault among them."""
    items: list[Any] = []
    for i in range(40):
        row: dict[str, Any] = {"request_id": f"r{i}", "workflow_id": "story", "timestamp": (i * 7) % 13 + 0.5}
        row["node_execution_times"] = {"write": 1 + i / 3, "draw": 2 + i}
        items.append(row)
    items[3]["request_id"] = "r1"
    items[4] = {"workflow_id": "story"}
    items[5]["workflow_id"] = "none"
    items[6]["timestamp"] = "2024-01-01"
    items[7]["node_execution_times"]["draw"] = 0
    items[8]["deadline_seconds"] = -1
    items[9]["request_id"] = "r1"
    items[10] = "request"
    items[11]["timestamp"] = None
    items[12] = {**items[12], "request_id": "r12", "colour": "red"}
    items[13]["request_id"] = "r12"
    del items[14]["node_execution_times"]["draw"]
    items[15]["node_execution_times"]["frame"] = 1
    return items


@pytest.mark.parametrize("on_error", ["reject", "skip"])
@pytest.mark.parametrize("mode", ["offline", "online"])
@pytest.mark.parametrize("compat", [False, True])
def test_a_streamed_file_gives_what_one_in_memory_gives(
    read: Reader, monkeypatch: pytest.MonkeyPatch, on_error: Any, mode: Mode, compat: bool
) -> None:
    text = lines(messy()).replace("\n", "\n\n", 5)
    kept = described(read(text, "r.jsonl", on_error=on_error, mode=mode, compat=compat))
    monkeypatch.setattr(module, "_IN_MEMORY", 0)
    assert described(read(text, "r.jsonl", on_error=on_error, mode=mode, compat=compat)) == kept


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("name", ["r.jsonl", "r.txt"])
def test_lines_behind_a_byte_order_mark(
    read: Reader, monkeypatch: pytest.MonkeyPatch, streamed: bool, name: str
) -> None:
    if streamed:
        monkeypatch.setattr(module, "_IN_MEMORY", 0)
    plain = list(read(lines(rows()), name).arrivals())
    assert list(read("\ufeff" + lines(rows()), name).arrivals()) == plain
    assert len(plain) == 2


@pytest.mark.parametrize("streamed", [True, False])
def test_a_stream_tells_the_same_faults(read: Reader, monkeypatch: pytest.MonkeyPatch, streamed: bool) -> None:
    if streamed:
        monkeypatch.setattr(module, "_IN_MEMORY", 0)
    items = [rows()[0], {**rows()[1], "workflow_id": "none"}, rows()[0]]
    assert read.refused(lines(items), "r.jsonl").split("\n") == [
        "r.jsonl:2: request 'b': workflow_id: unknown workflow 'none'; known: story",
        "r.jsonl:3: request 'a': request_id: 'a' is used twice",
    ]


@pytest.mark.parametrize("on_error", ["reject", "skip"])
@pytest.mark.parametrize("mode", ["offline", "online"])
def test_json_lines_and_a_document_give_the_same_arrivals(read: Reader, on_error: Any, mode: Mode) -> None:
    document = read(json.dumps({"requests": messy()}), "r.json", on_error=on_error, mode=mode)
    as_lines = read(lines(messy()), "r.jsonl", on_error=on_error, mode=mode)
    assert list(document.arrivals()) == list(as_lines.arrivals())
    assert (document.forecast, document.estimates) == (as_lines.forecast, as_lines.estimates)


# --- as the older scheduler read it ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "sizes"),
    [
        (("draw: 5", "draw: 0"), (4.0, 0.0)),
        (("draw: 5", "drw: 5"), (4.0, 10.0)),
        (("{write: 4, draw: 5}", "{}"), (10.0, 10.0)),  # whatever the model says
        (("draw: 5}", "draw: 5}\n  colour: red"), (4.0, 5.0)),
        (("requests:", "colour: red\nrequests:"), (4.0, 5.0)),
        (('"2024-01-01T10:00:30"', '"2024-01-01T10:00:30Z"'), (4.0, 5.0)),  # offline it never compared them
    ],
)
def test_compat_reads_what_the_older_scheduler_read(
    read: Reader, change: tuple[str, str], sizes: tuple[float, ...]
) -> None:
    found = list(read(changed(change), compat=True).arrivals())
    assert found == [(0.0, A), (0.0, Arrived("b", "story", sizes))]


def test_compat_counts_from_the_first_request_of_the_file(read: Reader) -> None:
    text = changed(("10:00:00", "11:00:00"))
    assert list(read(text, mode="online", compat=True).arrivals()) == [(0.0, A), (-3570.0, B)]
    assert list(read(lines(rows(text)), "r.jsonl", mode="online", compat=True).arrivals()) == [(0.0, A), (-3570.0, B)]


@pytest.mark.parametrize(
    "change",
    [
        ("draw: 5", "draw: -5"),  # it ended before it began
        ("draw: 5", "draw: .nan"),
        (':30"\n  workflow_id: story', ':30"\n  workflow_id: no'),
    ],
)
def test_compat_refuses_what_has_no_schedule(read: Reader, change: tuple[str, str]) -> None:
    read.refused(changed(change), compat=True)


def test_compat_gives_a_request_whose_id_was_used_the_times_of_the_first(read: Reader) -> None:
    text = changed(("request_id: b", "request_id: a"))
    again = Arrived("a#2", A.of, A.sizes, facts={"same_id": "a"})
    for found in (read(text, compat=True), read(lines(rows(text)), "r.jsonl", compat=True)):
        assert list(found.arrivals()) == [(0.0, A), (0.0, again)]


def test_compat_online_refuses_mixed_times_as_the_older_scheduler_did(read: Reader) -> None:
    text = changed(('"2024-01-01T10:00:30"', '"2024-01-01T10:00:30Z"'))
    assert "do not mix them" in read.refused(text, mode="online", compat=True)
