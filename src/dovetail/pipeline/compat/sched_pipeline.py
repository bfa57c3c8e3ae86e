"""`sched-pipeline`: the schedule of a model's layers over the available devices, as a YAML list.

A drop-in for PipeEdge's command of this name: same files, flags, defaults and output. It imports little, so that it
answers fast.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from dovetail.core.errors import DovetailError


def main(argv: Sequence[str] | None = None) -> int:
    """Print the best schedule; exit code 3 and `[]` if there is none, with the reason on stderr."""
    parser = argparse.ArgumentParser(
        prog="sched-pipeline",
        description="Schedule a model's layers over the available devices for the highest throughput.",
        epilog="Example: sched-pipeline -m google/vit-base-patch16-224 -b 8 -M models.yml. "
        "`dovetail pipeline plan` reads the same files and tells more.",
    )
    parser.add_argument("-d", "--dtype", default="torch.float32", help="data type [%(default)s]")
    parser.add_argument("-b", "--batch-size", type=int, default=8, help="microbatch size [%(default)s]")
    parser.add_argument("-i", "--buffers-in", type=int, default=2, help="inbound data buffers [%(default)s]")
    parser.add_argument("-o", "--buffers-out", type=int, default=2, help="outbound data buffers [%(default)s]")
    parser.add_argument("-m", "--model-name", default="google/vit-base-patch16-224", help="model [%(default)s]")
    parser.add_argument("-M", "--models-file", type=Path, default=Path("models.yml"), help="[%(default)s]")
    parser.add_argument("-T", "--dev-types-file", type=Path, default=Path("device_types.yml"), help="[%(default)s]")
    parser.add_argument("-D", "--dev-file", type=Path, default=Path("devices.yml"), help="[%(default)s]")
    parser.add_argument("ignored", nargs="*", help=argparse.SUPPRESS)  # as the older one did with what is no flag
    words = parser.parse_intermixed_args(argv)
    try:
        code = _schedule(words)
        sys.stdout.flush()  # what goes wrong with the output must show here, not while the interpreter shuts down
        return code
    except (OSError, UnicodeEncodeError) as error:
        with suppress(OSError, ValueError):  # what is still buffered has no reader, or no room
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return 141  # as a shell reports a program that SIGPIPE ended
        print(f"error: the output cannot be written: {getattr(error, 'strerror', error)}", file=sys.stderr)
        return 1
    except DovetailError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _schedule(words: argparse.Namespace) -> int:
    from dovetail.pipeline.compat.sched_files import DEVICE_TYPES, DEVICES, MODELS, read
    from dovetail.pipeline.inputs.files import load
    from dovetail.pipeline.plan import Infeasible
    from dovetail.pipeline.planner import plan

    unknown: list[str] = []
    pipeline = load(
        read(words.models_file, MODELS, unknown),
        read(words.dev_types_file, DEVICE_TYPES, unknown),
        read(words.dev_file, DEVICES, unknown),
        model=words.model_name,
        batch_size=words.batch_size,
        dtype=words.dtype,
        buffers_in=words.buffers_in,
        buffers_out=words.buffers_out,
    )
    for warning in [*unknown, *pipeline.warnings]:
        print(f"Warning: {warning}", file=sys.stderr)
    found = plan(pipeline)
    if isinstance(found, Infeasible):
        print("[]")
        for reason in found.reasons:
            print(f"no schedule: {reason}", file=sys.stderr)
        return 3
    if not found.optimal:
        print(f"Warning: the schedule is not proven to be the best: {found.proof()}", file=sys.stderr)
    print(found.schedule(), end="")
    return 0
