"""What a shell completes: names that are found when the key is pressed, and the script that asks for them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from cyclopts import App, Parameter

_MOST = 500  # names that are offered
_EVENTS = 20_000  # of a journal that are looked through for them

Found = Iterable[str] | Mapping[str, str]


def policies_of(level: str) -> Parameter:
    """The policies of a level that are installed.

    >>> "dovetail" in policies_of("workflow").completer(None)
    True
    """

    def names(_: Any) -> list[str]:
        from dovetail.core import registry

        return registry.names(level)

    return Parameter(completer=names)


def host_rules(kind: Literal["planning", "assignment"]) -> Parameter:
    """The plannings of the host level that are installed, or its assignments.

    >>> "fcfs" in host_rules("planning").completer(None), "strict" in host_rules("assignment").completer(None)
    (True, True)
    """

    def names(_: Any) -> list[str]:
        from dovetail.host import policies

        return [row["name"] for row in policies() if row["kind"] == kind]

    return Parameter(completer=names)


def of_service(level: Literal["cluster", "workflow"], look: Callable[[Any], Found]) -> Parameter:
    """Names that a running service knows, which is looked for where the command would look."""

    def names(context: Any) -> Found:
        from importlib import import_module

        state, url, token_file = (_typed(context, name) for name in ("state", "url", "token_file"))
        return look(import_module(f"dovetail.{level}").connect(url or state, token_file))

    return Parameter(completer=names)


def _host_programs(context: Any) -> Found:
    from dovetail.host import connect

    with connect(_typed(context, "state")) as client:
        return {program.id: f"{program.state}: {program.name}" for program in client.list()}


def _jobs_of_journal(context: Any) -> Found:
    """Of the journal that is named, or the newest one here."""
    from dovetail.cli.common import newest_journal
    from dovetail.core.events import Arrived
    from dovetail.core.journal import open_journal

    entries = islice(open_journal(_typed(context, "journal") or newest_journal()), _EVENTS)
    return islice((entry.event.job for entry in entries if isinstance(entry.event, Arrived)), _MOST)


def _models(context: Any) -> Found:
    """Of the planner's file of models."""
    from dovetail.core.files import Document

    return list(Document.read(Path(_typed(context, "models_file") or "models.yml")).data)


def _python_names(context: Any) -> Iterator[str]:
    """FILE.py:NAME for what the files here define, or those of the folder that has been typed."""
    import ast

    folder = Path(context.incomplete).parent if "/" in context.incomplete else Path()
    for file in sorted(folder.glob("*.py")):
        for defined in ast.parse(file.read_text()).body:
            if isinstance(defined, ast.FunctionDef | ast.ClassDef) and not defined.name.startswith("_"):
                yield f"{file}:{defined.name}"


def _typed(context: Any, name: str) -> Any:
    found = context.get(name)
    return found.value if found is not None and found.provided else None


CLUSTER_JOBS = of_service("cluster", lambda client: {str(job.id): f"{job.state}: {job.name}" for job in client.jobs()})
CLUSTER_NODES = of_service("cluster", lambda client: [node.name for node in client.nodes()])
HOST_PROGRAMS = Parameter(completer=_host_programs)
JOURNAL_JOBS = Parameter(completer=_jobs_of_journal)
PIPELINE_MODELS = Parameter(completer=_models)
PYTHON_NAMES = Parameter(completer=_python_names)
WORKFLOW_RUNS = of_service("workflow", lambda client: {run.id: f"{run.state}: {run.workflow}" for run in client.runs()})
WORKFLOWS_SERVED = of_service("workflow", lambda client: client.models())


_FILES = """\
_dovetail_files() {  # names with spaces stay whole, and a folder ends in a slash
  local name
  compopt -o filenames 2>/dev/null
  COMPREPLY=()
  while IFS= read -r name; do COMPREPLY+=("$name"); done < <(compgen "$1" -- "$cur")
}

"""
_SEVERAL = """\
  # What follows an option of several values is one of them, until the next option.
  local _option=$((COMP_CWORD - 1))
  while [[ $_option -gt 0 && "${COMP_WORDS[_option]}" != -* ]]; do _option=$((_option - 1)); done
  case "${cmd_path[*]} ${COMP_WORDS[_option]}" in
    %s) prev="${COMP_WORDS[_option]}" ;;
  esac

"""


def script(app: App, shell: Literal["bash", "zsh", "fish"]) -> str:
    """The completion script of cyclopts; for bash with files as bash itself completes them, and options of several
    values."""
    text = app.generate_completion(shell=shell)
    if shell != "bash":
        return text
    text = re.sub(r'COMPREPLY=\( \$\(compgen (-[fd]) -- "\$\{cur\}"\) \)', r"_dovetail_files \1", text)
    several = "|".join(f'"{words}"' for words in sorted(_of_several_values(app)))
    return _FILES + text.replace("  # Determine command level", _SEVERAL % several + "  # Determine command level", 1)


def _of_several_values(app: App) -> set[str]:
    """Commands with such an option, as `workflow compare --policy`."""
    from cyclopts.completion._base import extract_completion_data

    return {
        " ".join((*path, name))
        for path, data in extract_completion_data(app).items()
        for argument in data.arguments
        if argument.parameter.consume_multiple
        for name in argument.parameter.name or ()
        if name.startswith("-")
    }
