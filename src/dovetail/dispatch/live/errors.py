"""What a device's failure means: too little memory, a broken device, or an error of the function itself."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from dovetail.dispatch.chunk import ResultFormError

# After these a CUDA context is of no more use to its process.
_BROKEN = (
    "illegal memory access",
    "device-side assert",
    "unspecified launch failure",
    "misaligned address",
    "uncorrectable ECC",
    "illegal instruction",
    "invalid program counter",
)


class DeviceLostError(RuntimeError):
    """A device, or the process or machine behind it, is gone: its ranges move to the others."""


class Failure(Struct, frozen=True):
    """Which range failed, where, and at which attempt."""

    device: str
    start: int
    stop: int
    attempt: int
    error: BaseException


def is_lost(error: BaseException) -> bool:
    """Whether the device can do nothing more in this process."""
    if isinstance(error, DeviceLostError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _BROKEN)


def combined(failures: Sequence[Failure]) -> BaseException:
    """The error to raise: one is itself, several are a group; each has a note that says where it happened.

    >>> combined([Failure("cpu", 0, 10, 1, ValueError("no"))])
    ValueError('no')
    """
    errors: list[BaseException] = []
    for failure in failures:
        where = f"on {failure.device}, items {failure.start} to {failure.stop}, attempt {failure.attempt}"
        if where not in getattr(failure.error, "__notes__", ()):
            failure.error.add_note(where)
        if failure.error not in errors:
            errors.append(failure.error)
    if len(errors) == 1 or all(isinstance(error, ResultFormError) for error in errors):
        return errors[0]  # what cannot be put together is so for every chunk: one says it
    text = f"{len(errors)} chunks failed"
    if all(isinstance(error, Exception) for error in errors):
        return ExceptionGroup(text, [error for error in errors if isinstance(error, Exception)])
    return BaseExceptionGroup(text, errors)
