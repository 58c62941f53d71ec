"""Ava and its spans: with none at all, as it is where there is no SDK, and with an SDK that records each.

    python -m loop_parts.traced PORT none|silent|recorded

`none` puts an empty block in place of each: what Ava was before it had spans.
"""

from __future__ import annotations

import sys
from types import TracebackType

from ava_server import telemetry
from ava_server.core.threads import run_server
from loop_parts.ava import ava
from loop_parts.child import serve


class Empty:
    """A block in which nothing is traced."""

    def __enter__(self) -> Empty:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _where: TracebackType | None
    ) -> None:
        pass

    def note(self, _what: object) -> None:
        pass

    answered = brought = note


def cut_out() -> None:
    """Take the spans out."""
    empty = Empty()
    for name in ("invoke_agent", "chat", "execute_tool"):
        setattr(telemetry, name, lambda *_: empty)
    telemetry.run_ended = lambda *_: None


def record() -> None:
    """Have an SDK record all of them, in batches, for an exporter that throws them away."""
    from collections.abc import Sequence

    from opentelemetry import trace
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

    class Nowhere(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(Nowhere()))
    trace.set_tracer_provider(provider)


if __name__ == "__main__":
    if sys.argv[2] == "none":
        cut_out()
    elif sys.argv[2] == "recorded":
        record()
    serve(lambda url: ava(url, False, False), run_server)
