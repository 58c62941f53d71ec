"""Machines, processes and networks that fail at random, for test_chaos, test_takeovers and the benchmarks."""
