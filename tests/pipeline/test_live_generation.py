"""Generation over stages, within this process: lanes, caches and tokens, and layouts that are replaced."""

from __future__ import annotations

import json
import random
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from queue import Queue
from types import SimpleNamespace
from typing import Any

import pytest

from dovetail.core.errors import InputError
from dovetail.pipeline.live import decoding
from dovetail.pipeline.live.decoding import DecodeStep, StageDecoder
from dovetail.pipeline.live.generation import TokenStream
from dovetail.pipeline.live.prompts import Prompts, end_tokens
from dovetail.pipeline.live.recorded_step import RecordedStep, recordable
from dovetail.pipeline.live.sampling import TokenSampling
from dovetail.pipeline.models.load import load
from dovetail.pipeline.models.spec import Chain, ModelSpec
from dovetail.pipeline.plan import GenerationFigures
from dovetail.testing.pipeline_live import even_plan

torch = pytest.importorskip("torch")
transformers: Any = pytest.importorskip("transformers")

BLOCKS, LAYERS, VOCABULARY = 4, 6, 97
LLAMA = {
    "hidden_size": 32,
    "num_hidden_layers": BLOCKS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": None,
}
MODELS: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": LLAMA | {"model_type": "llama"},
    "Qwen2ForCausalLM": LLAMA
    | {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    "GPT2LMHeadModel": {
        "model_type": "gpt2",
        "n_embd": 32,
        "n_layer": BLOCKS,
        "n_head": 4,
        "n_positions": 64,
        "vocab_size": VOCABULARY,
        "bos_token_id": 1,
        "eos_token_id": None,
    },
}
PROMPTS = [[(7 * i + j) % VOCABULARY for j in range(length)] for i, length in enumerate((5, 1, 17, 9, 3, 12))]


class PlainModel:
    """A model of a configuration: its layers, and what its own `generate` gives for each prompt alone."""

    def __init__(self, folder: Path, name: str) -> None:
        (folder / "config.json").write_text(json.dumps(MODELS[name] | {"architectures": [name]}))
        self.spec = ModelSpec(source=f"hf:{folder}", seed=3)
        self.chain: Chain = load(self.spec)

    def generate(
        self, prompts: list[list[int]], tokens: int, dtype: str = "torch.float32", sampling: TokenSampling | None = None
    ) -> list[list[int]]:
        whole = self.chain.decoder(1, LAYERS, dtype=dtype).model
        how: dict[str, Any] = {"do_sample": sampling is not None, "max_new_tokens": tokens}
        if sampling is not None:
            how |= {name: getattr(sampling, name) for name in ("temperature", "top_k", "top_p")}
        found = []
        for number, prompt in enumerate(prompts):
            torch.manual_seed(sampling.seed + number if sampling is not None else 0)
            ids = torch.tensor([prompt])
            made = whole.generate(ids, attention_mask=torch.ones_like(ids), **how)
            found.append(made[0, len(prompt) :].tolist())
        return found


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Threads that wait for each other in every small operation come to nothing beside other programs."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> PlainModel:
    return PlainModel(tmp_path_factory.mktemp("model"), request.param)


def stream(model: PlainModel, prompts: list[list[int]], tokens: int, **more: Any) -> TokenStream:
    given: dict[str, Any] = {"max_new_tokens": tokens, "ends": frozenset(), "lanes": 3, "lane_size": 2} | more
    return TokenStream(model.spec, "torch.float32", prompts, **given)


