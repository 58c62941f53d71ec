"""Where the values of a call come from: what was read from outside does not decide what a run changes or sends.

A call of another server's tool that changes something takes only values from the approved task, its context, a person's
answers, and the sources that its role names in `effects` (`approved_texts.py`). A call that only reads, but whose
arguments leave the machine, must not carry what the run has read from files and other servers (`carried_data.py`).
Everything else is asked of a person. So are some calls for what they do (`acts.py`).

Texts are compared as the model was shown them (`compared_text.py`). No check takes much longer for a long text than its
length: a hostile text must not hold up other runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from ava_roles.role import ALLOW, ANY, ASK
from ava_roles.tools.run import READ_SKILL, READ_SUBAGENT_RESULT
from ava_roles.wrap import clean, one_line
from ava_server.core.threads import compute_alone
from ava_server.runs.asking.questions import MOST_VALUES, VALUE_CHARS, Doubt
from ava_server.runs.origins.acts import Act, Passed, is_equal_call, reason_to_ask
from ava_server.runs.origins.approved_texts import ApprovedTexts, new_parts
from ava_server.runs.origins.call_values import (
    fields_of_result,
    is_free,
    leaves,
    values_in_schema,
    values_of_call,
)
from ava_server.runs.origins.carried_data import CarriedData
from ava_server.runs.origins.compared_text import plain_text, stands_in, without_words, words_of
from ava_server.runs.record.history import PROJECT_FILES, SCRATCHPAD
from ava_server.runs.record.quotes import unwrap_output

if TYPE_CHECKING:
    from ava_audit.events import ActReason, ToolCall, ToolResult
    from ava_roles.tool import Tool, ToolSpec
    from ava_server.runs.record.history import History

READ_RESULT = READ_SUBAGENT_RESULT.name
_FROM_TASK = (READ_RESULT, PROJECT_FILES)
"""In place of a tool's name: texts that came with the task, or are read back. They count as files do."""
NAME_CHARS = 100
"""Characters of the name of an argument that are shown."""
MOST_LOOKED_FOR = 100
"""Pieces of the values of one call that are looked for; with more, a person is asked about all that no page shows."""
MOST_SAID = 20
"""Words of a call of a source that are left out of its result; with more, the result counts for nothing."""
MOST_OF_SOURCES = 2_000_000
"""Characters of a source's results that count; values from later ones are asked about."""
LONG_CHARS = 200_000
"""Characters of results and arguments from which a check takes more than a few milliseconds."""


