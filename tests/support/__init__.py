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
coverage: everything that can happen in a log, played once, for test_event_coverage.
approval: proposals, past runs and people's answers, for tests of approvals.
budget: runs that only spend, and runs that wait for money, for tests of budgets.
runs: owners, plans, histories, questions, tools and faults of runs, for tests of what drives them.
logs: stores, histories, mirrors and searches; logs that are old, cut, changed or on Postgres, for tests of the log.
commands: parts and surroundings of the command line, for tests of commands.
"""
