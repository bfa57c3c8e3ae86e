"""The daemon: a service, and a socket for one user's requests. `python -m dovetail.host.live.daemon FOLDER WISH`.

A request is a line of JSON, `{"do": ..., ...}`; so is its answer, `{"ok": ...}` or `{"error": ..., "code": ...}`.
"""

from __future__ import annotations

import os
import signal
import socketserver
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from inspect import signature
from pathlib import Path
from typing import Any, Union, get_type_hints

import msgspec
from msgspec import NODEFAULT, Struct, defstruct

from dovetail.core.errors import DovetailError
from dovetail.core.files.document import explain
from dovetail.host.live.client import SOCKET
from dovetail.host.live.service import Service
from dovetail.host.live.setup import RequestedSettings, set_up

LONGEST_LINE = 1 << 24


# What can be asked for, by the word after "do", and who does it; the other words are its parameters.
_DONE_BY: dict[str, Callable[..., Any]] = {
    "submit": Service.submit,
    "submit_all": Service.submit_all,
    "retry": Service.retry,
    "edit": Service.edit,
    "clean": Service.clean,
    "group": Service.group,
    "ask": Service.ask,
    "list": Service.listing,
    "wait": Service.wait,
    "about": Service.about,
    "past": Service.past,
    "journal": Service.journal,
    "rates": Service.rates,
    "down": Service.close,
}


def _request(do: str, method: Callable[..., Any]) -> type[Struct]:
    """A request as a struct of the method's parameters: what does not fit them is refused with its place."""
    types = get_type_hints(method)
    parameters = list(signature(method).parameters.values())[1:]
    fields = [(p.name, types[p.name], NODEFAULT if p.default is p.empty else p.default) for p in parameters]
    return defstruct(do, fields, tag=do, tag_field="do", frozen=True, forbid_unknown_fields=True)


Request: Any = Union[tuple(_request(do, method) for do, method in _DONE_BY.items())]  # noqa: UP007  made at run time


class _Talk(socketserver.StreamRequestHandler):
    """One connection: requests and answers until it is closed."""

    server: _Server

    def handle(self) -> None:
        ends = False
        while not ends and (line := self.rfile.readline(LONGEST_LINE)):
            try:
                reply, ends = self._reply(line)
                self.wfile.write(reply)
            except OSError:
                break
        if ends:  # not before the answer is on its way: the process may be gone in a moment
            self.server.service.close()

    def _reply(self, line: bytes) -> tuple[bytes, bool]:
        """The answer to a request, and whether it was the last."""
        ends = False
        try:
            request = msgspec.json.decode(line, type=Request)
            do, words = _DONE_BY[type(request).__name__], msgspec.structs.asdict(request)
            ends = do is Service.close
            reply: dict[str, Any] = {"ok": None if ends else do(self.server.service, **words)}
        except msgspec.ValidationError as error:
            keys, message = explain(error, Request)
            place = ".".join(map(str, keys))
            reply = {"error": f"{place}: {message}" if place else message, "code": 2}
        except msgspec.DecodeError as error:
            reply = {"error": f"not a request: {error}", "code": 2}
        except DovetailError as error:
            reply = {"error": str(error), "code": error.exit_code}
        except Exception as error:
            reply = {"error": f"internal error: {error!r}", "code": 1}
        return msgspec.json.encode(reply) + b"\n", ends


class _Server(socketserver.ThreadingUnixStreamServer):
    """Listens in a folder, however long its name is: an address holds some 100 bytes only."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, folder: Path, service: Service) -> None:
        self.service = service
        (folder / SOCKET).unlink(missing_ok=True)  # of a daemon that was killed: we hold the lock of the store
        self._folder = os.open(folder, os.O_PATH | os.O_DIRECTORY)  # ours, also if another takes its name
        super().__init__(f"/proc/self/fd/{self._folder}/{SOCKET}", _Talk)
        (folder / SOCKET).chmod(0o600)

    def server_close(self) -> None:
        super().server_close()
        with suppress(FileNotFoundError):
            os.unlink(SOCKET, dir_fd=self._folder)
        os.close(self._folder)


def run(folder: Path, wish: RequestedSettings) -> None:
    """Serve until told to go down, or by SIGTERM or Ctrl-C. The programs run on."""
    setup, store = set_up(folder, wish)
    with store:
        service = Service(folder, setup, store)
        server = _Server(folder, service)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: service.close())
        talking = threading.Thread(target=server.serve_forever, name="requests", daemon=True)
        talking.start()
        try:
            service.run()
        except Exception:  # whatever cannot be read or written in a folder that is not there
            if not service.is_gone():
                raise
        finally:
            server.shutdown()
            server.server_close()


def main(words: list[str]) -> int:
    try:
        run(Path(words[0]), msgspec.json.decode(words[1], type=RequestedSettings))
    except DovetailError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    except OSError as error:
        print(f"error: {words[0]}: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    ended_with = 1
    try:
        ended_with = main(sys.argv[1:])
    except BaseException:
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(ended_with)  # a thread that waits for a program to end need not be waited for: the next daemon goes on