class Origins:
    """The origins of one run's values, from its history: a resumed run has the same."""

    def __init__(self, history: History, effects: Mapping[str, tuple[str, ...]], specs: Mapping[str, ToolSpec]) -> None:
        self._history = history
        self._effects = effects
        self._specs = specs
        self._has_rules = any(words not in ((ALLOW,), (ASK,)) for words in effects.values())
        self._reads_private = any(map(_reads_private, specs.values()))
        self._texts: list[str] = []
        self._counted = 0
        self._chars = 0
        self._fields: dict[tuple[int, str], str] = {}

    def is_long(self, tool: Tool, args_chars: int) -> bool:
        """Tell whether the checks of a call read so much that other runs would wait: then use `doubts_apart`."""
        outputs = self._history.outputs
        self._chars += sum(len(result.output) for _seq, result in outputs[self._counted :])
        self._counted = len(outputs)
        return self._checks(tool.spec) and self._chars + args_chars > LONG_CHARS

    async def doubts_apart(self, tool: Tool, args: Mapping[str, Any]) -> tuple[Doubt, ...]:
        """Return what `doubts` does, from a thread."""

        def alone() -> tuple[Doubt, ...]:
            with compute_alone():
                return self.doubts(tool, args)

        return await anyio.to_thread.run_sync(alone)

    async def act_apart(self, tool: Tool, args: Mapping[str, Any], others: Iterable[ToolCall]) -> ActReason:
        """Return what `act` does, from a thread."""

        def alone() -> ActReason:
            with compute_alone():
                return self.act(tool, args, others)

        return await anyio.to_thread.run_sync(alone)

    def doubts(self, tool: Tool, args: Mapping[str, Any]) -> tuple[Doubt, ...]:
        """Return the values of a call that a person has to allow; none for most tools, at once."""
        spec = tool.spec
        if not self._checks(spec):
            return ()
        doubts = self._find_unapproved(spec, args) if self._takes_approved(spec) else self._find_carried(spec, args)
        allowed = self._history.decided_values(allowed=True)
        left = (each for each in doubts if (spec.name, each.argument, each.value) not in allowed)
        return tuple(islice(left, MOST_VALUES + 1))

    def judges_act(self, tool: Tool) -> bool:
        """Tell whether a call of a tool may have to be allowed whatever its values."""
        return tool.spec.foreign is not None and (tool.spec.writes or ASK in self._words_for(tool.spec))

    def act(self, tool: Tool, args: Mapping[str, Any], others: Iterable[ToolCall]) -> ActReason:
        """Return why a person has to allow a call itself, whatever its values; empty if they do not.

        `args` are written as the log has them. `others`: calls that were just begun, and may not be in the log yet.
        """
        spec = tool.spec
        if not self.judges_act(tool):
            return ""
        history = self._history
        allowed = history.decided_acts(allowed=True)
        return reason_to_ask(
            Act(
                changes=spec.writes,
                destroys=spec.destroys,
                idempotent=spec.idempotent,
                repeated=self._is_repeated(spec, args, others),
                role_asks=ASK in self._words_for(spec),
                role_allows=ALLOW in self._words_for(spec),
                allowed_for_run=history.is_allowed_for_run(spec.name),
                allowed_without_values=any(each.tool == spec.name and each.act == "no_values" for each in allowed),
                compared=any(True for _each in self._compared_values(spec, args)),
            )
        )

    def _words_for(self, spec: ToolSpec) -> tuple[str, ...]:
        """Return what the role says of all calls of a tool."""
        return self._effects.get(spec.name, ())

    def _is_repeated(self, spec: ToolSpec, args: Mapping[str, Any], others: Iterable[ToolCall]) -> bool:
        """Tell whether an equal call has succeeded, or may have."""
        passed = self._passed(spec, args)
        earlier: list[Mapping[str, Any]] = []
        for place, result in self._results():
            if result.tool == spec.name and (result.success or result.unknown):
                earlier.append(self._history.inputs[place] or {})
        for call_id, call in self._history.started.items():
            if call.tool == spec.name and call_id not in self._history.results:
                earlier.append(call.args or {})
        earlier += [call.args or {} for call in others if call.tool == spec.name]
        return any(is_equal_call(passed, self._passed(spec, each)) for each in earlier)

    def _passed(self, spec: ToolSpec, args: Mapping[str, Any]) -> Passed:
        """Return what a call passes: the values that are not free in every call, or all where it has none of these."""
        all_values = [(name, leaf) for name, leaf in values_of_call(spec, args) if leaf is not None]
        own_words = values_in_schema(spec.foreign)
        telling = [(name, leaf) for name, leaf in all_values if not is_free(leaf) and leaf not in own_words]
        return telling or all_values

    def _checks(self, spec: ToolSpec) -> bool:
        if self._takes_approved(spec):
            return True
        return spec.network and (self._reads_private or self._has_inputs)

    @property
    def _has_inputs(self) -> bool:
        """Whether results of other runs, or files of the project, came with its task."""
        task = self._history.task
        return task is not None and bool(task.inputs or task.project)

    def _takes_approved(self, spec: ToolSpec) -> bool:
        """Tell whether a tool counts as one that changes things; where a role has rules, no server's word counts."""
        if spec.foreign is None:
            return False
        return spec.writes or (self._has_rules and spec.network)

    # -- what is approved ---------------------------------------------------------------------------------------------

    def _find_unapproved(self, spec: ToolSpec, args: Mapping[str, Any]) -> Iterator[Doubt]:
        """Yield the values of a call that stand neither in approved texts nor in the sources of its rule."""
        by_person = ApprovedTexts(self._approved_by_person())
        by_rule: dict[tuple[str, ...], ApprovedTexts] = {}
        for name, leaf, rule in self._compared_values(spec, args):
            if by_person.has(leaf):
                continue
            if rule not in by_rule:
                by_rule[rule] = ApprovedTexts([*self._approved_by_person(), *self._texts_of_sources(rule, by_person)])
            if not by_rule[rule].has(leaf):
                yield Doubt(one_line(name, NAME_CHARS), visible(leaf), self._source_of(leaf))

    def _compared_values(self, spec: ToolSpec, args: Mapping[str, Any]) -> Iterator[tuple[str, Any, tuple[str, ...]]]:
        """Yield the values of a call that may not come from anywhere, each with its argument and the rule for that."""
        own_words = values_in_schema(spec.foreign)
        for name, leaf in values_of_call(spec, args):
            rule = self._effects.get(f"{spec.name}.{name}", self._words_for(spec))
            if ANY not in rule and not is_free(leaf) and leaf not in own_words:
                yield name, leaf, rule

    def _source_of(self, leaf: Any) -> str:
        """Return the tool whose result has a value; empty where none has it."""
        result = self._result_with(leaf)
        return "" if result is None else result.tool

    def _result_with(self, leaf: Any) -> ToolResult | None:
        """Return the first result that has a value, or None."""
        value = plain_text(str(leaf))
        if not value:
            return None
        # The name of a tool that does not exist was chosen by the model: it is not shown.
        known_tools = (*self._specs, PROJECT_FILES)
        for place, result in self._results():
            if result.tool in known_tools and value in self._text(place):
                return result
        return None

    # -- a question of the run ----------------------------------------------------------------------------------------

    def marks(self, options: Iterable[str]) -> tuple[dict[str, str], ...]:
        """Return what no approved text has in the options of a question: each with its option and its source."""
        if not any(map(self._checks, self._specs.values())):
            return ()
        by_person = ApprovedTexts(self._approved_by_person())
        marks: list[dict[str, str]] = []
        for option in options:
            for text in new_parts(option, by_person):
                mark = {"argument": option, "value": text, "source": ""}
                # The whole of it, or else its longest word that a result has.
                words = sorted(words_of(plain_text(text)), key=len, reverse=True)
                found = map(self._result_with, (text, *words))
                result = next((each for each in found if each is not None), None)
                if result is not None:
                    mark["source"] = result.tool
                    if len(result.sources) == 1:
                        mark["location"] = str(result.sources[0]["location"])
                marks.append(mark)
        return tuple(marks)

    def _approved_by_person(self) -> list[str]:
        """Return the texts that a person has approved or written: the task, its context and answers."""
        texts: list[str] = []
        task = self._history.task
        if task is not None:
            texts += [task.text, task.context or "", task.system_prompt or ""]
        texts += self._history.texts_of_answers()
        return [plain_text(text) for text in texts]

    def _texts_of_sources(self, rule: Sequence[str], by_person: ApprovedTexts) -> Iterator[str]:
        """Yield what the sources of a rule have returned; a tool that changes things is not a source.

        What a call itself said is left out: a source that repeats a question has not answered it.
        """
        left = MOST_OF_SOURCES
        for source in rule:
            name, _, key = source.partition(".")
            spec = self._specs.get(name)
            if spec is None or spec.writes:
                continue
            for place, result in self._results():
                if result.tool != name or not result.success:
                    continue
                said = self._words_of_call(place, by_person)
                text = self._field(place, key) if key else self._text(place)
                left -= len(text)
                if left < 0:
                    return
                if len(said) <= MOST_SAID:
                    yield without_words(said, text)

    def _words_of_call(self, place: int, by_person: ApprovedTexts) -> set[str]:
        """Return the values that the call of a result had, and their words, without those that a person approved."""
        said: set[str] = set()
        for leaf in leaves(self._history.inputs[place]):
            if not by_person.has(leaf):
                value = plain_text(str(leaf))
                said.add(value)
                said |= words_of(value)
        return said

    # -- what is private ----------------------------------------------------------------------------------------------

    def _find_carried(self, spec: ToolSpec, args: Mapping[str, Any]) -> Iterator[Doubt]:
        """Yield the values of a call that carry, or may carry, what the run has read and no page shows."""
        known_tools = {*self._specs, *_FROM_TASK}
        results = [(place, result) for place, result in self._results() if result.tool in known_tools]
        private = self._private_results(results)
        if not private:
            return
        values: list[tuple[str, str, CarriedData]] = []
        for name, leaf in values_of_call(spec, args):
            values.append((name, str(leaf), CarriedData(str(leaf))))
        all_data = CarriedData.union(data for _name, _value, data in values)
        has_many = all_data.most > MOST_LOOKED_FOR  # too many to look for: then each value with data is suspect
        private_pieces: dict[Any, str] = {}  # with the source of each
        if not has_many:
            private_pieces = self._sources_of_data(all_data, private)
        public = ""
        if private_pieces or has_many:
            public = self._public(results)
        if private_pieces:
            for piece in all_data.found_in(public):
                private_pieces.pop(piece, None)
        for name, value, data in values:
            source = next((private_pieces[piece] for piece in data if piece in private_pieces), "")
            may_carry = bool(source) or (has_many and data.most > 0)
            if may_carry and stands_in(plain_text(value), public):
                may_carry = False
            if data.hidden or may_carry:
                yield Doubt(one_line(name, NAME_CHARS), visible(value), source)

    def _private_results(self, results: Iterable[tuple[int, ToolResult]]) -> list[tuple[int, ToolResult]]:
        private: list[tuple[int, ToolResult]] = []
        for place, result in results:
            # What the model has noted is in no result, or in the one that it is from.
            if not self._is_of_web(result) and result.tool != SCRATCHPAD:
                private.append((place, result))
        return private

    def _sources_of_data(self, data: CarriedData, results: Iterable[tuple[int, ToolResult]]) -> dict[Any, str]:
        """Return which tool brought each piece of data first."""
        sources: dict[Any, str] = {}
        for place, result in results:
            for piece in data.found_in(self._text(place)):
                sources.setdefault(piece, result.tool)
        return sources

    def _public(self, results: Iterable[tuple[int, ToolResult]]) -> str:
        """Return what is not secret in the run; a refusal repeats what the model wrote, so only what pages say."""
        texts = self._approved_by_person()
        for place, result in results:
            if self._is_of_web(result) and result.success:
                texts.append(self._text(place))
        return "\n".join(texts)

    def _is_of_web(self, result: ToolResult) -> bool:
        """Tell whether a result is of the web; one that was read back has the sources of the first."""
        if result.tool in _FROM_TASK:
            return False
        spec = self._specs[result.tool]
        sources = [str(source["location"]) for source in result.sources]
        if spec.network and spec.foreign is None:
            return True
        return bool(sources) and all(each.startswith(("http://", "https://")) for each in sources)

    # -- the results --------------------------------------------------------------------------------------------------

    def _results(self) -> Iterator[tuple[int, ToolResult]]:
        return ((place, result) for place, (_seq, result) in enumerate(self._history.outputs))

    def _text(self, place: int) -> str:
        """Return a result as it is compared."""
        outputs = self._history.outputs
        for _seq, result in outputs[len(self._texts) : place + 1]:
            self._texts.append(plain_text(unwrap_output(result.output)))
        return self._texts[place]

    def _field(self, place: int, key: str) -> str:
        if (place, key) not in self._fields:
            values = fields_of_result(self._history.outputs[place][1], key)
            self._fields[place, key] = "\n".join(map(plain_text, values))
        return self._fields[place, key]


def visible(value: Any) -> str:
    """Return a value as a person is shown it: characters that nobody sees are named."""
    text = str(value)
    if not clean(text)[1]:
        return text
    return "".join(f"⟨U+{ord(char):04X}⟩" if clean(f"a{char}b")[1] else char for char in text[: VALUE_CHARS + 1])


def _reads_private(spec: ToolSpec) -> bool:
    """Tell whether a tool reads what is not public."""
    if spec.files or spec.commands or spec.memory or spec.results:
        return True
    return spec.foreign is not None or spec.name == READ_SKILL.name
