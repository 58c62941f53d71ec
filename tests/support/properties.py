"""Which of Hypothesis' health checks the tests turn off."""

from hypothesis import HealthCheck

BUSY = (HealthCheck.too_slow,)
"""No example fails because the machine is busy."""
BUSY_OR_SHARED = (*BUSY, HealthCheck.function_scoped_fixture)
"""For tests whose examples may share a fixture."""
