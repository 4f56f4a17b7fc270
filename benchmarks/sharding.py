"""Simulate the distribution of a million sessions over 4 and then 6 shards by the slots of their thread ids.

    uv run python benchmarks/sharding.py [--sessions N] [--out DIRECTORY]

Nothing is stored. Users have between one and many sessions (Zipf), because all threads of a user share a slot. The
slots are assigned to shards in a table; growing from 4 to 6 shards moves as few slots as possible.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from pathlib import Path

from cognizes.engine.models import SLOTS, new_thread_id, slot_of, user_slot
from report import Bars, Grid, Report, Target

_HERE = Path(__file__).parent
_BEFORE, _AFTER = 4, 6
_APPS = 20
_LONGEST = 500


def assign(shards: int) -> list[int]:
    """Return the shard of each slot, for a new installation."""
    return [slot * shards // SLOTS for slot in range(SLOTS)]


def grow(assigned: list[int], shards: int) -> list[int]:
    """Return an assignment to more shards. A slot moves only to a new shard, until all shards have an equal share."""
    grown = list(assigned)
    share, rest = divmod(SLOTS, shards)
    wanted = [share + (shard < rest) for shard in range(shards)]
    held = Counter(grown)
    new = [shard for shard in range(shards) if shard not in held]
    for slot, shard in enumerate(grown):
        if held[shard] > wanted[shard]:
            target = min(new, key=lambda one: held[one])
            held[shard] -= 1
            held[target] += 1
            grown[slot] = target
    return grown


def simulate(sessions: int) -> Report:
    report = Report("sharding", "Sessions over shards by slot: cognizes-engine")
    choose = random.Random(1)
    slots: Counter[int] = Counter()
    users = made = 0
    started = time.perf_counter()
    while made < sessions:
        users += 1
        slot = user_slot(f"app-{choose.randrange(_APPS)}", f"user-{users}")
        for _ in range(min(int(choose.paretovariate(1.2)), _LONGEST, sessions - made)):
            found = slot_of(new_thread_id(slot))
            if found != slot:
                raise RuntimeError(f"a thread id lost its slot: {slot} became {found}")
            slots[found] += 1
            made += 1
    seconds = time.perf_counter() - started
    before = assign(_BEFORE)
    after = grow(before, _AFTER)
    loads = [_loads(slots, assigned, shards) for assigned, shards in ((before, _BEFORE), (after, _AFTER))]
    moved = sum(count for slot, count in slots.items() if before[slot] != after[slot]) / made
    ideal = 1 - _BEFORE / _AFTER
    modulo = sum(count for slot, count in slots.items() if slot % _BEFORE != slot % _AFTER) / made
    report.grids += [
        Grid(
            f"{made:_} sessions of {users:_} users, routed in {seconds:.1f} s".replace("_", " "),
            ("shards", "fewest sessions", "most sessions", "most against mean"),
            [(str(len(load)), min(load), max(load), f"{_imbalance(load):.3f} x") for load in loads],
        ),
        Grid(
            f"Sessions that move from {_BEFORE} to {_AFTER} shards",
            ("assignment", "share moved"),
            [
                ("table of slots", f"{moved:.1%}"),
                ("the least possible", f"{ideal:.1%}"),
                ("slot modulo the number of shards", f"{modulo:.1%}"),
            ],
        ),
    ]
    report.targets += [
        Target(f"{len(load)} shards, most loaded against mean", _imbalance(load), 1.1, at_least=False) for load in loads
    ]
    report.targets.append(Target("moved share against the least possible", moved / ideal, 1.1, at_least=False))
    report.panels.append(
        Bars(
            "Sessions per shard",
            "sessions",
            [f"shard {shard}" for shard in range(_AFTER)],
            {
                f"{_BEFORE} shards": [*loads[0], *[None] * (_AFTER - _BEFORE)],
                f"{_AFTER} shards": list(loads[1]),
            },
        )
    )
    report.details["loads"] = loads
    return report


def _loads(slots: Counter[int], assigned: list[int], shards: int) -> list[int]:
    loads = [0] * shards
    for slot, count in slots.items():
        loads[assigned[slot]] += count
    return loads


def _imbalance(loads: list[int]) -> float:
    return max(loads) * len(loads) / sum(loads)


def main() -> None:
    """Run, print and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path, default=_HERE / "results", help="where the JSON and the chart go")
    arguments = parser.parse_args()
    report = simulate(arguments.sessions)
    report.print()
    for path in report.write(arguments.out):
        print(path)


if __name__ == "__main__":
    main()
