"""The brief of a run: its task, its context, its instructions, and what files of the project say about the work."""

# No `from __future__ import annotations`: pydantic would compile each of the fields' annotations again at every start.

from typing import Any

from pydantic import BaseModel

from ava_audit.events import UserMessage


class ProjectText(BaseModel, frozen=True, extra="forbid"):
    """What a file of the project says about working in it, read at the proposal: a run is given this and no other."""

    path: str
    text: str


class Brief(BaseModel, frozen=True, extra="forbid"):
    """The texts of a proposal. They are in the run's first `UserMessage`, so that they can be erased.

    Attributes:
        project: AGENTS.md and CLAUDE.md of the project, those nearest to the work last. No person wrote them.
        step: The step whose texts these are; None for a run or a whole plan.
        steps: The texts of each step of a plan as it was proposed; empty for a single run.
    """

    task: str
    context: str | None = None
    system_prompt: str | None = None
    rationale: str | None = None
    project: tuple[ProjectText, ...] = ()
    step: str | None = None
    steps: tuple["Brief", ...] = ()

    @classmethod
    def of_message(cls, task: UserMessage, steps: tuple["Brief", ...] = ()) -> "Brief":
        """Return the texts that a run's first message has, and those of a plan's steps."""
        return cls(
            task=task.text,
            context=task.context,
            system_prompt=task.system_prompt,
            rationale=task.rationale,
            project=tuple(ProjectText.model_validate(each) for each in task.project or ()),
            steps=steps,
        )

    def stored(self) -> dict[str, Any]:
        """Return the texts that there are, without those of steps."""
        left_out = {"steps"} if self.project else {"steps", "project"}
        return self.model_dump(mode="json", exclude_none=True, exclude=left_out)

    def of_step(self, step: str) -> "Brief":
        """Return the texts of a step of this plan, of which others may be dropped. Raises KeyError if it has none."""
        for own in self.steps:
            if own.step == step:
                return own
        raise KeyError(step)
