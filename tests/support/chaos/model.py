"""What the model server of the chaos test answers: it works for some turns, fails at times, and is often slow."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from typing import Any

from support.model_server import EVENTS, Fail, Gate, HangUp, Raw, Say, Step, events

TURNS = 4
NOTE = ("scratchpad", {"note": "half of it"})
DONE = ("submit_result", {"summary": "done", "output": "twelve cents"})


class Model:
    """A script whose next step is drawn at each request; `steps` counts each kind of answer."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self.steps: Counter[str] = Counter()

    def __call__(self, request: dict[str, Any]) -> Step:
        with self._lock:
            step = self._next(request)
            self.steps[type(step).__name__] += 1
            return step

    def _next(self, request: dict[str, Any]) -> Step:
        chance, messages = self._random.random(), request["messages"]
        turn = sum(message["role"] == "assistant" for message in messages)
        calls = [DONE] if turn >= TURNS or self._random.random() < 0.15 else [NOTE]
        gate = Gate(within_s=self._random.choice([0.01, 0.2, 0.5, 1.0, 3.0]))
        if chance < 0.04:
            return Fail(self._random.choice([429, 500, 503]), retry_after="0.2")
        if chance < 0.07:
            return HangUp(gate)
        if chance < 0.10:
            return Raw(events(Say("half", calls))[:3], EVENTS, chunked=True, cut=True)
        most = int(request.get("max_tokens") or request.get("max_completion_tokens") or 100)
        size = len(json.dumps(request))
        usage = {"prompt_tokens": max(100, size // 10), "completion_tokens": self._random.randint(10, most)}
        return Say("I look.", calls, usage={**usage, "total_tokens": sum(usage.values())}, gate=gate)
