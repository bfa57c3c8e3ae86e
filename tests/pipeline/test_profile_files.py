"""Profile files and what becomes of them: the rules of the older tools, with errors that say where."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dovetail.core.errors import InputError
from dovetail.core.rates import RateTable
from dovetail.pipeline.profile.convert import to_device_types, to_models, to_rates
from dovetail.pipeline.profile.files import (
    LayerRow,
    ModelProfile,
    check_room,
    expected_in,
    merge_into,
    merged,
    parameters,
    read_profiles,
    write_profiles,
)

OLD = """\
batch_size: 8
dtype: torch.float32
layers: 2
model_name: m
profile_data:
- layer: 1
  memory: 26.5
  shape_in:
  - [3, 4, 4]
  shape_out:
  - [5, 6]
  - [5, 6]
  time: 0.25
- layer: 2
  memory: 19
  shape_in:
  - [5, 6]
  - [5, 6]
  shape_out:
  - [10]
  time: 0.5
"""


def profile(numbers: list[int], batch_size: int = 8, dtype: str = "torch.float32", **more: Any) -> ModelProfile:
    rows = [LayerRow(layer=i, memory=i, shape_in=[[2]], shape_out=[[2]], time=i / 10) for i in numbers]
    values: dict[str, Any] = {"layers": 3, "model_name": "m", "profile_data": rows} | more
    return ModelProfile(batch_size=batch_size, dtype=dtype, **values)


@pytest.fixture
def old(tmp_path: Path) -> Path:
    path = tmp_path / "profiler_results.yml"
    path.write_text(OLD)
    return path


def test_an_old_file_loads_and_is_written_as_it_was(old: Path, tmp_path: Path) -> None:
    profiles = read_profiles(old)
    assert profiles[0].profile_data[1].memory == 19
    write_profiles(tmp_path / "again.yml", profiles)
    assert yaml.safe_load((tmp_path / "again.yml").read_text()) == yaml.safe_load(OLD)


def test_several_profiles_are_a_list(tmp_path: Path) -> None:
    path = tmp_path / "many.yml"
    several = [profile([1, 2, 3]), profile([1], 1, device="x", threads=2, source="estimated", whole_s=0.5)]
    write_profiles(path, several)
    assert read_profiles(path) == several


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("layer: 2", "layer: 3"), r":14: profile_data.1.layer: expected 1 to 2, found 3"),
        (("layer: 2", "layer: 1"), r"profile_data.1.layer: layer 1 is given twice"),
        (("time: 0.5", "time: -1"), r":21: profile_data.1.time: expected a number >= 0, found -1"),
        (("memory: 19", "memory: .nan"), r"memory: expected a number >= 0, found nan"),
        (("memory: 19", "memori: 19"), r"unknown key 'memori'; did you mean 'memory'"),
        (("- [10]", "- [ten]"), r"shape_out: expected shapes: lists of whole numbers"),
        (("batch_size: 8", "batch_size: 0"), r":1: batch_size: expected 1 or more, found 0"),
        (("batch_size: 8", "batch_size: 8\nbusy: 1.5"), r":2: busy: expected a part from 0 to 1, found 1.5"),
        (("model_name: m\n", ""), r"missing key `model_name`"),
    ],
)
def test_an_error_says_where(old: Path, change: tuple[str, str], message: str) -> None:
    old.write_text(OLD.replace(*change))
    with pytest.raises(InputError, match=message):
        read_profiles(old)


def test_a_list_of_other_things_is_refused(old: Path) -> None:
    for text, message in (("[]", "at least one profile"), ("[3]", "expected a profile, found int")):
        old.write_text(text)
        with pytest.raises(InputError, match=message):
            read_profiles(old)


def test_what_was_measured_on_a_busy_machine_stays_marked(tmp_path: Path) -> None:
    (whole,) = merged([profile([3], busy=0.3)], [profile([1, 2])])
    assert whole.busy == 0.3
    (again,) = merged([whole], [profile([1, 2, 3])], force=True)
    assert again.busy == 0
    types = tmp_path / "device_types.yml"
    to_device_types([whole], types, "t", mem_mb=10, bw_mbps=10)
    assert yaml.safe_load(types.read_text())["t"]["model_profiles"]["m"][0]["busy"] == 0.3


def test_layers_join_and_never_overlap() -> None:
    together = merged([profile([3])], [profile([1, 2]), profile([1], 4)])
    assert [(p.batch_size, [row.layer for row in p.profile_data]) for p in together] == [(8, [1, 2, 3]), (4, [1])]
    with pytest.raises(InputError, match=r"m, batch size 8, torch.float32: layer 2 is in the file already; -f"):
        merged([profile([2, 3])], [profile([1, 2])])
    with pytest.raises(InputError, match="the file is about m, not n"):
        check_room([profile([1])], profile([2], model_name="n"))
    with pytest.raises(InputError, match="m has 3 layers in the file, but 4 now"):
        check_room([profile([1])], profile([2], layers=4))
    with pytest.raises(InputError, match="other layers in the file are measured on a with 1 threads"):
        merged([profile([1], device="a", threads=1)], [profile([2], device="b", threads=1)])


def test_force_replaces_layers() -> None:
    new = profile([1, 2, 3], device="b", whole_s=0.6)
    new.profile_data[0].time = 9.0
    (found,) = merged([profile([1, 2, 3], device="a", whole_s=0.5)], [new], force=True)
    assert found == new


@given(st.sets(st.integers(1, 6)), st.sets(st.integers(1, 6)))
def test_whatever_is_merged_is_there_once(one: set[int], two: set[int]) -> None:
    first, second = profile(sorted(one), layers=6), profile(sorted(two), layers=6)
    if one & two:
        with pytest.raises(InputError):
            merged([first], [second])
    (found,) = merged([first], [second], force=True)
    assert [row.layer for row in found.profile_data] == sorted(one | two)


@given(
    old=st.sets(st.integers(1, 6)),
    part=st.tuples(st.integers(1, 6), st.integers(1, 6)).map(sorted),
    force=st.booleans(),
)
def test_what_a_file_would_hold_is_what_it_holds_then(
    tmp_path_factory: pytest.TempPathFactory, old: set[int], part: list[int], force: bool
) -> None:
    path = tmp_path_factory.mktemp("profiles") / "profiles.yml"
    others = profile([1], 4, layers=6)
    write_profiles(path, [others, profile(sorted(old), layers=6)])
    new = set(range(part[0], part[1] + 1))
    runs = [(8, "torch.float32"), (2, "torch.float32")]
    if old & new and not force:
        with pytest.raises(InputError, match=rf"profiles.yml: .*: layer {min(old & new)} is in the file already"):
            expected_in(path, "m", 6, (part[0], part[1]), runs)
        return
    expected = expected_in(path, "m", 6, (part[0], part[1]), runs, force=force)
    held = merge_into(path, [profile(sorted(new), size, layers=6) for size, _ in runs], force=force)
    found = {each.batch_size: sorted(row.layer for row in each.profile_data) for each in held}
    assert {e.batch_size: sorted(row.layer for row in e.profile_data) for e in expected} == {8: found[8], 2: found[2]}
    assert (found[8], found[2], found[4]) == (sorted(old | new), sorted(new), [1])


@given(st.lists(st.lists(st.integers(0, 9), max_size=4), max_size=3))
def test_parameters_are_the_sum_over_tensors(shapes: list[list[int]]) -> None:
    assert parameters(shapes) == sum(prod(shape) for shape in shapes)


def test_a_model_is_added_and_others_are_kept(old: Path, tmp_path: Path) -> None:
    path = tmp_path / "models.yml"
    path.write_text("z: {layers: 1, mem_MB: [1], parameters_in: 1, parameters_out: [1]}\n")
    assert to_models(read_profiles(old), path) == []
    found = yaml.safe_load(path.read_text())
    assert list(found) == ["m", "z"]
    assert found["m"] == {"layers": 2, "mem_MB": [26.5, 19], "parameters_in": 48, "parameters_out": [60, 10]}
    before = path.read_bytes()
    with pytest.raises(InputError, match=r"models.yml:1: m: is there already; -f replaces it"):
        to_models(read_profiles(old), path)
    assert path.read_bytes() == before
    old.write_text(OLD.replace("26.5", "3"))
    to_models(read_profiles(old), path, force=True)
    assert yaml.safe_load(path.read_text())["m"]["mem_MB"] == [3, 19]


def test_of_several_profiles_the_largest_memory_counts(tmp_path: Path) -> None:
    half = profile([1, 2, 3], dtype="torch.float16")
    for row in half.profile_data:
        row.memory /= 2
    warnings = to_models([half, profile([1, 2, 3])], tmp_path / "models.yml")
    assert warnings == ["memory differs between the profiles; the one that needs most is taken"]
    assert yaml.safe_load((tmp_path / "models.yml").read_text())["m"]["mem_MB"] == [1, 2, 3]


def test_a_profile_with_holes_cannot_be_converted(tmp_path: Path) -> None:
    for rows, message in (([1, 3], "has 2 of 3 layers; layer 2 is missing"), ([], "the profile is empty")):
        with pytest.raises(InputError, match=message):
            to_models([profile(rows)], tmp_path / "models.yml")
        with pytest.raises(InputError, match=message):
            to_device_types([profile(rows)], tmp_path / "types.yml", "t", mem_mb=1, bw_mbps=1)
    assert list(tmp_path.iterdir()) == []


def test_a_device_type_is_made_and_extended(tmp_path: Path) -> None:
    path = tmp_path / "device_types.yml"
    full = [profile([1, 2, 3])]
    with pytest.raises(InputError, match="t is a new device type: give its bw_Mbps"):
        to_device_types(full, path, "t", mem_mb=100)
    assert not path.exists()
    to_device_types(full, path, "t", mem_mb=100, bw_mbps=50)
    assert yaml.safe_load(path.read_text()) == {
        "t": {
            "bw_Mbps": 50,
            "mem_MB": 100,
            "model_profiles": {"m": [{"batch_size": 8, "dtype": "torch.float32", "time_s": [0.1, 0.2, 0.3]}]},
        }
    }
    with pytest.raises(InputError, match=r"t has a profile of m with torch.float32 and batch size 8 already; -f"):
        to_device_types(full, path, "t")
    with pytest.raises(InputError, match=r"device_types.yml:3: t.mem_MB: is 100, not 99; leave it out"):
        to_device_types([profile([1, 2, 3], 4)], path, "t", mem_mb=99)
    to_device_types([profile([1, 2, 3], 4, source="estimated")], path, "t", mem_mb=100)
    full[0].profile_data[0].time = 7.0
    to_device_types(full, path, "t", force=True)
    listed = yaml.safe_load(path.read_text())["t"]["model_profiles"]["m"]
    assert [(p["batch_size"], p["time_s"][0], p.get("source")) for p in listed] == [
        (8, 7.0, None),  # in its place
        (4, 0.1, "estimated"),
    ]


@given(st.lists(st.tuples(st.sampled_from([1, 2, 4]), st.sampled_from(["torch.float16", "torch.float32"])), max_size=8))
def test_a_profile_is_replaced_in_its_place_and_others_stay(
    tmp_path_factory: pytest.TempPathFactory, keys: list[tuple[int, str]]
) -> None:
    path = tmp_path_factory.mktemp("types") / "device_types.yml"
    expected: dict[tuple[int, str], float] = {}
    for number, (size, dtype) in enumerate(keys):
        made = profile([1, 2, 3], size, dtype)
        made.profile_data[0].time = expected[size, dtype] = 1.0 + number
        to_device_types([made], path, "t", mem_mb=100.0, bw_mbps=50.0, force=True)
    listed = yaml.safe_load(path.read_text())["t"]["model_profiles"]["m"] if keys else []
    assert [((p["batch_size"], p["dtype"]), p["time_s"][0]) for p in listed] == list(expected.items())


def test_a_language_model_gets_the_dtype_of_its_values(tmp_path: Path) -> None:
    path = tmp_path / "device_types.yml"
    warnings = to_device_types([profile([1, 2, 3], dtype="torch.int64")], path, "t", mem_mb=1, bw_mbps=1)
    assert warnings == ["m: torch.int64 is the dtype of its inputs; taken as torch.float32"]
    assert yaml.safe_load(path.read_text())["t"]["model_profiles"]["m"][0]["dtype"] == "torch.float32"


def test_rates_are_relative_to_the_reference(tmp_path: Path) -> None:
    types, rates = tmp_path / "device_types.yml", tmp_path / "rates.json"
    to_device_types([profile([1, 2, 3])], types, "slow", mem_mb=1, bw_mbps=1)
    fast = [profile([1, 2, 3], 1), profile([1, 2, 3], 32, source="estimated")]
    to_device_types(fast, types, "fast", mem_mb=1, bw_mbps=1)
    RateTable().write(rates)
    to_rates(types, "m", "slow", rates)
    table = RateTable.read(rates)
    assert table.rate("m", "slow") == 1.0
    assert table.rate("m", "fast") == pytest.approx(4.0)
    assert [rate.source for rate in table.rates.values()] == ["measured", "estimated"]
    with pytest.raises(InputError, match="no device type 'slo'; did you mean 'slow'"):
        to_rates(types, "m", "slo", rates)
    with pytest.raises(InputError, match="slow: has no profile of n"):
        to_rates(types, "n", "slow", rates)


def test_the_seed_s_files_come_out_as_they_are(golden: Path, tmp_path: Path) -> None:
    """A profile made of the seed's numbers is converted into the seed's own entries."""
    seed = golden / "pipeline/seed"
    models = yaml.safe_load((seed / "models.yml").read_text())
    types = yaml.safe_load((seed / "device_types.yml").read_text())
    converted = 0
    for kind, entry in types.items():
        for name, listed in (entry["model_profiles"] or {}).items():
            for each in listed:
                model, sizes = models[name], models[name]["parameters_out"]
                outs = [[[sizes[i % len(sizes)]]] for i in range(model["layers"])]
                rows = [
                    LayerRow(i + 1, model["mem_MB"][i], [[model["parameters_in"]]], outs[i], each["time_s"][i])
                    for i in range(model["layers"])
                ]
                made = profile([], each["batch_size"], each["dtype"], layers=len(rows), model_name=name)
                made.profile_data = rows
                to_models([made], tmp_path / "models.yml", force=True)
                given = {"mem_mb": entry["mem_MB"], "bw_mbps": entry["bw_Mbps"]}
                to_device_types([made], tmp_path / "device_types.yml", kind, **given)
                found = yaml.safe_load((tmp_path / "models.yml").read_text())[name]
                assert found | {"parameters_out": sizes} == model
                assert found["parameters_out"] == [sum(map(prod, out)) for out in outs]
                converted += 1
    made_types = yaml.safe_load((tmp_path / "device_types.yml").read_text())
    assert converted > 0
    assert all(made_types[kind] == types[kind] for kind in made_types)
