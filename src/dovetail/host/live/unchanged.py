"""Programs that take part in a resize without being changed: `python -m dovetail.host.agent -- train.py WORDS`.

A thread watches for a new number of cores. It is taken up by the main thread, which computes, between two calls: at the
end of the optimizer's step where torch trains, otherwise as soon as the interpreter gets to run. The number of
worker processes of torch's DataLoaders follows at the next epoch. Nothing is loaded that the program does not load.
"""

from __future__ import annotations

import _thread
import builtins
import ctypes
import importlib
import os
import pkgutil
import runpy
import sys
import threading
import time
import types
from importlib.machinery import SourceFileLoader, SourcelessFileLoader
from typing import Any

from dovetail.host import agent

_LOOK_EVERY_S = 0.05
_STEPPING_S = 2.0  # so long after a step the next one is waited for
_USAGE = "python -m dovetail.host.agent -- SCRIPT.py WORDS, or -- -m MODULE WORDS"


class Watcher:
    """Has the agent look at the right moments, and counts steps where torch tells of them."""

    def __init__(self, one: agent.Agent) -> None:
        self._agent = one
        self._stepped_at: float | None = None
        self._hooked = False
        self._call = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self._between_calls)

    def start(self) -> None:
        """Look once before the program begins, then watch."""
        self._agent.step(0)
        threading.Thread(target=self._watch, name="dovetail agent", daemon=True).start()

    def _watch(self) -> None:
        while True:
            time.sleep(_LOOK_EVERY_S)
            if (self._agent.is_news() and not self._steps_now()) or (not self._hooked and _is_loaded("torch")):
                ctypes.pythonapi.Py_AddPendingCall(self._call, None)

    def _steps_now(self) -> bool:
        return self._stepped_at is not None and time.monotonic() - self._stepped_at < _STEPPING_S

    def _between_calls(self, _: object) -> int:
        """In the main thread, between two instructions of the program, which must hear of nothing that goes wrong."""
        try:
            if not self._hooked and _is_loaded("torch"):
                self._hooked = True
                self._hook()
            if not self._steps_now():
                self._agent.step(0)
        except KeyboardInterrupt:
            _thread.interrupt_main()  # it came while we were at work, and is the program's
        except Exception as error:
            print(f"dovetail: {type(error).__name__}: {error}", file=sys.stderr)
        return 0

    def _hook(self) -> None:
        """Be told of every step of an optimizer, and of every epoch of a DataLoader."""
        optimizer: Any = importlib.import_module("torch.optim.optimizer")
        optimizer.register_optimizer_step_post_hook(self._stepped)
        loader: Any = importlib.import_module("torch.utils.data").DataLoader
        iterator = loader._get_iterator

        def resized(of: Any) -> Any:
            asked = of.__dict__.setdefault("_dovetail_asked", of.num_workers)
            if asked and self._agent.cores:
                of.num_workers = max(min(asked, self._agent.cores), 1)
            return iterator(of)

        loader._get_iterator = resized

    def _stepped(self, *_: object) -> None:
        if threading.current_thread() is threading.main_thread():
            self._stepped_at = time.monotonic()
            self._agent.step()


def _is_loaded(name: str) -> bool:
    """Whether a module was imported, to its end."""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return spec is not None and not getattr(spec, "_initializing", False)


def main(words: list[str]) -> int:
    """Run a program, as `python` would, under an agent."""
    if words[:1] in (["-h"], ["--help"]):
        print(_USAGE)
        return 0
    words = words[1:] if words[:1] == ["--"] else words
    is_module = words[:1] == ["-m"]
    words = words[1:] if is_module else words
    if not words:
        print(f"error: expected a program: {_USAGE}", file=sys.stderr)
        return 2
    if not is_module and not os.path.exists(words[0]):
        print(f"error: {words[0]}: there is no such script: {_USAGE}", file=sys.stderr)
        return 2
    sys.argv = words
    if os.environ.get(agent.FOLDER):
        Watcher(agent.current()).start()
    _run(words[0], is_module)
    return 0


def _run(name: str, is_module: bool) -> None:
    """Run it as `__main__`, which it stays: its threads and what it does at exit find their classes there, to the end.

    What `python` itself calls for `-m`, and for folders and archives, takes the `__main__` that is there, where
    `runpy.run_module` and `run_path` put the one before back when the last line is done.
    """
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    run_as_main: Any = vars(runpy)["_run_module_as_main"]
    path = os.path.abspath(name)
    if is_module:
        sys.path[0] = os.getcwd()
        run_as_main(name)
    elif pkgutil.get_importer(path) is not None:
        sys.path[0] = path
        run_as_main("__main__", False)
    else:
        sys.path[0] = os.path.dirname(os.path.realpath(path))
        is_compiled = path.endswith(".pyc")
        loader = (SourcelessFileLoader if is_compiled else SourceFileLoader)("__main__", path)
        code: Any = loader.get_code("__main__") if is_compiled else loader.source_to_code(loader.get_data(path), path)
        vars(main).update(__file__=path, __cached__=None, __loader__=loader, __builtins__=builtins)
        exec(code, vars(main))
