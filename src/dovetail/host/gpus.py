"""The GPUs of a machine as programs hold them: alone, or several to one as far as its memory goes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from msgspec import Struct

from dovetail.core.errors import InputError
from dovetail.core.resources import devices_text, is_type
from dovetail.host.program import PAUSED, Ask, Program

_MOST = 1024
_UNITS = {"": 1, "m": 1, "mib": 1, "g": 1 << 10, "gib": 1 << 10, "t": 1 << 20, "tib": 1 << 20}
_FORM = "expected a count (of 80 GiB each), or TYPE:COUNT:MEMORY and so on, as a100:2:80g,l4:1:24g"


class GpuDevice(Struct, frozen=True, omit_defaults=True, repr_omit_defaults=True):
    """A GPU of the machine; `number` is the driver's, without it they are numbered from 0."""

    type: str
    memory_mib: int
    number: int | None = None


def parse_mib(text: str | int, what: str = "gpu_mem") -> int:
    """Memory in words.

    >>> parse_mib("20g"), parse_mib("512MiB"), parse_mib(300)
    (20480, 512, 300)
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", str(text).lower())
    mib = float(found[1]) * _UNITS[found[2]] if found and found[2] in _UNITS else 0.0
    if not 1 <= mib < 1 << 40:
        raise InputError(f"{what}: found {text!r}, expected memory as 20g, or in MiB")
    return int(mib)


def parse_gpus(text: str) -> tuple[GpuDevice, ...]:
    """The GPUs of a machine that is only thought of.

    >>> [(gpu.type, gpu.memory_mib) for gpu in parse_gpus("a100:2:80g,l4:1:24g")]
    [('a100', 81920), ('a100', 81920), ('l4', 24576)]
    """
    found: list[GpuDevice] = []
    for item in text.split(","):
        words = [word.strip() for word in item.split(":")]
        kind, count, memory = ("gpu", words[0], "80g") if len(words) == 1 else (*words, "", "")[:3]
        if not kind or len(words) not in (1, 3) or not (count.isascii() and count.isdigit()) or int(count[:5]) > _MOST:
            raise InputError(f"gpus: found {item.strip()!r}, {_FORM}")
        found += [GpuDevice(kind, parse_mib(memory, "gpus"))] * int(count)
    return tuple(found)


class GpuLedger:
    """Which programs hold which GPUs. One without `gpu_mem_mib` has its GPUs alone; a paused one may have given up
    those that its memory was on, and goes on there or nowhere."""

    def __init__(self, gpus: Sequence[GpuDevice], programs: Iterable[Program] = ()) -> None:
        self.gpus = gpus
        self._held: list[dict[str, Ask]] = [{} for _ in gpus]
        for program in programs:
            if program.gpus and (program.state != PAUSED or program.ask.gpu_pause == "hold"):
                self.take(program, program.gpus)

    def take(self, program: Program, gpus: Sequence[int]) -> None:
        for gpu in gpus:
            self._held[gpu][program.id] = program.ask

    def pause(self, program: Program) -> bool:
        """A program that held GPUs is paused; whether it gives them up."""
        gives = bool(program.gpus) and program.ask.gpu_pause == "release"
        for gpu in program.gpus if gives else ():
            self._held[gpu].pop(program.id, None)
        return gives

    def end(self, program: Program) -> None:
        for held in self._held:
            held.pop(program.id, None)

    def copy(self) -> GpuLedger:
        made = GpuLedger(self.gpus)
        made._held = [dict(held) for held in self._held]
        return made

    def free_mib(self, gpu: int) -> int:
        """What one more program could have of its memory: nothing beside one that has it alone."""
        needs = [ask.gpu_mem_mib for ask in self._held[gpu].values()]
        return 0 if None in needs else self.gpus[gpu].memory_mib - sum(mib or 0 for mib in needs)

    def has_room(self, gpu: int, ask: Ask) -> bool:
        return not self._held[gpu] if ask.gpu_mem_mib is None else self.free_mib(gpu) >= ask.gpu_mem_mib

    def room(self, program: Program) -> tuple[int, ...] | None:
        """The GPUs that a program would run on if it ran now, the least used ones; None if it cannot."""
        ask = program.ask
        if program.gpus:
            free = all(program.id in self._held[gpu] or self.has_room(gpu, ask) for gpu in program.gpus)
            return program.gpus if free else None
        fit = [i for i, gpu in enumerate(self.gpus) if is_of(gpu, ask) and self.has_room(i, ask)] if ask.gpus else []
        fit.sort(key=lambda i: (len(self._held[i]), -self.free_mib(i), i))
        return tuple(sorted(fit[: ask.gpus])) if len(fit) >= ask.gpus else None

    def lacks(self, program: Program) -> str:
        """Why a program cannot run for want of GPUs, or nothing."""
        if not program.ask.gpus or self.room(program) is not None:
            return ""
        if program.gpus:
            return f"waits for {'GPU' if len(program.gpus) == 1 else 'GPUs'} {devices_text(program.gpus)}, where it was"
        there = sum(is_of(gpu, program.ask) and self.has_room(i, program.ask) for i, gpu in enumerate(self.gpus))
        return f"needs {gpus_text(program.ask)}, {there or 'none'} free"

    def faults(self) -> list[str]:
        """GPUs that are shared with one that has them alone, or whose memory does not suffice."""
        found = []
        for i, (gpu, held) in enumerate(zip(self.gpus, self._held, strict=True)):
            needs = [ask.gpu_mem_mib for ask in held.values()]
            used = sum(mib or 0 for mib in needs)
            if len(needs) > 1 and None in needs:
                found.append(f"GPU {i}: found {', '.join(held)}, of which one has it alone")
            elif used > gpu.memory_mib:
                found.append(f"GPU {i}: found {used} MiB in use, expected up to {gpu.memory_mib} MiB")
        return found


def is_of(gpu: GpuDevice, ask: Ask) -> bool:
    """Whether a GPU is of the type that a program asks for, and large enough."""
    return (not ask.gpu_type or is_type(gpu.type, ask.gpu_type)) and (ask.gpu_mem_mib or 0) <= gpu.memory_mib


def gpus_text(ask: Ask) -> str:
    """
    >>> gpus_text(Ask(1, gpus=2, gpu_mem_mib=20480, gpu_type="a100")), gpus_text(Ask(1, gpus=1))
    ('2 GPUs of type a100 with 20480 MiB', '1 GPU')
    """
    words = f"{ask.gpus} GPU{'' if ask.gpus == 1 else 's'}"
    words += f" of type {ask.gpu_type}" if ask.gpu_type else ""
    return words + (f" with {ask.gpu_mem_mib} MiB" if ask.gpu_mem_mib else "")


def never_fits(gpus: Sequence[GpuDevice], ask: Ask) -> str:
    """Why a program can never have its GPUs on this machine, or nothing."""
    there = sum(is_of(gpu, ask) for gpu in gpus)
    return f"needs {gpus_text(ask)}, the machine has {there or 'none'}" if ask.gpus > there else ""
