"""A real CUDA device: results, bounded memory, overlap, and what happens without enough memory."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dovetail.core.errors import InputError
from dovetail.core.journal import Reader
from dovetail.core.loop.replay import replay_journal
from dovetail.dispatch import Device, Dispatcher, Pieces, StaticHybridScheduler
from dovetail.dispatch.check import check_journal

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
MIB = 1 << 20


def newton(x: Tensor) -> Tensor:
    """Solves s + 0.1 A s^3 = x with six unknowns per item, without waiting for the device."""
    matrix = 0.1 * (torch.eye(6, dtype=x.dtype, device=x.device) + 0.2)
    unit = torch.eye(6, dtype=x.dtype, device=x.device)
    s = x
    for _ in range(4):
        residual = s + (s**3) @ matrix.T - x
        step, _ = torch.linalg.solve_ex(unit + matrix * (3 * s**2).unsqueeze(-2), residual.unsqueeze(-1))
        s = s - step.squeeze(-1)
    return s


def waiting(x: Tensor) -> Tensor:
    """The same, with a look at the result after every step, as solvers do that stop when they have converged."""
    y = newton(x)
    assert float((y - x).abs().max()) >= 0
    return y


@pytest.fixture
def batch() -> Tensor:
    return torch.rand(20_000, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


@pytest.mark.parametrize("function", [newton, waiting])
@pytest.mark.parametrize("size", [None, 0, 777, 4096])
@pytest.mark.parametrize("slots", [1, 2, 3])
@pytest.mark.parametrize("held", ["pageable", "pinned", "device"])
def test_results_are_those_of_one_call(
    batch: Tensor, function: Callable[[Tensor], Tensor], size: int | None, slots: int, held: str
) -> None:
    x = {"pageable": batch, "pinned": batch.pin_memory(), "device": batch.cuda()}[held]
    expected = newton(batch.cuda()).cpu()
    with Dispatcher(function, [Device("cuda:0", size=size, slots=slots)], cache=False) as dispatcher:
        for _ in range(3):
            found = dispatcher.run(x)
            assert found.device == x.device
            assert torch.allclose(found.cpu(), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_the_cpu_helps(batch: Tensor, mode: Any) -> None:
    expected = newton(batch)
    scheduler = StaticHybridScheduler(["cuda", "cpu"], [2300, 1700], [5500, 1800], [1.0, 2.0])
    with scheduler.dispatcher(newton, mode=mode, cache=False) as dispatcher:
        assert torch.allclose(dispatcher.run(batch), expected, rtol=1e-9, atol=1e-12)
        names = {device.name for device in dispatcher.report.devices if device.items}
    assert "cuda:0" in names
    with Dispatcher(newton, ["cuda:0", "cpu"], mode=mode, cache=False) as tuned:
        for _ in range(4):
            assert torch.allclose(tuned.run(batch), expected, rtol=1e-9, atol=1e-12)


def test_the_same_device_twice_and_one_that_is_not_there() -> None:
    with pytest.raises(InputError, match="given twice"):
        Dispatcher(newton, ["cuda", "cuda:0"], cache=False)
    with pytest.raises(InputError, match="does not exist"):
        Dispatcher(newton, [f"cuda:{torch.cuda.device_count()}"], cache=False)


def test_maps_broadcast_entries_other_dimensions_and_types() -> None:
    work = {
        "strain": torch.rand(5, 1000, 6),
        "temperature": torch.rand(5, 1, 6),
        "id": torch.arange(1000).expand(5, -1),
    }

    def stress(part: dict[str, Tensor]) -> dict[str, Any]:
        return {
            "stress": part["strain"] * part["temperature"],
            "id": part["id"] + 1,
            "fixed": part["temperature"].sum(),
        }

    expected = stress(work)
    with Dispatcher(stress, ["cuda:0"], sizes=77, dim=1, cache=False) as dispatcher:
        for _ in range(2):
            found = dispatcher.run(work)
            assert torch.allclose(found["stress"], expected["stress"])
            assert torch.equal(found["id"], expected["id"])
            assert torch.allclose(found["fixed"], expected["fixed"])


def test_streams_generators_reduce_and_hooks(batch: Tensor) -> None:
    expected = newton(batch)
    with Dispatcher(newton, ["cuda:0"], sizes=3000, cache=False) as dispatcher:
        pieces = list(dispatcher.stream(batch))
        assert torch.allclose(torch.cat([piece.value for piece in pieces]), expected, rtol=1e-9)
        source = Pieces(batch[at : at + 900] for at in range(0, len(batch), 900))
        assert torch.allclose(dispatcher.run(source).cpu(), expected, rtol=1e-9)
    with Dispatcher(newton, ["cuda:0"], sizes=3000, reduce=lambda parts: sum(p.sum() for p in parts), cache=False) as d:
        assert torch.allclose(torch.as_tensor(d.run(batch)).cpu(), expected.sum())
    with Dispatcher(
        newton,
        ["cuda:0"],
        sizes=3000,
        preprocess=lambda work, device: work.to(device.place),
        postprocess=lambda result, device: result,
        cache=False,
    ) as kept:
        found = kept.run(batch)
        assert found.is_cuda  # a hook that leaves results on the device is taken at its word
        assert torch.allclose(found.cpu(), expected, rtol=1e-9)


def test_gradients_flow_and_modules_follow() -> None:
    model = torch.nn.Linear(6, 3).double()
    x = torch.rand(100, 6, dtype=torch.float64)
    with Dispatcher(model, ["cuda:0", "cpu"], sizes=[30, 10], cache=False) as dispatcher:
        dispatcher.run(x).sum().backward()
        assert model.bias.grad is not None
        with torch.no_grad():
            model.weight.mul_(2.0)
            assert torch.allclose(dispatcher.run(x), model(x))


def test_device_memory_is_bounded() -> None:
    """A batch in chunks needs a few chunks' memory, where one call needs it for the whole batch."""
    x = torch.rand(400_000, 6, dtype=torch.float64).pin_memory()

    def peak(call: Callable[[], object]) -> int:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before

    whole = peak(lambda: newton(x.cuda()).cpu())
    with Dispatcher(newton, [Device("cuda:0", size=10_000)], cache=False) as dispatcher:
        dispatcher.run(x)
        chunked = peak(lambda: dispatcher.run(x))
        again = peak(lambda: [dispatcher.run(x) for _ in range(3)])
    assert chunked < whole / 5
    assert again < 1.5 * chunked  # and it does not grow


