"""The desk: what the six tools do, in words of the domain. It knows nothing of MCP."""

from ava_server.desk.desk import Desk

__all__ = ["Desk"]
