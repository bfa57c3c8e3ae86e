"""What keys mean after their programs were put aside with the journal that tells of them."""

from __future__ import annotations

from msgspec import Struct

from dovetail.core.service.store import Store

KIND, ENDS, ENVIRONMENT, KEY = "program", "ends", "environment", "key"
CommandPlace = tuple[tuple[str, ...], str, str]  # a command, an image, a folder


class PastKey(Struct):
    """Programs that have a key and are put aside: their numbers, and what each runs and where."""

    jobs: list[str] = []
    places: list[CommandPlace] = []


class _KeyedProgram(Struct):
    """Of what is kept of a program, what its key is held to."""

    key: str = ""
    command: tuple[str, ...] = ()
    image: str = ""
    cwd: str = ""


def put_aside(store: Store) -> None:
    """Forget all programs, which have ended; a key goes on to mean what it meant."""
    keys = {key: past for key, past, _ in store.things(KEY, PastKey, dict)}
    with store.together():
        for job, program, _ in list(store.things(KIND, _KeyedProgram, dict)):
            if program.key:
                past = keys.setdefault(program.key, PastKey([], []))
                past.jobs.append(job)
                past.places.append((program.command, program.image, program.cwd))
            store.drop(KIND, job)
        for key, past in keys.items():
            store.put(KEY, key, past)
        for kind in (ENDS, ENVIRONMENT):
            for name, _, _ in list(store.things(kind, dict, dict)):
                store.drop(kind, name)