class StageChain:
    """Stages in this thread, with steps under way between them; how far each is, is drawn."""

    def __init__(
        self,
        model: PlainModel,
        cuts: list[int],
        dice: random.Random,
        dtype: str = "torch.float32",
        sampling: TokenSampling | None = None,
        record: Callable[[Any], Any] | None = None,
    ) -> None:
        self._record = record
        ends = [0, *cuts, LAYERS]
        self._parts = [model.chain.decoder(a + 1, b, dtype=dtype) for a, b in pairwise(ends)]
        self._dice, self._sampling = dice, sampling

    def run(self, work: TokenStream, first: int = 0, steps: int | None = None) -> int:
        """Feed a layout until everything has come out, or so many steps; gives the number of the next step."""
        stages = [StageDecoder(part, "cpu", self._sampling, self._record) for part in self._parts]
        between: list[deque[Any]] = [deque() for _ in range(len(stages) + 1)]
        work.restart(1)
        fed = out = first
        while not work.done and out - first != steps:
            at = self._dice.randrange(len(between) + 1)
            if at == len(between):
                if work.ready and (given := work.inputs(fed)) is not None:
                    between[0].append((fed, *given))
                    fed += 1
            elif between[at]:
                number, value, step = between[at].popleft()
                if at < len(stages):
                    between[at + 1].append((number, stages[at].run(value, step), step))
                else:
                    assert number == out
                    work.deliver(number, value)
                    out += 1
        return out


def test_tokens_are_those_of_the_plain_model(model: PlainModel) -> None:
    expected = model.generate(PROMPTS, 11)
    for seed, cuts in enumerate([[3], [1, 4], [1, 5], []]):  # also the embedding or the head alone
        work = stream(model, PROMPTS, 11)
        StageChain(model, cuts, random.Random(seed)).run(work)
        assert [sequence.tokens for sequence in work.sequences] == expected, cuts


