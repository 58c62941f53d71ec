"""Cases: a task with its checks, one TOML file each; a suite is a folder of them."""

from __future__ import annotations

import json
import re
import shlex
import stat
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, TypeVar

import tomlkit
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ava_audit.events import Ending
from ava_server.approval.output_schema import check_schema, find_mismatch
from ava_server.approval.requests import SpawnArgs, parse
from ava_server.core.errors import BadInput, ConfigError
from ava_server.models.json_text import deeper_than, fields_of
from ava_server.runs.record.quotes import normalize

SUITE = "suite.toml"
"""The one TOML file of a suite that is not a case."""
MOST_BYTES = 1_000_000
_NOT_ARGUMENTS = frozenset(
    ("role", "task", "context", "system_prompt", "workspace", "name", "task_id", "retry_of", "context_from", "ask")
)
_DEPTH = 64
_NO_JSON = f"only what JSON has, nested at most {_DEPTH} deep; write dates as text"
_LINE = re.compile(r"\(at line (\d+)")


class SuiteFaults(ConfigError):
    """Raised when cases are not valid; the text has a line for every fault, in a compiler's form."""


class TomlFile(BaseModel):
    """What is in a TOML file of a suite; see `read_toml`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def faults(self) -> list[tuple[tuple[str | int, ...], str]]:
        return []


T = TypeVar("T", bound=TomlFile)


class _Check(BaseModel):
    """Base of all checks."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def failure(self, result: Mapping[str, Any]) -> str | None:
        """Return why a stored result does not pass, in a sentence; None where it does."""
        raise NotImplementedError

    def fault(self) -> str | None:
        """Return why this is not a check, in a sentence; None if it is one."""
        return None


class Contains(_Check):
    """Every text stands in the output, whatever its case, white space and quote marks."""

    kind: Literal["contains"] = "contains"
    texts: tuple[str, ...]

    def failure(self, result: Mapping[str, Any]) -> str | None:
        output = _plain(output_text(result))
        missing = [text for text in self.texts if _plain(text) not in output]
        if not missing:
            return None
        return f"the output lacks {_list_texts(missing)}"

    def fault(self) -> str | None:
        if self.texts and all(map(_plain, self.texts)):
            return None
        return "it can never fail: an empty text stands in every output"


class Absent(_Check):
    """No text stands in the output."""

    kind: Literal["absent"] = "absent"
    texts: tuple[str, ...]

    def failure(self, result: Mapping[str, Any]) -> str | None:
        output = _plain(output_text(result))
        present = [text for text in self.texts if _plain(text) in output]
        if not present:
            return None
        return f"the output has {_list_texts(present)}"

    def fault(self) -> str | None:
        if not self.texts:
            return "it can never fail: it names no text"
        if not all(map(_plain, self.texts)):
            return "an empty text stands in every output"
        return None


class Schema(_Check):
    """The output holds a JSON schema."""

    kind: Literal["schema"] = "schema"
    schema_: dict[str, Any] = Field(alias="schema")

    def failure(self, result: Mapping[str, Any]) -> str | None:
        mismatch = find_mismatch(_untrusted(result).get("output"), self.schema_)
        if mismatch is None:
            return None
        return f"the output does not hold the schema: {mismatch}"

    def fault(self) -> str | None:
        fault = check_schema(self.schema_)
        if fault:
            return fault
        if any(find_mismatch(value, self.schema_) for value in _ANY_VALUES):
            return None
        return "it can never fail: this schema allows every value"


class Equals(_Check):
    """The output is this value."""

    kind: Literal["equals"] = "equals"
    value: Any

    def failure(self, result: Mapping[str, Any]) -> str | None:
        output = _untrusted(result).get("output")
        mismatch = find_mismatch(output, {"const": self.value})  # unlike ==, where true is 1
        if mismatch is None:
            return None
        return f"the output is {_short(output)}, not {_short(self.value)}"

    def fault(self) -> str | None:
        return check_schema({"const": self.value})


