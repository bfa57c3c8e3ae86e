"""Who may use a service, and where it is: a token and a URL, in files of its folder that only its user can read.

A token never stands in a command line or a log: a server makes the file, a client reads it or takes the token from the
environment.
"""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from msgspec import Struct

from dovetail.core.errors import InputError
from dovetail.core.files.document import as_path

AnyPath = str | os.PathLike[str]
TOKEN_FILE = "token"
URL_FILE = "url"
TOKEN_VARIABLE = "DOVETAIL_TOKEN"
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


class Address(Struct, frozen=True):
    """Where a service answers, and the word that it wants to hear."""

    url: str
    token: str

    def __repr__(self) -> str:
        return f"Address({self.url})"


def is_loopback(host: str) -> bool:
    return host in _LOOPBACK or host.startswith("127.")


def own_folder(path: Path) -> None:
    """Make a folder for its user alone. One that is another's, or that others may write to, is refused: they could put
    there what this user would run, or another token."""
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = path.stat()
    except OSError as error:
        raise InputError(f"{path}: cannot be the folder of the state: {error.strerror}") from error
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid != os.geteuid():
        raise InputError(f"{path}: belongs to user {found.st_uid}; expected a folder of user {os.geteuid()}'s own")
    if mode & 0o022:
        raise InputError(f"{path}: others can write there (mode {mode:o}); expected mode 700: chmod 700 {path}")


def token_in(path: Path) -> str:
    """The token of a file, which is made if it is not there. One that others can read is refused: it is no secret."""
    if os.path.exists(path):
        return read_token(path)
    part = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
            out.write(secrets.token_urlsafe(32) + "\n")
        with suppress(FileExistsError):  # of two who make one at once, the first one's counts
            os.link(part, path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from error
    finally:
        with suppress(OSError):
            part.unlink()
    return read_token(path)


def read_token(path: Path) -> str:
    """The token that a file holds.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "token"
    >>> token_in(path) == read_token(path), oct(path.stat().st_mode & 0o777)
    (True, '0o600')
    """
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        token = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: the token cannot be read: {getattr(error, 'strerror', error)}") from None
    if mode & 0o077:
        raise InputError(f"{path}: others can read it (mode {mode:o}); expected mode 600: chmod 600 {path}")
    if not token.isascii() or not token.isprintable() or len(token) < 16 or " " in token:
        raise InputError(f"{path}: expected a token of at least 16 letters and digits in one line")
    return token


def state_folder(level: str, given: AnyPath | None, what: str = "state") -> Path:
    """Where a level's service keeps its state: as given, from the environment, or the user's own place for such things.

    >>> str(state_folder("host", "/x")), state_folder("host", None).parts[-2:]
    ('/x', ('dovetail', 'host'))
    """
    if given is not None:
        return as_path(given, what).absolute()
    if named := os.environ.get(f"DOVETAIL_{level.upper()}_STATE"):
        return Path(named).absolute()
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "dovetail" / level


def find_service(level: str, place: AnyPath | None, token_file: AnyPath | None) -> Address:
    """The service of a level whose state is in this folder, or in the usual one, or which answers at this URL; the
    token of the usual folder is taken if its service has this URL."""
    named = None if token_file is None else as_path(token_file, "token_file")
    if isinstance(place, str) and is_url(place):
        url, usual = place.rstrip("/").removesuffix("/v1"), state_folder(level, None)  # OpenAI's clients want its /v1
        with suppress(OSError):
            if named is None and (usual / URL_FILE).read_text().strip() == url:
                return find(usual)
        return find(url, named)
    folder = state_folder(level, place)
    if not (folder / URL_FILE).exists():
        start = f"`dovetail {level} serve` starts one, --state or --url names another"
        raise InputError(f"no service answers in {folder}: {start}")
    return find(folder, named)


def find(place: AnyPath, token_file: Path | None = None) -> Address:
    """The service of a folder, or at a URL. Its token is in `token_file`, else in that folder, else in the variable
    DOVETAIL_TOKEN."""
    url, folder = os.fspath(place), None
    if not is_url(url):
        folder = Path(url)
        try:
            url = (folder / URL_FILE).read_text().strip()
        except OSError:
            raise InputError(f"no service answers in {folder}: it has no file {URL_FILE}") from None
        if not is_url(url):
            raise InputError(f"{folder / URL_FILE}: expected a URL, found {url!r}")
    if token_file is None and folder is not None and (folder / TOKEN_FILE).exists():
        token_file = folder / TOKEN_FILE
    token = os.environ.get(TOKEN_VARIABLE, "") if token_file is None else read_token(token_file)
    if not token:
        raise InputError(f"{url}: its token is not known; name its file with --token-file, or set {TOKEN_VARIABLE}")
    return Address(url.rstrip("/"), token)


def is_url(text: str) -> bool:
    """Whether this is the URL of a service.

    >>> is_url("http://127.0.0.1:8000"), is_url("state/http"), is_url("ftp://x")
    (True, False, False)
    """
    parts = urlsplit(text)
    return parts.scheme in ("http", "https") and bool(parts.hostname)
