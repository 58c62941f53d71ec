"""People whom a client can ask about a proposal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ava_server.approval.start_form import Question, Reply


@dataclass
class DialogPerson:
    """A person whom the client can ask in a dialog, and what they answer to each question.

    Attributes:
        action: What they do with a dialog.
        values: What they type into its fields.
        questions: What they were asked so far.
    """

    action: Literal["accept", "decline", "cancel", "silent"]
    values: Mapping[str, Any] = field(default_factory=dict[str, Any])
    questions: list[Question] = field(default_factory=list[Question])
    fills_forms: bool = True
    lines: int = 1_000

    async def ask(self, question: Question, use: Callable[[Reply], object]) -> Reply:
        """Note a question and answer it."""
        self.questions.append(question)
        return Reply(self.action, self.values)
