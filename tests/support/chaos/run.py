"""Play chaos, check everything that must hold after it, and say what was seen."""

from __future__ import annotations

import re
from pathlib import Path

import anyio.to_thread

from ava_audit.store.store import Store
from ava_audit.verify import verify
from support.chaos.checks import Sums, compare_calls
from support.chaos.play import LOW_CENTS, LOW_USERS, USER_CENTS, Chaos, Plan
from support.logs.cutting import all_entries
from support.postgres import PostgresServer
from support.runtime import check_budgets, check_requests


async def play_and_check(plan: Plan, folder: Path, postgres: PostgresServer) -> Chaos:
    """Play a plan, and return what was done and everything that was wrong."""
    chaos = Chaos(plan, folder, postgres)
    models, hosts = await chaos.play()
    root = folder / "checker"
    root.mkdir(mode=0o700)
    address = chaos.direct.replace(f":{postgres.password}@", "@")
    (root / "config.toml").write_text(f'database_url = "{address}"\napproval = "ask"\n')
    sums = Sums(dict.fromkeys(LOW_USERS, LOW_CENTS), USER_CENTS, plan.day_cents)
    async with Store.open(root) as store:
        for entry in await all_entries(store):
            sums.add(entry)
        await store.read(check_budgets)
    sums.finish(hosts.approved)
    chaos.faults += [*sums.faults, *compare_calls(sums, models.requests, models.answered)]
    await check_requests(root, models.requests)
    faulty = set(re.findall("S-[0-9a-f]+", " ".join(chaos.faults)))
    chaos.faults += ["\n".join(sums.lines.get(run, [])) for run in sorted(faulty)[:3]]
    report = await anyio.to_thread.run_sync(verify, root)
    chaos.faults += [f"ava verify: {fault}" for fault in report.faults]
    if not report.projections:
        chaos.faults.append("ava verify: the projections differ from the log")
    chaos.counts.update(sums.counts)
    chaos.counts["runs approved"] = len(sums.approved)
    chaos.counts["runs that hosts know were approved"] = len(hosts.approved)
    chaos.counts["caps that hosts met"] = hosts.refused
    for kind, prefix in (("user days", "user:"), ("installation days", "all:"), ("runs", "S-")):
        full = [scope for name, scope in sums.scopes.items() if name.startswith(prefix)]
        chaos.counts[f"{kind} with calls"] = len(full)
        chaos.counts[f"{kind} at 90 % of their cap or more"] = sum(10 * each.most >= 9 * each.cap for each in full)
    return chaos
