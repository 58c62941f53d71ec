"""Spans of runs, model calls and tool calls, for those who operate a server with OpenTelemetry.

What must hold: no span contains text of a person, a model or a tool, or a key.
"""
