"""Models of transformers, served in this process: the same text as transformers writes, alone and in a batch."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from dovetail.core.errors import InputError
from dovetail.testing.workflow.random_models import write_model
from dovetail.workflow.live.backends import device_copy
from dovetail.workflow.live.backends.batched_decoder import BatchedDecoder, DecodedCall
from dovetail.workflow.live.backends.device_copy import DeviceCopy, spread
from dovetail.workflow.live.backends.sampling import Sampling, TokenChoice, sampling_of
from dovetail.workflow.live.backends.text_stream import TextStream
from dovetail.workflow.live.backends.torch_models import TorchBackEnd, make
from dovetail.workflow.live.backends.weights import MappedWeights
from dovetail.workflow.live.engines.local import LocalGpuEngine, emulated_gpus
from dovetail.workflow.live.protocol import (
    CALL_OPTIONS,
    Answer,
    AnswerPiece,
    BackEndError,
    Loaded,
    Memory,
    ModelCall,
    OutOfMemoryError,
    ServedModel,
    WorkerReady,
)
from tests.waiting import until

PROMPTS = [
    "the",
    "the quick brown fox jumps over",
    "naïve café in 東京 😀 " * 3,
    "a schedule says which goes first " * 5,
]
ON_CUDA = pytest.param("cuda:0", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    made: dict[str, Path] = {}

    def folder(kind: str = "llama", **more: Any) -> Path:
        key = json.dumps([kind, more], default=str)
        if key not in made:
            if kind == "mistral":
                more = _MISTRAL | more
            made[key] = write_model(tmp_path_factory.mktemp("model"), kind=kind, spread=0.3, **more)
        return made[key]

    return folder


_MISTRAL = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "sliding_window": 24,
}


@contextmanager
def loaded(path: Path, device: str = "cpu", **given: Any) -> Iterator[TorchBackEnd]:
    back_end = make(ServedModel(name="m", source={"path": str(path)}, **given))
    assert isinstance(back_end, TorchBackEnd)
    back_end.load([device])
    try:
        yield back_end
    finally:
        back_end.unload(keep=False)


class Asked:
    """A call and the pieces that came of it."""

    def __init__(self, back_end: TorchBackEnd, inputs: Any, stream: bool = False, **options: Any) -> None:
        self.pieces: list[tuple[str, int]] = []
        self.stopped = Event()
        inputs = inputs if isinstance(inputs, dict) else {"prompt": inputs}
        call = ModelCall(id="c", model="m", inputs=inputs, options=options, stream=stream)
        self.answer: Answer = back_end.call(call, self.take, self.stopped)
        self.text = self.answer.outputs.get("text")

    def take(self, text: str, tokens: int) -> None:
        self.pieces.append((text, tokens))


def written_alone(path: Path, prompt: str, tokens: int = 24, device: str = "cpu", **given: Any) -> tuple[str, int]:
    """What transformers itself makes of it, with how many tokens."""
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(path)
    model.to(device)
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(path)
    read = tokenizer(prompt, return_tensors="pt").to(device)
    found = model.generate(**read, max_new_tokens=tokens, do_sample=False, **given)[0, read.input_ids.shape[1] :]
    return tokenizer.decode(found, skip_special_tokens=True), len(found)


@pytest.mark.parametrize("device", ["cpu", ON_CUDA])
@pytest.mark.parametrize("kind", ["llama", "gpt2", "mistral"])
def test_the_text_is_the_one_that_transformers_writes_alone_and_in_a_batch(
    folders: Callable[..., Path], kind: str, device: str
) -> None:
    path = folders(kind)
    expected = [written_alone(path, prompt, device=device) for prompt in PROMPTS]
    assert len({text for text, _ in expected}) == len(PROMPTS)
    with loaded(path, device, slots=3) as back_end:  # one waits, and joins when another has left
        alone = [Asked(back_end, prompt, max_tokens=24) for prompt in PROMPTS]
        with ThreadPoolExecutor(len(PROMPTS)) as threads:
            lengths = (24, 7, 24, 24)
            together = list(threads.map(lambda p, n: Asked(back_end, p, max_tokens=n), PROMPTS, lengths))
        steps, tokens = back_end.status()["steps"], back_end.status()["tokens"]
    assert [(asked.text, asked.answer.written) for asked in alone] == expected
    assert [asked.text for asked in together if asked.answer.written == 24] == [
        text for (text, count), length in zip(expected, lengths, strict=True) if count == 24 == length
    ]
    assert steps < tokens - 2 * len(PROMPTS)  # several at once
    assert all(asked.pieces == [("", 1)] for asked in together)


def test_pieces_are_the_text_and_count_its_tokens(folders: Callable[..., Path]) -> None:
    with loaded(folders(), slots=2) as back_end:
        for prompt in PROMPTS:
            plain = Asked(back_end, prompt, max_tokens=60, ignore_eos=True)
            asked = Asked(back_end, prompt, stream=True, max_tokens=60, ignore_eos=True)
            assert "".join(text for text, _ in asked.pieces) == asked.text == plain.text
            assert sum(tokens for _, tokens in asked.pieces) == asked.answer.written == 60
            assert asked.pieces[0][1] == 1
            assert asked.answer.finish_reason == "length"


@pytest.fixture(scope="module")
def tokenizer(folders: Callable[..., Path]) -> Any:
    return transformers.AutoTokenizer.from_pretrained(folders())


@given(st.lists(st.integers(4, 399), max_size=40), st.lists(st.text(max_size=3), max_size=2))
def test_streamed_text_is_the_text_of_all_tokens(tokenizer: Any, ids: list[int], stop: list[str]) -> None:
    stream = TextStream(lambda some: tokenizer.decode(some, skip_special_tokens=True), stop)
    pieces = []
    for token in ids:
        pieces.append(stream.take(token))
        if stream.stopped:
            break
    pieces.append(stream.end())
    whole = tokenizer.decode(ids, skip_special_tokens=True)
    ends = [at for at in (whole.find(one) for one in stop if one) if at >= 0]
    assert "".join(pieces) == stream.text == whole[: min(ends, default=len(whole))]


def test_a_stop_string_ends_the_text_before_it(folders: Callable[..., Path]) -> None:
    with loaded(folders(), slots=1) as back_end:
        whole = Asked(back_end, "the", max_tokens=40, ignore_eos=True).text
        assert whole is not None
        stop = whole[9:13]
        for stream in (False, True):
            asked = Asked(back_end, "the", stream=stream, max_tokens=40, ignore_eos=True, stop=["never there", stop])
            assert asked.text == whole[: whole.index(stop)]
            assert asked.answer.finish_reason == "stop"
            assert asked.answer.written is not None
            assert asked.answer.written < 40
            if stream:
                assert "".join(text for text, _ in asked.pieces) == asked.text
                assert sum(tokens for _, tokens in asked.pieces) == asked.answer.written


def test_a_token_that_ends_an_answer_ends_it_as_transformers_does(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m", spread=0.3)
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(path)
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(path)
    last = int(model.generate(**tokenizer("the", return_tensors="pt"), max_new_tokens=9, do_sample=False)[0, -1])
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, last]}))
    expected = written_alone(path, "the")
    assert expected[1] < 24
    with loaded(path) as back_end:
        for stream in (False, True):
            asked = Asked(back_end, "the", stream=stream, max_tokens=24)
            assert asked.answer.finish_reason == "stop"
            assert asked.answer.written == expected[1]
            assert asked.text == expected[0].removesuffix(tokenizer.decode([last]))
            assert sum(tokens for _, tokens in asked.pieces) == (expected[1] if stream else 1)


def test_who_gives_a_seed_gets_the_same_answer_whoever_else_is_there(folders: Callable[..., Path]) -> None:
    with loaded(folders(), slots=4) as back_end:

        def draw(seed: int, **more: Any) -> Any:
            return Asked(back_end, "the", max_tokens=20, seed=seed, temperature=1.0, top_p=0.9, **more).text

        alone = [draw(seed) for seed in range(4)]
        assert len({*alone}) == 4
        with ThreadPoolExecutor(4) as threads:
            assert list(threads.map(draw, range(4))) == alone
        assert draw(1, top_k=1) == Asked(back_end, "the", max_tokens=20).text


@pytest.mark.parametrize("penalty", [1.5, 0.5])
def test_repetitions_are_penalised_as_transformers_does(folders: Callable[..., Path], penalty: float) -> None:
    expected, _ = written_alone(folders(), PROMPTS[1], repetition_penalty=penalty)
    with loaded(folders()) as back_end:
        assert Asked(back_end, PROMPTS[1], max_tokens=24, repetition_penalty=penalty).text == expected


def test_penalties_count_what_was_written() -> None:
    choice = TokenChoice(sampling_of({"presence_penalty": 1.0, "frequency_penalty": 0.5}), [3])
    logits = torch.tensor([2.0, 1.8, 0.0, 1.7])
    assert [int(choice.choose(logits)) for _ in range(5)] == [0, 1, 3, 0, 1]


def test_the_door_knows_the_options_of_text_models() -> None:
    assert set(CALL_OPTIONS) == set(Sampling.__struct_fields__)


def test_only_the_likely_are_drawn() -> None:
    logits = torch.log(torch.tensor([0.1, 0.5, 0.3, 0.06, 0.04]))
    for options, likely in (
        ({"top_p": 0.6}, {1, 2}),
        ({"top_k": 3}, {0, 1, 2}),
        ({"top_p": 0.01}, {1}),
        ({}, {*range(5)}),
    ):
        choice = TokenChoice(sampling_of({"temperature": 1.0, "seed": 1, **options}), [])
        assert {int(choice.choose(logits)) for _ in range(300)} == likely


def test_a_call_that_is_stopped_ends_and_the_others_go_on(folders: Callable[..., Path]) -> None:
    with loaded(folders(), slots=2) as back_end:
        expected = Asked(back_end, PROMPTS[1], max_tokens=80, ignore_eos=True)
        stopped, began = Event(), Event()

        def take(text: str, tokens: int) -> None:
            began.set()
            if text.strip():
                stopped.set()

        call = ModelCall(id="c", model="m", inputs={"prompt": "the"}, options={"ignore_eos": True}, stream=True)
        with ThreadPoolExecutor(2) as threads:
            first = threads.submit(back_end.call, call, take, stopped)
            assert began.wait(300)
            other = threads.submit(Asked, back_end, PROMPTS[1], max_tokens=80, ignore_eos=True)
            ended = first.result()
            assert other.result().text == expected.text
        assert ended.finish_reason == "cancelled"
        assert ended.written is not None
        assert 0 < ended.written < 200
        never = back_end.call(call, take, stopped)
        assert (never.finish_reason, never.written, never.outputs) == ("cancelled", 0, {"text": ""})


def test_a_call_that_is_stopped_while_it_waits_for_room_ends_at_once(folders: Callable[..., Path]) -> None:
    with loaded(folders()) as back_end, ThreadPoolExecutor(2) as threads:
        decoder = BatchedDecoder(back_end._built, 1, torch.device("cpu"))
        began, goes_on, taken, stopped = Event(), Event(), list[int](), Event()

        def take(token: int) -> bool:
            taken.append(token)
            began.set()
            assert goes_on.wait(300)
            return not waits.ended.is_set() and len(taken) < 9

        runs = DecodedCall([1, 2], TokenChoice(sampling_of({}), [1, 2]), take, Event())
        waits = DecodedCall([1, 2], TokenChoice(sampling_of({}), [1, 2]), lambda token: True, stopped)
        ends = [threads.submit(decoder.decode, runs)]
        assert began.wait(300)
        ends.append(threads.submit(decoder.decode, waits))
        until(lambda: waits in decoder._waiting)
        stopped.set()
        goes_on.set()
        for end in ends:
            end.result()
        assert len(taken) < 9
        decoder.close()


def test_a_conversation_is_put_in_the_models_own_words_or_in_plain_ones(folders: Callable[..., Path]) -> None:
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "what is naïve?"}]
    parts = [messages[0], {"role": "user", "content": [{"type": "text", "text": "what is "}, {"text": "naïve?"}]}]
    own = "<s>system: be brief\n<s>user: what is naïve?\n<s>assistant: "
    plain = "system: be brief\nuser: what is naïve?\nassistant:"
    for path, text in ((folders(), own), (folders(chat=False), plain)):
        with loaded(path) as back_end:
            expected = Asked(back_end, text, max_tokens=12)
            for given in (messages, parts):
                asked = Asked(back_end, {"messages": given, "prompt": "not this"}, max_tokens=12)
                assert (asked.text, asked.answer.read) == (expected.text, expected.answer.read)
    with loaded(folders(), options={"chat": True, "defaults": {"max_tokens": 3}}) as back_end:
        asked = Asked(back_end, {"text": "hello"})
        expected = Asked(back_end, {"messages": [{"role": "user", "content": "hello"}]}, max_tokens=3)
        assert asked.answer == expected.answer


REFUSED: list[tuple[Any, Any, str]] = [
    ({"prompt": "the"}, {"temprature": 1}, "unknown option 'temprature'; did you mean 'temperature'?"),
    ({"prompt": "the"}, {"temperature": -1}, "temperature is -1.0; expected 0 to 100"),
    ({"prompt": "the"}, {"max_tokens": 0}, "max_tokens is 0; expected 1 or more"),
    ({"prompt": "the"}, {"top_p": 0}, "top_p is 0.0; expected above 0, up to 1"),
    ({"prompt": "the"}, {"stop": 3}, "options: Expected"),
    ({"prompt": "the " * 600}, {}, "the model reads up to 512"),
    ({"prompt": ""}, {}, "the text is empty"),
    ({"prompt": 3}, {}, "prompt: expected a text, found 3"),
    ({"image": "x"}, {}, "m has the inputs image; expected prompt or text"),
    ({"messages": []}, {}, "expected a list of messages"),
    ({"messages": [{"role": "user"}]}, {}, "expected a role and a text as content"),
]


def test_a_call_that_makes_no_sense_is_to_blame_itself(folders: Callable[..., Path]) -> None:
    with loaded(folders()) as back_end:
        for inputs, options, expected in REFUSED:
            with pytest.raises(BackEndError, match=re.escape(expected)) as caught:
                Asked(back_end, inputs, **options)
            assert caught.value.blame == "call"
        assert Asked(back_end, "the", max_tokens=2).answer.written == 2


def state(back_end: TorchBackEnd) -> dict[str, Any]:
    return {name: tensor.clone() for name, tensor in back_end._built.state_dict().items()}


@pytest.mark.parametrize("device", ["cpu", ON_CUDA])
@pytest.mark.parametrize("shards", [1, 3])
def test_kept_or_not_a_model_is_the_same_bit_by_bit(folders: Callable[..., Path], shards: int, device: str) -> None:
    path = folders(shards=shards)
    with loaded(path, device) as back_end:
        first, text = state(back_end), Asked(back_end, "the", max_tokens=9).text
        own: Any = transformers.AutoModelForCausalLM.from_pretrained(path)
        assert first.keys() == own.state_dict().keys()
        assert all(torch.equal(first[name].cpu(), tensor) for name, tensor in own.state_dict().items())
        del own  # it has the same files mapped
        assert back_end._built.lm_head.weight is back_end._built.model.embed_tokens.weight
        for keep in (True, False, True):
            back_end.unload(keep=keep)
            assert back_end.memory().device_mib == 0
            assert (back_end.memory().host_mib > 0) == keep == (str(path) in Path("/proc/self/maps").read_text())
            with pytest.raises(BackEndError, match="not loaded"):
                Asked(back_end, "the")
            back_end.load([device])
            assert back_end.memory().device_mib > 0
            again = state(back_end)
            assert all(torch.equal(first[name], again[name]) for name in first)
            assert Asked(back_end, "the", max_tokens=9).text == text
        back_end.unload(keep=True)
        back_end.unload(keep=False)  # host memory lets it go
        assert back_end.memory() == Memory()


def test_weights_are_mapped_and_come_back_to_where_they_were(
    folders: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with loaded(folders()) as back_end:
        weights, model = back_end._weights, back_end._built
        assert isinstance(weights, MappedWeights)
        assert all(weights.holds(tensor) for tensor in model.parameters())
        before = {name: tensor.data_ptr() for name, tensor in model.named_parameters()}
        copy = DeviceCopy(model, weights)
        monkeypatch.setattr(device_copy, "_sent", lambda host, device: host.clone())
        copy.make([torch.device("cpu")])
        assert not any(weights.holds(tensor) for tensor in model.parameters())
        copy.drop()
        assert {name: tensor.data_ptr() for name, tensor in model.named_parameters()} == before


def test_another_precision_is_what_transformers_makes_of_it(folders: Callable[..., Path]) -> None:
    own: Any = transformers.AutoModelForCausalLM.from_pretrained(folders(), dtype=torch.bfloat16)
    with loaded(folders(), options={"dtype": "bfloat16", "attn_implementation": "eager"}) as back_end:
        assert all(torch.equal(tensor, own.state_dict()[name]) for name, tensor in state(back_end).items())
        assert back_end._built.config._attn_implementation == "eager"
        assert Asked(back_end, "the", max_tokens=5).answer.written == 5


def test_without_room_nothing_stays_on_the_device(
    folders: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with loaded(folders()) as back_end:
        text = Asked(back_end, "the", max_tokens=5).text
        back_end.unload(keep=True)
        sent = 0

        def no_room(host: Any, device: torch.device) -> Any:
            nonlocal sent
            sent += 1
            if sent == 2:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
            return host.clone()

        monkeypatch.setattr(device_copy, "_sent", no_room)
        with pytest.raises(OutOfMemoryError, match=r"m needs \d+ MiB.*out of memory") as caught:
            back_end.load(["cpu"])
        assert caught.value.blame == "place"
        assert back_end.memory() == Memory()
        assert back_end.status()["state"] == "unloaded"
        monkeypatch.undo()
        back_end.load(["cpu"])
        assert Asked(back_end, "the", max_tokens=5).text == text


def test_a_batch_without_memory_goes_on_without_its_youngest(
    folders: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with loaded(folders(), slots=2) as back_end:
        expected = Asked(back_end, PROMPTS[1], max_tokens=60, ignore_eos=True).text
        forward, tight = back_end._built.forward, Event()

        def limited(*, input_ids: Any, past_key_values: Any, **given: Any) -> Any:
            found = forward(input_ids=input_ids, past_key_values=past_key_values, **given)
            if len(input_ids) > 1 and not tight.is_set():
                tight.set()
                raise torch.OutOfMemoryError("CUDA out of memory")
            return found

        monkeypatch.setattr(back_end._built, "forward", limited)
        with ThreadPoolExecutor(2) as threads:
            asked = [threads.submit(Asked, back_end, PROMPTS[1], max_tokens=60, ignore_eos=True) for _ in range(2)]
            errors = [one.exception() for one in asked]
        assert tight.is_set()
        assert sorted(type(error).__name__ for error in errors) == ["NoneType", "OutOfMemoryError"]
        assert [one.result().text for one in asked if not one.exception()] == [expected]
        assert back_end.status()["healthy"]


def test_a_broken_step_fails_its_calls(folders: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    with loaded(folders()) as back_end:

        def broken(**_: Any) -> Any:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

        monkeypatch.setattr(back_end._built, "forward", broken)
        with pytest.raises(BackEndError, match="illegal memory access") as caught:
            Asked(back_end, "the")
        assert caught.value.blame == "place"
        assert back_end.status()["healthy"] is False


def test_layers_are_spread_over_the_devices_of_a_window(folders: Callable[..., Path]) -> None:
    with loaded(folders(num_hidden_layers=4)) as back_end:
        expected = Asked(back_end, PROMPTS[2], max_tokens=20).text
        back_end.unload(keep=True)
        back_end.load(["cpu", "cpu"])
        assert Asked(back_end, PROMPTS[2], max_tokens=20).text == expected
        model, (first, second) = back_end._built, (torch.device("cuda", 0), torch.device("cuda", 1))
        places = spread(model, [first, second])
        assert [places[layer] for layer in model.model.layers] == [first, first, second, second]
        assert places[model.model.embed_tokens] == places[model.lm_head] == first  # they are one tensor
        assert places[model.model.norm] == second
        covered = {id(t) for module in places for t in (*module.parameters(), *module.buffers())}
        assert covered == {id(tensor) for tensor in (*model.parameters(), *model.buffers())}


def test_embeddings_are_means_of_the_last_states_or_as_the_models_files_say(tmp_path: Path) -> None:
    path = write_model(tmp_path / "bert", kind="bert", head="", spread=0.1)
    own: Any = transformers.AutoModel.from_pretrained(path)
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(path)
    texts = [f"{prompt} {i}" for i in range(12) for prompt in PROMPTS[:3]]  # more than are computed at once

    def states(text: str) -> torch.Tensor:
        with torch.no_grad():
            found: torch.Tensor = own(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        return found

    def found(inputs: Any, **options: Any) -> Any:
        with loaded(path, type="embedding", options=options) as back_end:
            asked = Asked(back_end, inputs)
            assert asked.answer.read == sum(len(tokenizer(text).input_ids) for text in texts[: len(inputs["input"])])
            return torch.tensor(asked.answer.outputs["embeddings"])

    means = torch.stack([states(text).mean(0) for text in texts])
    assert torch.allclose(found({"input": texts}), means, atol=1e-5)
    last = torch.stack([states(text)[-1] for text in texts])
    assert torch.allclose(found({"input": texts}, pooling="last"), last, atol=1e-5)
    (path / "1_Pooling").mkdir()
    (path / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    (path / "modules.json").write_text('[{"type": "sentence_transformers.models.Normalize"}]')
    first = torch.stack([states(text)[0] for text in texts[:3]])
    assert torch.allclose(found({"input": texts[:3]}), torch.nn.functional.normalize(first, dim=-1), atol=1e-5)


def test_classes_and_plain_tensors(tmp_path: Path) -> None:
    path = write_model(tmp_path / "bert", kind="bert", head="SequenceClassification", spread=0.1, num_labels=3)
    own: Any = transformers.AutoModelForSequenceClassification.from_pretrained(path)
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(path)
    with torch.no_grad():
        logits = own(**tokenizer(PROMPTS[1], return_tensors="pt")).logits[0]
    with loaded(path, type="classification") as back_end:
        outputs = Asked(back_end, {"text": PROMPTS[1]}).answer.outputs
        assert outputs["label"] == f"LABEL_{int(logits.argmax())}"
        assert list(outputs["scores"][0].values()) == pytest.approx(logits.softmax(-1).tolist(), abs=1e-6)
        with pytest.raises(BackEndError, match="has no option 'seed'") as caught:
            Asked(back_end, {"text": "the"}, seed=3)
        assert caught.value.blame == "call"
    with loaded(path, type="tagger", options={"class": "AutoModelForSequenceClassification"}) as back_end:
        found = Asked(back_end, {"text": PROMPTS[1]}).answer.outputs["logits"]
        assert found[0].tolist() == pytest.approx(logits.tolist(), abs=1e-5)


def damage_index(path: Path) -> None:
    weights = MappedWeights(path).tensors
    safetensors.torch.save_file({k: v for k, v in weights.items() if "layers.1.mlp" not in k}, path / "x")
    (path / "x").replace(path / "model.safetensors")


def cut(path: Path) -> None:
    whole = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(whole[:-5000])


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (damage_index, "no weights for model.layers.1.mlp.down_proj.weight"),
        (cut, "is cut short"),
        (lambda path: (path / "model.safetensors").write_bytes(b"no"), "not a safetensors file"),
        (lambda path: (path / "model.safetensors").unlink(), "expected model.safetensors"),
        (lambda path: (path / "config.json").unlink(), "a name on the hub needs hub: true"),
        (lambda path: (path / "tokenizer.json").unlink(), "cannot be loaded"),
    ],
)
def test_what_is_not_a_whole_model_is_not_served(tmp_path: Path, damage: Callable[[Path], None], expected: str) -> None:
    path = write_model(tmp_path / "m")
    damage(path)
    back_end = make(ServedModel(name="m", source={"path": str(path)}))
    with pytest.raises(BackEndError, match=expected):
        back_end.load(["cpu"])
    assert back_end.memory() == Memory()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"options": {"dtpe": "auto"}}, "m: source.options: unknown key 'dtpe'; did you mean 'dtype'?"),
        ({"options": {"dtype": "int4"}}, "m: source.options: Invalid enum value 'int4'"),
        ({"options": {"memory_limit_mib": 0}}, "memory_limit_mib is 0; expected 1 or more"),
        ({"type": "audio"}, "m: the type is 'audio'; expected llm, embedding, classification, or options.class"),
    ],
)
def test_settings_that_make_no_sense_are_refused(given: Any, expected: str) -> None:
    with pytest.raises(InputError, match=re.escape(expected)):
        make(ServedModel(name="m", source={"path": "/nowhere"}, **given))


def test_the_hub_is_asked_only_when_it_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    back_end = make(ServedModel(name="m", source={"path": "nobody/nothing", "hub": True}))
    with pytest.raises(BackEndError, match="nobody/nothing: cannot be had from the hub"):
        back_end.load(["cpu"])


def test_a_worker_process_serves_it(folders: Callable[..., Path]) -> None:
    reports: list[Any] = []
    model = ServedModel(name="m", source={"path": str(folders())}, slots=2)
    engine = LocalGpuEngine(emulated_gpus(1))
    engine.start({"m": model}, reports.append)
    try:
        until(lambda: any(isinstance(report, WorkerReady) for report in reports))
        engine.load(0, "m", (0,))
        until(lambda: any(isinstance(report, Loaded) for report in reports))
        for name in ("a", "b"):
            options = {"max_tokens": 9, "ignore_eos": True}
            call = ModelCall(id=name, model="m", inputs={"prompt": "the"}, options=options, stream=True)
            engine.call(0, call)
        until(lambda: sum(isinstance(report, Answer) for report in reports) == 2)
    finally:
        engine.close()
    answers = [report for report in reports if isinstance(report, Answer)]
    expected = written_alone(folders(), "the", 9)[0]
    assert [answer.outputs["text"] for answer in answers] == [expected, expected]
    pieces = [report for report in reports if isinstance(report, AnswerPiece) and report.call == "a"]
    assert "".join(piece.text for piece in pieces) == expected
    assert sum(piece.tokens for piece in pieces) == 9


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_cuda_device_is_left_as_it_was(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m", hidden_size=512, num_hidden_layers=8)
    before = torch.cuda.memory_allocated()
    with loaded(path, "cuda:0") as back_end:
        assert back_end._weights is not None
        assert back_end._weights.pinned
        Asked(back_end, "the", max_tokens=4)
        assert torch.cuda.memory_allocated() > before
        back_end.unload(keep=True)
        assert torch.cuda.memory_allocated() == before
    large = make(ServedModel(name="m", source={"path": str(path)}, options={"memory_limit_mib": 4}))
    try:
        with pytest.raises(OutOfMemoryError, match=r"m needs \d+ MiB; .* of cuda:0 are free, and 4 may be taken"):
            large.load(["cuda:0"])
        assert torch.cuda.memory_allocated() == before
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