class Sources(_Check):
    """For each source, a finding names it (or a place in it) with a quote that was found in what the run read."""

    kind: Literal["sources"] = "sources"
    paths: tuple[str, ...]

    def failure(self, result: Mapping[str, Any]) -> str | None:
        sources = _quoted_sources(result)
        missing = [path for path in self.paths if not any(_is_place_in(path, source) for source in sources)]
        if not missing:
            return None
        return f"no finding quotes {_list_texts(missing)}"

    def fault(self) -> str | None:
        if not self.paths:
            return "it can never fail: it names no source"
        return None


class Verify(_Check):
    """The verify command passed on what a coder has changed."""

    kind: Literal["verify"] = "verify"

    def failure(self, result: Mapping[str, Any]) -> str | None:
        changes: Mapping[str, Any] = result.get("changes") or {}
        if changes.get("verified"):
            return None
        return "the verify command did not pass"


class Endings(_Check):
    """The run ended in one of these ways; without this check, a success is expected."""

    kind: Literal["ending"] = "ending"
    any: tuple[Ending, ...]

    def failure(self, result: Mapping[str, Any]) -> str | None:
        status = result.get("status")
        if status in self.any:
            return None
        return f"it ended with {status} ({result.get('stop_reason')})"

    def fault(self) -> str | None:
        if not self.any:
            return "it can never pass: it names no ending"
        return None


Check = Annotated[Contains | Absent | Schema | Equals | Sources | Verify | Endings, Field(discriminator="kind")]
_ANY_VALUES: tuple[Any, ...] = (None, True, 0, -1.5, "", "text", [], [None], {}, {"a": 1})
_EMPTY_ANSWERS: tuple[Mapping[str, Any], ...] = (
    {"status": "success", "untrusted_result": {"output": None, "findings": []}},
    {"status": "success", "untrusted_result": {"output": "", "findings": []}},
    {"status": "no_answer", "untrusted_result": {"output": None, "findings": []}},
    {"status": "no_answer", "untrusted_result": {"output": "", "findings": []}},
)


class Case(TomlFile):
    """One case.

    Attributes:
        task: What is asked; `context` and `system_prompt` as for `spawn_subagent`.
        arguments: Further arguments of `spawn_subagent`.
    """

    id: str = Field(exclude=True)
    folder: Path = Field(exclude=True)
    task: str = Field(min_length=1)
    role: str = "researcher"
    context: str | None = None
    system_prompt: str | None = None
    workspace: str | None = None
    recording: str | None = None
    tags: tuple[str, ...] = ()
    arguments: dict[str, Any] = {}
    checks: tuple[Check, ...] = Field(min_length=1)

    def failures(self, result: Mapping[str, Any]) -> list[str]:
        """Return why a stored result (`SubagentComplete.result`) does not pass, a sentence for each check."""
        checks = list(self.checks)
        if not any(isinstance(check, Endings) for check in checks):
            checks.insert(0, Endings(any=("success",)))
        failures = [check.failure(result) for check in checks]
        failures.append(self._lack_of_work(result))
        return list(filter(None, failures))

    def _lack_of_work(self, result: Mapping[str, Any]) -> str | None:
        """Return why a coder's result shows no work: nothing was changed, or what passes has passed before."""
        changes: Mapping[str, Any] | None = result.get("changes")
        if changes is None:
            return None
        if not changes.get("files"):
            return "the coder changed nothing"
        before = fields_of(fields_of(changes.get("verify")).get("before"))
        checks_answer = any(not isinstance(check, Verify | Absent | Endings) for check in self.checks)
        if before.get("passed") and not checks_answer:
            return "the verify command passes without any work; add a check of the answer, or a test that fails"
        return None

    def faults(self) -> list[tuple[tuple[str | int, ...], str]]:
        """Return what is wrong with it: where, and a sentence. A check that can never fail is wrong, too."""
        faults: list[tuple[tuple[str | int, ...], str]] = []
        for key, path, is_folder in (("workspace", self.workspace, True), ("recording", self.recording, False)):
            if path is None:
                continue
            fault = self._fault_of_path(path, is_folder)
            if fault is not None:
                faults.append(((key,), fault))
        faults += argument_faults(self.arguments, self.role, self.task)
        has_check_fault = False
        for number, check in enumerate(self.checks):
            fault = check.fault()
            if fault:
                has_check_fault = True
                faults.append((("checks", number), fault))
        if not has_check_fault and self._passes_empty_answer():
            fault = "the checks can never fail: an empty answer passes all of them; add one of the answer"
            faults.append((("checks", 0), fault))
        return faults

    def _passes_empty_answer(self) -> bool:
        expects_no_answer = any(isinstance(check, Endings) and "success" not in check.any for check in self.checks)
        for answer in _EMPTY_ANSWERS:
            if expects_no_answer and answer["status"] != "success":
                continue
            if not self.failures(answer):
                return True
        return False

    def path(self, relative: str) -> Path:
        return self.folder / relative

    def _fault_of_path(self, relative: str, is_folder: bool) -> str | None:
        """Return why a file or folder of the case cannot be used; None if it can."""
        path = self.path(relative)
        outside = f"{relative!r} has to lie in the folder of the case, also behind a link; give a path relative to it"
        if not _stays_beneath(relative):
            return outside
        if path.exists() and not path.resolve().is_relative_to(self.folder.resolve()):
            return outside
        if is_folder and not path.is_dir():
            return f"there is no folder {relative!r} beside the case"
        if not is_folder and not path.is_file():
            return f"there is no file {relative!r} beside the case"
        return None


