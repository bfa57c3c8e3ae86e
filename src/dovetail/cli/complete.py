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
    from dovetail.core.files.document import Document

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


_ZSH = """\
  # What follows an option of several values is one of them, until the next option.
  local -i _option=$((CURRENT - 1))
  while (( _option > 1 )) && [[ "$words[_option]" != -* ]]; do (( _option -= 1 )); done
  if (( _option > 1 && _option < CURRENT - 1 )) && [[ "$words[CURRENT]" != -* ]]; then
    case "${(j: :)words[2,_option]}" in
%s
    esac
  fi

"""
# As a file of $fpath it is the function _dovetail itself, which zsh calls; read by a shell it says what to call.
_ZSH_CALLED = """
if [[ "$funcstack[1]" == _dovetail ]]; then _cyclopts_dovetail "$@"; else compdef _cyclopts_dovetail dovetail; fi
"""
_FISH = """
# What follows an option of several values is one of them, until the next option.
function __fish_dovetail_several
    set -l cmd (commandline -opc)
    set -l option (count $cmd)
    while test $option -gt 1; and not string match -qr -- '^-' $cmd[$option]
        set option (math $option - 1)
    end
    test $option -gt 1; and test $option -lt (count $cmd); or return 1
    for each in $argv
        string match -q -- $each (string join -- ' ' $cmd[2..$option]); and return 0
    end
    return 1
end
function __fish_dovetail_values
    set -l found (__fish_dovetail_complete)
    if test (count $found) -gt 0
        printf '%s\\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
"""


def script(app: App, shell: Literal["bash", "zsh", "fish"]) -> str:
    """The completion script of cyclopts, with options of several values; for bash with files as bash itself completes
    them, for zsh with the call that it lacks."""
    text = app.generate_completion(shell=shell)
    several = _of_several_values(app)
    if shell == "fish":
        found = "(__fish_dovetail_values)"
        return (
            text
            + _FISH
            + "".join(
                f"complete -c dovetail -f -n '__fish_dovetail_several {pattern}' -a '{choices or found}'\n"
                for pattern, choices in _by_choices(several, lambda path, option: f'"{path}* {option}"', " ")
            )
        )
    if shell == "zsh":
        found = "_cyclopts_dovetail_complete || _files"
        cases = "\n".join(
            f"      {pattern}) {f'compadd -- {choices}' if choices else found}; return ;;"
            for pattern, choices in _by_choices(several, lambda path, option: f'"{path}"*" {option}"', "|")
        )
        return text.replace("  _arguments -C", _ZSH % cases + "  _arguments -C", 1) + _ZSH_CALLED
    text = re.sub(r'COMPREPLY=\( \$\(compgen (-[fd]) -- "\$\{cur\}"\) \)', r"_dovetail_files \1", text)
    known = "|".join(f'"{words}"' for words in sorted(several))
    return _FILES + text.replace("  # Determine command level", _SEVERAL % known + "  # Determine command level", 1)


def _by_choices(
    several: Mapping[str, str], pattern: Callable[[str, str], str], between: str
) -> Iterator[tuple[str, str]]:
    """The choices of options of several values, nothing where they are found at that moment; and where they are had."""
    for choices in sorted({*several.values()}):
        named = (words.rpartition(" ") for words in sorted(several) if several[words] == choices)
        yield between.join(pattern(path, option) for path, _, option in named), choices


def _of_several_values(app: App) -> dict[str, str]:
    """Commands with such an option, as `workflow compare --policy`, and its choices if they are fixed."""
    from cyclopts.completion._base import extract_completion_data

    return {
        " ".join((*path, name)): " ".join(argument.get_choices() or ())
        for path, data in extract_completion_data(app).items()
        for argument in data.arguments
        if argument.parameter.consume_multiple
        for name in argument.parameter.name or ()
        if name.startswith("-")
    }
