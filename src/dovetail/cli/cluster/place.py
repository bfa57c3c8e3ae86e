"""The words by which commands find a live cluster."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cyclopts import Parameter

from dovetail.core.errors import InputError

if TYPE_CHECKING:
    from dovetail.cluster import ClusterClient


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ClusterFlags:
    """Which service."""

    state: Path | None = None
    "Folder of the service's state; by default $DOVETAIL_CLUSTER_STATE or ~/.local/state/dovetail/cluster."
    url: str | None = None
    "Its address, in the place of the folder: http://127.0.0.1:8000."
    token_file: Path | None = None
    "File with its token; by default in the folder, else the variable DOVETAIL_TOKEN."

    def connect(self) -> ClusterClient:
        from dovetail.cluster import connect

        if self.url is not None and self.state is not None:
            raise InputError("--url and --state: expected one of them")
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            raise InputError(f"--url {self.url}: expected http://HOST:PORT")
        return connect(self.url or self.state, self.token_file)


PLACE = ClusterFlags()