def _stays_beneath(relative: str) -> bool:
    """Tell whether a path, which may also be one of Windows, stays beneath the folder that it is relative to."""
    path = PurePosixPath(relative)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        return False
    return "\\" not in relative and ":" not in relative


def argument_faults(arguments: Mapping[str, Any], role: str, task: str) -> Iterator[tuple[tuple[str], str]]:
    """Yield what is wrong with the `[arguments]` of a case or of a suite: where, and a sentence."""
    for key, value in arguments.items():
        if key in _NOT_ARGUMENTS:
            yield (key,), "a case has it itself, or each of its runs has its own; leave it out of [arguments]"
            continue
        try:
            parse(SpawnArgs, {"role": role, "task": task, key: value})
        except BadInput as error:
            yield (key,), str(error).removeprefix(f"{key}: ")


def load_cases(folder: Path) -> list[Case]:
    """Return the cases of a folder, by id. Blocking. Raises SuiteFaults if some are not valid, or there is none."""
    cases: list[Case] = []
    faults: list[str] = []
    files = sorted(path for path in folder.glob("*.toml") if path.name != SUITE)
    for path in files:
        result = read_toml(path, Case, id=path.stem, folder=path.parent)
        if isinstance(result, Case):
            cases.append(result)
        else:
            faults += result
    if not files:
        faults = [
            f"{folder}: there is no case in this folder;"
            f" `ava eval add S-… --to {shlex.quote(str(folder))}` makes one of a run"
        ]
    if faults:
        raise SuiteFaults("\n".join(faults))
    return cases


def read_toml(path: Path, kind: type[T], **fields: Any) -> T | list[str]:
    """Return what is in a file, with further `fields`, or every fault of it as `file:line: sentence`. Blocking."""
    text = ""
    try:
        text = read_bytes(path, MOST_BYTES).decode("utf-8-sig")
        document = tomllib.loads(text)
        faults: list[tuple[tuple[str | int, ...], str]] = []
        for key, value in document.items():
            if not _is_json(value):
                faults.append(((key,), _NO_JSON))
        if not faults:
            model = kind.model_validate({**document, **fields})
            faults = model.faults()
            if not faults:
                return model
    except ValidationError as error:
        faults = [(_place(fault["loc"]), fault["msg"]) for fault in error.errors()]
    except tomllib.TOMLDecodeError as error:
        match = _LINE.search(str(error))
        if match is None:
            return [f"{path}:1: {error}"]
        return [f"{path}:{match[1]}: {error}"]
    except UnicodeDecodeError:
        return [f"{path}:1: it is not UTF-8 text"]
    except OSError as error:
        return [f"{path}:1: it cannot be read ({error.strerror})"]
    except ConfigError as error:
        return [str(error)]
    except (ValueError, RecursionError):
        return [f"{path}:1: a number in it is too long, or its values are nested too deep"]
    return [f"{path}:{_line_of(text, place)}: {_key_path(place)}: {why}" for place, why in faults]


