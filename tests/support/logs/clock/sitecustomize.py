"""Shift the clock of a Python process by AVA_TEST_CLOCK_S seconds. Python imports this file from PYTHONPATH."""

import os
import time

now_s, now_ns, shift_s = time.time, time.time_ns, float(os.environ.get("AVA_TEST_CLOCK_S", "0"))
time.time = lambda: now_s() + shift_s
time.time_ns = lambda: now_ns() + int(shift_s * 1e9)
