"""Helpers that several tests share. Those of everybody are here; the folders say whose theirs are:

models: formats of model providers and search engines, for tests of models and of web search.
network: web sites, proxies, cables, load balancers and certificates, for tests of what passes through a network.
sandboxes: attacks on a sandbox, and processes in one, for tests of commands and files.
repositories: checkouts, and coders' work on them, for tests of worktrees and coders.
pages: a browser's side of the pages and the card, for tests of the web.
hosts: hosts, as profiles and as real programs, and the person at one, for tests of what hosts do.
foreign: MCP servers, documents and attacks by others, for tests of what subagents read.
chaos: machines, processes and networks that fail at random, for test_chaos, test_takeovers and the benchmarks.
schedules: a model of the whole system that plays random steps, for test_schedules and test_lifecycle.
logs: logs of the past, logs that are cut, and writers that are killed, for tests of the log.
commands: parts and surroundings of the command line, for tests of commands.
"""