def read_bytes(path: Path, most: int) -> bytes:
    """Return what is in a file. Blocking.

    Raises:
        ConfigError: It is not a regular file (a pipe would never end), or is larger than `most` bytes.
        OSError: It cannot be read.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise ConfigError(f"{path}:1: it is not a regular file")
    with path.open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise ConfigError(f"{path}:1: it is larger than {most:,} bytes")
    return data


def _is_json(value: Any) -> bool:
    try:
        return bool(json.dumps(value, allow_nan=False)) and not deeper_than(value, _DEPTH)
    except (TypeError, ValueError, RecursionError):
        return False


_TABLES = ("arguments", "checks")


def write_case(case: Case) -> Path:
    """Write a new case into its folder, and return the path. Blocking. Raises SuiteFaults, FileExistsError."""
    path = case.folder / f"{case.id}.toml"
    faults = case.faults()
    if faults:
        raise SuiteFaults("\n".join(f"{path}: {_key_path(place)}: {why}" for place, why in faults))
    fields = case.model_dump(mode="json", by_alias=True, exclude_none=True)
    document = tomlkit.document()
    for key, value in fields.items():
        if key not in _TABLES and value not in ([], {}):
            document.add(key, value)
    for key in _TABLES:  # TOML has them last
        if fields[key]:
            document.add(key, tomlkit.item(_without_nulls(fields[key])))
    with path.open("x", encoding="utf-8") as file:
        file.write(tomlkit.dumps(document))
    return path


def output_text(result: Mapping[str, Any]) -> str:
    output = _untrusted(result).get("output")
    if output is None:
        return ""
    if isinstance(output, str):
        return output
    return json.dumps(output, ensure_ascii=False)


def _untrusted(result: Mapping[str, Any]) -> Mapping[str, Any]:
    return result.get("untrusted_result") or {}


def _plain(text: str) -> str:
    return normalize(text).casefold()


def _list_texts(texts: Sequence[str]) -> str:
    return ", ".join(map(_short, texts))


def _quoted_sources(result: Mapping[str, Any]) -> list[str]:
    """Return the sources of the findings whose quotes were found in what the run read."""
    findings: Sequence[Mapping[str, Any]] | None = _untrusted(result).get("findings")
    if not findings:
        return []
    sources: list[str] = []
    for check in result.get("quotes_checked") or ():
        number: int = check["finding"]
        if check["verdict"] == "found" and 1 <= number <= len(findings):
            sources.append(str(findings[number - 1].get("source_url")))
    return sources


def _is_place_in(path: str, source: str) -> bool:
    """Tell whether a source is a file or a place in it: `notes.md:3`, `report.pdf, page 2`."""
    return re.match(rf"{re.escape(path)}(?![^:,])", source) is not None


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    if len(text) > 80:
        text = f"{text[:79]}…"
    return text


def _without_nulls(value: Any) -> Any:
    """Return a value for TOML, which has no null."""
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, list):
        return [_without_nulls(each) for each in value]  # pyright: ignore[reportUnknownVariableType]
    return value


def _place(loc: Sequence[str | int]) -> tuple[str | int, ...]:
    """Return where a fault is, without the name of the kind that pydantic puts after the number of a check."""
    if loc[:1] != ("checks",):
        return tuple(loc)
    return (*loc[:2], *loc[3:])


def _key_path(place: Sequence[str | int]) -> str:
    """Return a place as a person writes it, e.g. `checks[1].texts`."""
    text = ""
    for part in place:
        if isinstance(part, int):
            text += f"[{part + 1}]"
        else:
            text += f".{part}"
    return text.lstrip(".")


def _line_of(text: str, place: Sequence[str | int]) -> int:
    """Return the line of a key, or of the table that it should be in, as a case is usually written."""
    lines = text.splitlines()
    begin = 0
    keys = list(place)
    if len(keys) > 1 and isinstance(keys[1], int):  # of a table such as [[checks]]
        index = keys[1]
        head = re.compile(rf"\s*\[\[\s*{keys[0]}\s*\]\]")
        heads = [number for number, line in enumerate(lines) if head.match(line)]
        if index < len(heads):
            begin = heads[index]
        keys = keys[2:]
    if keys:
        assignment = re.compile(rf"\s*\[*{re.escape(str(keys[0]))}\s*[=.\]]")
        for number in range(begin, len(lines)):
            if assignment.match(lines[number]):
                return number + 1
    return begin + 1