def test_copies_overlap_with_kernels(tmp_path: Path) -> None:
    """On the device's own clock, the inputs of a chunk arrive while an earlier one is computed."""
    x = torch.rand(2_400_000, 6, dtype=torch.float64).pin_memory()
    trace = tmp_path / "trace.json"
    with Dispatcher(newton, [Device("cuda:0", size=200_000)], trace=trace, cache=False) as dispatcher:
        for _ in range(3):
            dispatcher.run(x)
        spans = dispatcher.report.spans
    computing = [(start, begun, ended) for _, what, start, begun, ended in spans if what == "compute"]
    copying = [(start, begun, ended) for _, what, start, begun, ended in spans if what == "copy in"]
    assert len(computing) == len(copying) == 12
    hidden = [
        copy[0]
        for copy in copying
        if any(one[0] < copy[0] and one[1] < copy[2] and copy[1] < one[2] for one in computing)
    ]
    assert len(hidden) >= 6, (computing, copying)
    events = json.loads(trace.read_text())["traceEvents"]
    assert {"copy in", "compute", "copy out", "task"} <= {event["name"] for event in events}


def test_too_little_memory_halves_the_chunks() -> None:
    """A real lack of memory: the process may use a small part of the device only."""
    total = torch.cuda.get_device_properties(0).total_memory
    x = torch.rand(200_000, 6, dtype=torch.float64)

    def hungry(part: Tensor) -> Tensor:
        room = torch.empty(len(part), 256, dtype=torch.float64, device=part.device)  # 2 KiB for every item
        return part + 0 * room[:, :1].fill_(1.0)

    torch.cuda.empty_cache()
    held = torch.cuda.memory_reserved()
    torch.cuda.set_per_process_memory_fraction((held + 128 * MIB) / total)
    try:
        with Dispatcher(hungry, [Device("cuda:0", size=200_000)], cache=False) as dispatcher:
            assert torch.equal(dispatcher.run(x), x)
            report = dispatcher.report
            failed = [row for row in report.rows if row.state != "done"]
            assert failed
            assert all("OutOfMemory" in row.state for row in failed)
            assert max(row.stop - row.start for row in report.rows if row.state == "done") < 65_536
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_an_error_on_the_device_moves_to_the_cpu(batch: Tensor) -> None:
    def picky(x: Tensor) -> Tensor:
        if x.is_cuda:
            raise ValueError("not here")
        return newton(x)

    with Dispatcher(picky, ["cuda:0", "cpu"], sizes=500, cache=False) as dispatcher:
        assert torch.equal(dispatcher.run(batch), newton(batch))


def test_a_batch_made_on_another_stream_is_waited_for(batch: Tensor) -> None:
    stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with Dispatcher(newton, [Device("cuda:0", size=4096)], cache=False) as dispatcher:
        for _ in range(3):
            with torch.cuda.stream(stream):
                big = torch.rand(4000, 4000, device="cuda")
                for _ in range(20):
                    big = big @ big / 4000
                x = batch.cuda() + 0 * big[0, 0]
                found = dispatcher.run(x)
            assert torch.allclose(found.cpu(), newton(batch.cuda()).cpu(), rtol=1e-9)


def test_the_thread_of_a_caller_stays_as_it_is_and_several_may_call(batch: Tensor) -> None:
    expected = newton(batch.cuda()).cpu()
    before = torch.get_num_threads(), torch.cuda.current_device(), torch.cuda.current_stream()
    with Dispatcher(newton, [Device("cuda:0", size=4096)], cache=False) as dispatcher:
        assert torch.allclose(dispatcher.run(batch), expected, rtol=1e-9)
        assert (torch.get_num_threads(), torch.cuda.current_device(), torch.cuda.current_stream()) == before
        with ThreadPoolExecutor(4) as callers:
            found = list(callers.map(dispatcher.run, [batch[i:] for i in range(12)]))
        assert torch.allclose(dispatcher.run(batch), expected, rtol=1e-9)
    assert all(torch.allclose(each, expected[i:], rtol=1e-9) for i, each in enumerate(found))


def test_the_journal_has_a_device_for_each_slot_and_replays(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with Dispatcher(newton, ["cuda:0", "cpu"], cache=False, journal=path) as dispatcher:
        for _ in range(2):
            dispatcher.run(torch.rand(200_000, 6, dtype=torch.float64))
            report = check_journal(path)
            assert report.valid, report.faults
            assert replay_journal(path).difference is None
    header = Reader(path).header
    assert [device.type for device in header.pool.devices] == ["cuda:0"] * 3 + ["cpu"]
    assert header.hardware == {"cuda:0": f"cuda:0 {torch.cuda.get_device_name(0)}", "cpu": "cpu"}