@pytest.mark.parametrize("lane_size", [1, 3])
def test_steps_that_are_recorded_give_the_same_tokens(
    model: PlainModel, lane_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With sequences of unlike lengths, which come and go; caches grow, and models with windows are left as is."""
    monkeypatch.setattr(decoding, "_OFTEN", 2)
    monkeypatch.setattr("dovetail.core.service.key_value_cache._ROOM", 5)
    recorded = replayed = 0

    def record(step: Callable[[], Any]) -> Callable[[], Any]:
        nonlocal recorded
        recorded += 1

        def replay() -> Any:
            nonlocal replayed
            replayed += 1
            return step()

        return replay

    whole = model.generate(PROMPTS, 25)
    end = whole[0][7]
    expected = [row[: row.index(end) + 1] if end in row else row for row in whole]
    work = stream(model, PROMPTS, 25, ends=frozenset({end}), lane_size=lane_size)
    StageChain(model, [1, 3], random.Random(lane_size), record=record).run(work)
    assert [sequence.tokens for sequence in work.sequences] == expected
    windows = model.chain.decoder(1, LAYERS).model.config.to_dict().get("use_sliding_window", False)
    assert (replayed > 2 * recorded > 0) != windows


@pytest.mark.parametrize("dtype", ["torch.float32", "torch.bfloat16"])
def test_recorded_steps_give_the_same_tokens_wherever_the_model_is_cut(llama: PlainModel, dtype: str) -> None:
    """Also where they round otherwise than steps that are not recorded."""
    found = []
    for cuts in ([], [3], [2, 4]):
        work = stream(llama, PROMPTS, 25, lanes=1, lane_size=len(PROMPTS))
        StageChain(llama, cuts, random.Random(1), dtype, record=lambda step: step).run(work)
        found.append([sequence.tokens for sequence in work.sequences])
    assert found[0] == found[1] == found[2]


def test_what_a_recording_reads_is_held(llama: PlainModel) -> None:
    """A graph knows addresses, not tensors: whoever replays it must keep them."""

    def places(values: Iterable[Any]) -> set[int]:
        return {each.untyped_storage().data_ptr() for each in values if isinstance(each, torch.Tensor)}

    read: set[int] = set()

    def record(step: Any) -> Callable[[], Any]:
        read.update(places(cell.cell_contents for cell in step.__closure__))
        found = step()
        return lambda: found

    from dovetail.core.service.key_value_cache import SequenceCache

    part, cache = llama.chain.decoder(1, LAYERS), SequenceCache()
    with torch.inference_mode():
        part(torch.tensor([[1, 2, 3]]), cache)
        out = part(torch.tensor([[4]]), cache)
        recorded = RecordedStep(part, cache, torch.tensor([[4]]), [3], out, record)
    assert recorded.same
    assert len(read) == 2
    assert read <= places(vars(recorded).values())


def test_only_what_a_recording_can_hold_is_recorded() -> None:
    """Positions that Python counts would be those of one step for ever, and eager code adds a mask."""
    from transformers import AutoConfig

    def part(attention: str = "sdpa", **options: Any) -> Any:
        config = AutoConfig.for_model("llama", num_hidden_layers=1, attn_implementation=attention)
        return SimpleNamespace(
            **{"has_cache": True, "takes_positions": True} | options, model=SimpleNamespace(config=config)
        )

    assert recordable(part())
    assert not recordable(part("eager"))
    assert not recordable(part(takes_positions=False))
    assert not recordable(part(has_cache=False))


def test_a_recording_that_fails_leaves_the_cache_as_it_was(llama: PlainModel) -> None:
    from dovetail.core.service.key_value_cache import SequenceCache

    def fails(step: Callable[[], Any]) -> Callable[[], Any]:
        raise RuntimeError("no graph")

    part, cache = llama.chain.decoder(1, LAYERS), SequenceCache()
    with torch.inference_mode():
        part(torch.tensor([[1, 2, 3]]), cache)
        out = part(torch.tensor([[4]]), cache)
        kept = [each.keys.clone() for each in cache.layers]
        with pytest.raises(RuntimeError, match="no graph"):
            RecordedStep(part, cache, torch.tensor([[5]]), [3], out, fails)  # another token: it writes other keys
    assert all(torch.equal(each.keys, before) for each, before in zip(cache.layers, kept, strict=True))
    assert cache.get_seq_length() == 4


def test_what_cannot_be_recorded_is_done_as_before(llama: PlainModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "_OFTEN", 1)
    tried = []

    def fails(step: Callable[[], Any]) -> Any:
        tried.append("")
        raise RuntimeError("a stream that is captured cannot do this")

    def errs(step: Callable[[], Any]) -> Any:
        tried.append("")
        return lambda: 2 * step()

    for record in (fails, errs):
        tried.clear()
        work = stream(llama, PROMPTS, 6)
        StageChain(llama, [3], random.Random(1), record=record).run(work)
        assert [sequence.tokens for sequence in work.sequences] == llama.generate(PROMPTS, 6)
        assert len(tried) == 2  # once by each stage


def test_a_stage_that_was_warmed_up_has_forgotten_it(model: PlainModel) -> None:
    """On a GPU every stage is; also the embedding or the head alone, and in a narrow type."""
    for dtype in ("torch.float32", "torch.bfloat16"):
        for layers in ((1, 1), (1, 3), (2, 4), (LAYERS, LAYERS), (1, LAYERS)):
            stage = StageDecoder(model.chain.decoder(*layers, dtype=dtype), "cpu")
            stage.warm_up()
            assert not stage._lanes, layers


def test_whatever_is_replaced_when_no_token_changes(model: PlainModel) -> None:
    """Layouts come and go after any number of steps, with any lanes; some sequences end early."""
    dice = random.Random(5)
    whole = model.generate(PROMPTS, 11)
    for _ in range(6):
        end = dice.choice(dice.choice(whole))
        expected = [row[: row.index(end) + 1] if end in row else row for row in whole]
        told: list[tuple[int, int]] = []
        work = stream(
            model,
            PROMPTS,
            11,
            ends=frozenset({end}),
            lane_size=dice.randint(1, 6),
            take=lambda number, token, told=told: told.append((number, token)),
        )
        next_step = 0
        while not work.done:
            cuts = sorted(dice.sample(range(1, LAYERS), dice.randint(0, 3)))
            next_step = StageChain(model, cuts, dice).run(work, next_step, dice.randint(1, 12))
        assert [sequence.tokens for sequence in work.sequences] == expected
        for number, row in enumerate(expected):
            assert [token for of, token in told if of == number] == row


SAMPLINGS = [
    TokenSampling(temperature=1.0, seed=4),
    TokenSampling(temperature=0.7, top_k=20, seed=11),
    TokenSampling(temperature=1.9, top_p=0.8),
    TokenSampling(temperature=0.9, top_k=40, top_p=0.95, seed=2**40),
]


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_drawn_tokens_are_those_of_the_plain_model_with_the_same_seed(
    model: PlainModel, sampling: TokenSampling
) -> None:
    """Also where layouts come and go, and sequences end early."""
    dice = random.Random(sampling.seed)
    whole = model.generate(PROMPTS, 11, sampling=sampling)
    assert whole != model.generate(PROMPTS, 11)
    for lane_size in (1, 3):
        end = dice.choice(dice.choice(whole))
        expected = [row[: row.index(end) + 1] if end in row else row for row in whole]
        work = stream(model, PROMPTS, 11, ends=frozenset({end}), lane_size=lane_size, sampling=sampling)
        next_step = 0
        while not work.done:
            cuts = sorted(dice.sample(range(1, LAYERS), dice.randint(0, 3)))
            chain = StageChain(model, cuts, dice, sampling=sampling)
            next_step = chain.run(work, next_step, dice.randint(4, 20))
        assert [sequence.tokens for sequence in work.sequences] == expected, lane_size


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ((0.0, 0, 1.0, 0), "--temperature 0: expected more than 0; leave it out for the likeliest token"),
        ((None, 5, 1.0, 0), "--top-k and --top-p: tokens are drawn only with a --temperature"),
        ((None, 0, 0.5, 0), "--top-k and --top-p: tokens are drawn only with a --temperature"),
        ((1.0, -1, 1.0, 0), "--top-k -1: expected 1 or more, or 0 for all tokens"),
        ((1.0, 0, 0.0, 0), "--top-p 0: expected more than 0 and at most 1"),
        ((1.0, 0, 1.0, -1), "--sample-seed -1: expected 0 to"),
    ],
)
def test_what_cannot_be_drawn_is_told(asked: tuple[float | None, int, float, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        TokenSampling.given(*asked)


@pytest.mark.parametrize("dtype", ["torch.bfloat16", "torch.float16", "torch.float64"])
def test_one_sequence_in_a_lane_is_exact_in_every_dtype(model: PlainModel, dtype: str) -> None:
    work = stream(model, PROMPTS, 8, lane_size=1)
    StageChain(model, [1, 3], random.Random(1), dtype).run(work)
    assert [sequence.tokens for sequence in work.sequences] == model.generate(PROMPTS, 8, dtype)


def _token(*numbers: int) -> Any:
    return torch.tensor(numbers)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> PlainModel:
    return PlainModel(tmp_path_factory.mktemp("llama"), "LlamaForCausalLM")


def steps(work: TokenStream, *numbers: int) -> list[tuple[list[list[int]], DecodeStep]]:
    found = []
    for number in numbers:
        given = work.inputs(number)
        assert given is not None
        found.append((given[0].tolist(), given[1]))  # type: ignore[union-attr]
    return found


def test_prompts_join_lanes_in_turn_and_sequences_leave_them(llama: PlainModel) -> None:
    work = stream(llama, [[1, 2], [3], [4, 5, 6]], 3, lanes=2, ends=frozenset({9}))
    work.restart(1)
    assert steps(work, 0, 1) == [
        ([[1, 2]], DecodeStep(0, [], None, True)),
        ([[3]], DecodeStep(1, [], None, True)),
    ]
    work.deliver(0, _token(7))
    assert steps(work, 2) == [([[4, 5, 6]], DecodeStep(0, [2], None, True))]
    work.deliver(1, _token(9))  # its last token: nothing is left in lane 1
    work.deliver(2, _token(8))
    assert steps(work, 3) == [([[7], [8]], DecodeStep(0, [2, 3]))]
    work.deliver(3, _token(9, 8))
    assert steps(work, 4) == [([[8]], DecodeStep(0, [4], [1]))]
    work.deliver(4, _token(5))
    assert work.done
    assert work.inputs(5) is None
    figures = work.figures(1, even_plan(2), even_plan(2))
    assert (figures.sequences, figures.completed, figures.tokens) == (3, 3, 6)
    assert (figures.predicted_tokens_s, figures.predicted_first_token_s) == (None, None)
    assert [sequence.tokens for sequence in work.sequences] == [[7, 9], [9], [8, 8, 5]]


def test_tokens_are_counted_while_all_sequences_are_decoded_by_one_plan(
    llama: PlainModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter(range(100))
    monkeypatch.setattr("time.monotonic", lambda: float(next(now)))
    work = stream(llama, [[1], [2]], 9, lanes=1, ends=frozenset({9}))
    work.restart(1)  # at 0
    for number, tokens in enumerate([(5,), (5,), (5, 5), (5, 5)]):  # at 1 to 4: both are decoded from 2 on
        steps(work, number)
        work.deliver(number, _token(*tokens))
    work.restart(2)
    for number, tokens in enumerate([(5,), (5,), (5, 5), (5, 5), (5, 9), (5,), (9,)], 4):  # at 5 to 11, from 6 to 9
        steps(work, number)
        work.deliver(number, _token(*tokens))
    assert work.done
    asked, again = even_plan(2), even_plan(1)
    assert [work.figures(plan, asked, asked).steady_tokens_s for plan in (1, 2, 3)] == [2.0, 2.0, None]
    asked.generation = GenerationFigures(
        prompt=1, context=10, concurrency=2, groups=1, ttft_s=3.0, step_s=0.5, tokens_s=4.0, source="measured",
        prefill_s=[], kv_mib=[], widths=[],
    )  # fmt: skip
    figures = work.figures(1, asked, asked)
    assert (figures.predicted_tokens_s, figures.predicted_first_token_s, figures.step_s) == (4.0, 3.0, 1.0)
    figures = work.figures(2, asked, again)  # not what the first plan said
    assert (figures.predicted_tokens_s, figures.predicted_first_token_s) == (2 / again.latency_s, None)


def test_a_new_layout_reads_prompts_with_the_tokens_so_far(llama: PlainModel) -> None:
    work = stream(llama, [[1, 2], [3]], 4, lanes=1)
    work.restart(1)
    steps(work, 0)
    work.deliver(0, _token(7))
    steps(work, 1)
    work.deliver(1, _token(8))
    steps(work, 2)  # lost with its layout
    work.restart(1)
    assert steps(work, 2) == [([[1, 2, 7]], DecodeStep(0, [], None, True))]
    work.deliver(2, _token(6))
    assert steps(work, 3) == [([[3, 8]], DecodeStep(0, [3], None, True))]


def test_whoever_waits_for_a_step_can_be_interrupted(llama: PlainModel) -> None:
    work = stream(llama, [[1]], 4, lanes=1)
    work.restart(1)
    steps(work, 0)
    given: Queue[Any] = Queue()
    waiting = threading.Thread(target=lambda: given.put(work.inputs(1)), daemon=True)
    waiting.start()
    work.interrupt()
    assert given.get(timeout=60) is None
    work.restart(1)
    assert steps(work, 1) == [([[1]], DecodeStep(0, [], None, True))]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], r"generate: expected a list of prompts, found \[\]"),
        ([[]], r"generate: prompt 1: expected a text or token ids, found \[\]"),
        ([[1, 2.5]], r"prompt 1: expected a text or token ids, found \[1, 2.5\]"),
        ([[1], [True]], r"prompt 2: expected a text or token ids, found \[True\]"),
        (["a text"], "no tokenizer, so prompts must be token ids"),
        ([[1], [97]], "prompt 2: token 97: expected 0 to 96"),
        ([[1] * 60], "prompt 1: 60 tokens and --max-new-tokens 32: the model reads 64 at most"),
        ("nowhere.json", "nowhere.json: no such file"),
    ],
)
def test_prompts_that_cannot_be_read_are_told(llama: PlainModel, given: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Prompts(given, llama.spec).check(llama.chain.decoder(1, 1).model.config, 32)


def test_tokens_that_end_a_sequence() -> None:
    config = transformers.LlamaConfig(eos_token_id=[3, 4])
    assert end_tokens(config) == {3, 4}
    config.eos_token_id = 7
    assert end_tokens(config) == {7}
    config.eos_token_id = None
    assert end_tokens(config) == frozenset()
