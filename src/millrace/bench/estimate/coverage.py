"""`millrace bench coverage`: how often the intervals hold, population by population, and whether that is what they promise.

    model     `online/coverage/coverage.py`: accumulators of reshuffled tables, at given shares of the input
    engine    `online/coverage/engine.py`: PR-Join itself, spilling, at every report

The promise: where there are 200 matches and light tails, coverage within three standard errors of 95 %, the bias within three
of its own, V^ over the true variance within three of its own and 5 %. Heavy tails are held against figures of an earlier
simulation. The tables are those of docs/coverage.md.

With hundreds of checks one or two miss three standard errors by chance. So a case with a miss is run once more, with another
seed and twice as many reshuffles; what misses there as well is broken. Both figures are reported.
"""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.table import Table

from millrace.bench.data import Say
from millrace.bench.options import CoverageOptions
from millrace.online.coverage.coverage import SHARES, Coverage, Scheme, measure
from millrace.online.coverage.engine import EngineCoverage, measure_engine
from millrace.online.coverage.populations import POPULATIONS

OK = "ok"
LIGHT = ("one-to-one", "foreign-key", "many-to-many", "many-to-many-zipf")
MATCHES = 200
# coverages of an earlier simulation with plain V^, on tables of its own: early, later
BEFORE: dict[tuple[str, str], tuple[str, float]] = {
    ("one-to-one", "rectangle"): (".91, then .93-.97", 0.91),
    ("foreign-key", "rectangle"): (".93, then .94-.97", 0.93),
    ("many-to-many", "rectangle"): (".94, then .95", 0.94),
    ("foreign-key-zipf-0.7", "rectangle"): (".87-.90, then .85-.93", 0.93),
    ("foreign-key-zipf-0.8", "rectangle"): (".87-.90, then .85-.93", 0.93),
    ("one-to-one-pareto", "rectangle"): (".81, then .65-.95", 0.95),
    ("foreign-key", "staggered"): (".96, then .93", 0.93),
    ("many-to-many-zipf", "staggered"): (".95, then .94", 0.94),
    ("foreign-key-zipf-0.7", "staggered"): (".87-.90, then .87-.92", 0.92),
    ("foreign-key-zipf-0.8", "staggered"): (".87-.90, then .87-.92", 0.92),
}
BY_CHANCE = 0.0027  # of checks that are right lie beyond three standard errors
_AGAIN_SEED, _AGAIN_TIMES = 1_000, 2  # the second run: added to the seed, and times the reshuffles
_SHARES = {"finishing": (0.1, 0.4, 0.8), "region": (0.25, 0.5, 1.0)}
_WAYS = {
    "rectangle": "rectangle",
    "staggered": "staggered",
    "stratum": "heavy keys first",
    "finishing": "third phase of PR-Join (share of partitions done)",
    "region": "SMS runs",
}


@dataclass(frozen=True)
class Case:
    population: str
    scheme: Scheme
    wide: bool = True
    aggregate: str = "SUM"

    def __str__(self) -> str:
        return f"{self.population}, {_WAYS[self.scheme]}, {'widened' if self.wide else 'plain'}, {self.aggregate}"


@dataclass(frozen=True)
class EngineCase:
    population: str
    threads: int
    wide: bool = False
    memory_bytes: int = 1 << 16

    def __str__(self) -> str:
        return f"{self.population}, {_engine(self.threads, self.wide)}"


def _engine(threads: int, wide: bool) -> str:
    return f"PR-Join itself, {threads} thread{'s' if threads > 1 else ''}, {'heavy keys watched' if wide else 'plain'}, SUM"


def _cases() -> list[Case]:
    found = [
        Case(each, scheme, wide) for each in POPULATIONS for scheme in ("rectangle", "staggered") for wide in (False, True)
    ]  # fmt: skip
    found += [Case(each, "stratum") for each in ("foreign-key-zipf-0.8", "foreign-key-zipf-0.7")]
    for each in ("foreign-key", "many-to-many", "one-to-one"):
        found += [Case(each, "finishing", wide) for wide in (False, True)] + [Case(each, "region")]
    found += [
        Case(each, "staggered", True, name)
        for name in ("COUNT", "AVG", "STDDEV_SAMP")
        for each in ("foreign-key", "many-to-many")
    ]
    return found


CASES = tuple(_cases())
ENGINE_CASES = (
    *(EngineCase(each, threads) for each in ("foreign-key", "many-to-many") for threads in (1, 2)),
    *(EngineCase("foreign-key-zipf-0.8", 1, wide, 1 << 17) for wide in (False, True)),
)


def chosen_cases(options: CoverageOptions) -> list[Case | EngineCase]:
    """In the order of running."""
    cases: list[Case | EngineCase] = []
    cases += ENGINE_CASES if "engine" in options.parts else ()
    cases += CASES if "model" in options.parts else ()
    return [case for case in cases if not options.populations or case.population in options.populations]


def run_coverage(options: CoverageOptions, say: Say) -> dict[str, Any]:
    """Run the benchmark; the returned values are plain, ready for JSON."""
    results, checks = [], []
    for case in chosen_cases(options):
        results.append(_timed(case, options, say))
        found = _checks(results[-1])
        if not all(check["holds"] for check in found):
            more = replace(
                options, seed=options.seed + _AGAIN_SEED, reshuffles=_AGAIN_TIMES * options.reshuffles,
                engine_reshuffles=None if options.engine_reshuffles is None else _AGAIN_TIMES * options.engine_reshuffles,
            )  # fmt: skip
            found = confirmed(found, _checks(_timed(case, more, say)))
        checks += found
    holds = all(check["holds"] for check in checks)
    return {
        "benchmark": "coverage",
        "options": asdict(options),
        "seed": options.seed,
        "versions": {"python": platform.python_version()},
        "machine": {"cores": os.cpu_count(), "system": platform.system()},
        "results": results,
        "checks": checks,
        "missed_at_first": sum("again" in check for check in checks),
        "missed_by_chance": BY_CHANCE * len(checks),
        "promise_holds": holds,
        "rows_agree": True,
        "checksums_agree": holds,
        "markdown": markdown(results) + "\n" + _verdict(checks),
    }


def _timed(case: Case | EngineCase, options: CoverageOptions, say: Say) -> dict[str, Any]:
    started = time.monotonic()
    made = POPULATIONS[case.population]()
    found: Coverage | EngineCoverage
    if isinstance(case, EngineCase):
        count = options.engine_reshuffles or options.reshuffles
        found = measure_engine(
            made, reshuffles=count, threads=case.threads, memory_bytes=case.memory_bytes, wide=case.wide, seed=options.seed
        )
    else:
        shares = _SHARES.get(case.scheme, SHARES)
        found = measure(
            made, case.scheme, wide=case.wide, name=case.aggregate, reshuffles=options.reshuffles, shares=shares,
            seed=options.seed,
        )  # fmt: skip
    seconds = time.monotonic() - started
    covered = " / ".join(_share(row.coverage) for row in found.rows)
    say(f"{case}: {covered} ({seconds:.0f} s)")
    kind = "engine" if isinstance(case, EngineCase) else "model"
    return {**asdict(found), **asdict(case), "kind": kind, "population_name": made.name, "seconds": seconds, "status": OK}


# --- checks


def _checks(result: dict[str, Any]) -> list[dict[str, Any]]:
    """What the promise says of one result: a row for each thing that is compared."""
    population, reshuffles = result["population"], result["reshuffles"]
    where = {"population": population, "way": _way(result)}
    if population not in LIGHT:
        return _against_before(result, where)
    error = 3 * math.sqrt(0.95 * 0.05 / reshuffles)
    found = []
    for row in result["rows"]:
        if row["matches"] < MATCHES:
            continue
        at = row["what"] if "what" in row else f"{row['share']:.0%}"
        found.append({**where, **_check("coverage", at, row["coverage"], 0.95, error)})
        found.append({**where, **_check("bias", at, row["bias"], 0.0, 3 * row["bias_error"])})
        spread = 0.05 + 3 * math.sqrt(2 / reshuffles)
        found.append({**where, **_check("V^ / true", at, row["variance_ratio"], 1.0, spread)})
    return found


def _against_before(result: dict[str, Any], where: dict[str, Any]) -> list[dict[str, Any]]:
    """Heavy tails: the widened interval covers at least what the best of the earlier figures was, less three errors."""
    before = BEFORE.get((result["population"], result.get("scheme", "staggered")))
    if before is None or not result["wide"]:
        return []
    error = 3 * math.sqrt(0.95 * 0.05 / result["reshuffles"])
    lowest = min(row["coverage"] for row in result["rows"])
    return [{**where, "what": "coverage, lowest", "at": "all", "value": lowest, "goal": before[1], "allowed": error,
             "holds": bool(lowest >= before[1] - error)}]  # fmt: skip


def _check(what: str, at: str, value: float, goal: float, allowed: float) -> dict[str, Any]:
    return {"what": what, "at": at, "value": value, "goal": goal, "allowed": allowed, "holds": abs(value - goal) <= allowed}


def confirmed(checks: list[dict[str, Any]], again: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Checks of a case of which some missed: these hold if they do in the second run, which has no say about the others."""
    second = {(check["what"], check["at"]): check for check in again}
    found = []
    for check in checks:
        if not check["holds"]:
            other = second.get((check["what"], check["at"]), {"value": math.nan, "allowed": math.nan, "holds": False})
            check = {**check, "again": {name: other[name] for name in ("value", "allowed")}, "holds": other["holds"]}
        found.append(check)
    return found


def _verdict(checks: list[dict[str, Any]]) -> str:
    """What missed, in the first run or in both."""
    missed = [check for check in checks if "again" in check]
    lines = [
        "## Whether the promise holds", "",
        f"{sum(check['holds'] for check in checks)} of {len(checks)} checks hold. {len(missed)} missed at first "
        f"(by chance about {BY_CHANCE * len(checks):.1f} would):", "",
    ]  # fmt: skip
    for check in missed:
        again, end = check["again"], "holds" if check["holds"] else "broken"
        lines.append(
            f"- {check['population']}, {check['way']}, {check['what']} at {check['at']}: {check['value']:.3f}, "
            f"{check['goal']:g} ± {check['allowed']:.3f}; again {again['value']:.3f} ± {again['allowed']:.3f}: {end}"
        )
    return "\n".join(lines) + "\n"


def _way(result: dict[str, Any]) -> str:
    if result["kind"] == "engine":
        return _engine(result["threads"], result["wide"])
    return f"{_WAYS[result['scheme']]}, {'widened' if result['wide'] else 'plain'}, {result['aggregate']}"


def verdicts(report: dict[str, Any]) -> list[tuple[str, str, int, int, str]]:
    """By population and way: how many checks there are, how many hold, and the worst."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for check in report["checks"]:
        groups.setdefault((check["population"], check["way"]), []).append(check)
    found = []
    for (population, way), checks in groups.items():
        worst = max(checks, key=lambda check: abs(check["value"] - check["goal"]) / max(1e-12, check["allowed"]))
        text = f"{worst['what']} at {worst['at']}: {worst['value']:.3f}, {worst['goal']:g} ± {worst['allowed']:.3f}"
        found.append((population, way, len(checks), sum(check["holds"] for check in checks), text))
    return found


def coverage_table(report: dict[str, Any]) -> Table:
    table = Table(
        title=f"Do the 95 % intervals hold? {report['options']['reshuffles']:,} reshuffles, seed {report['seed']}",
        caption="The promise: three standard errors, where there are 200 matches and light tails. "
        "Heavy tails: at least what an earlier simulation had. "
        f"{report['missed_at_first']} checks missed at first, about {report['missed_by_chance']:.1f} would by chance; they "
        "were run again with another seed and twice the reshuffles.",
    )
    for heading in ("population", "way", "checks", "hold", "worst"):
        table.add_column(heading, justify="right" if heading in ("checks", "hold") else "left")
    for population, way, checks, held, worst in verdicts(report):
        table.add_row(population, way, str(checks), str(held) if held == checks else f"[red]{held}[/red]", worst)
    return table


# --- the tables of docs/coverage.md


def markdown(results: Iterable[dict[str, Any]]) -> str:
    every = list(results)
    models = {(r["population"], r["scheme"], r["wide"], r["aggregate"]): r for r in every if r["kind"] == "model"}
    parts = []
    for scheme, title in (
        ("rectangle", "Rectangle (Ripple, Hash Ripple)"),
        ("staggered", "Staggered partitions (PR-Join while input is read, 16 partitions)"),
    ):
        lines = [
            f"## {title}", "", "SUM, at 5, 10, 20, 40 and 70 % read.", "",
            "| population | matches | before | plain V^ | widened V^ | half-width in %, plain -> widened | V^ / true, widened "
            "| largest bias | at a half-width of 5 % |",
            "|---|---|---|---|---|---|---|---|---|",
        ]  # fmt: skip
        for name in POPULATIONS:
            plain, wide = (models.get((name, scheme, way, "SUM")) for way in (False, True))
            if plain is not None and wide is not None:
                lines.append(_row_of_two(plain, wide, BEFORE.get((name, scheme), ("-", 0.0))[0]))
        parts.append("\n".join(lines))
    rest = [r for key, r in models.items() if key[1] not in ("rectangle", "staggered") or key[3] != "SUM"]
    lines = [
        "## Other ways to cover pairs, other aggregates", "",
        "| what | population | read | coverage | half-width in % | V^ / true | largest bias |", "|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    parts.append("\n".join(lines + [_row_of_one(result) for result in rest]))
    parts.append(_engine_markdown([result for result in every if result["kind"] == "engine"]))
    together = [r["together"] for key, r in models.items() if key[1] in ("rectangle", "staggered") and key[2]]
    if together:
        parts.append(f"All five reports of a run hold together: {min(together):.2f} to {max(together):.2f} (widened rows).")
    return "\n\n".join(parts) + "\n"


def _row_of_two(plain: dict[str, Any], wide: dict[str, Any], before: str) -> str:
    return (
        f"| {wide['population_name']} | {_each(wide, _matches)} | {before} | {_each(plain, _covered)} "
        f"| **{_each(wide, _covered)}** | {_each(plain, _width)} -> {_each(wide, _width)} | {_each(wide, _ratio)} "
        f"| {_bias(wide)} | {_stop(wide)} |"
    )


def _row_of_one(result: dict[str, Any]) -> str:
    read = ", ".join(f"{row['share'] * 100:.0f}" for row in result["rows"])
    wide = "" if result["wide"] else ", plain V^"
    return (
        f"| {_WAYS[result['scheme']]}, {result['aggregate']}{wide} | {result['population_name']} | {read} % "
        f"| {_each(result, _covered)} | {_each(result, _width)} | {_each(result, _ratio)} | {_bias(result)} |"
    )


def _engine_markdown(results: list[dict[str, Any]]) -> str:
    lines = [
        "## PR-Join itself, at every report", "",
        "| population | threads | V^ | reports | matches | coverage | half-width in % | V^ / true | bias (s.e.) |",
        "|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for result in results:
        for row in result["rows"]:
            lines.append(
                f"| {result['population_name']} | {result['threads']} | {'widened' if result['wide'] else 'plain'} "
                f"| {row['reports']:.1f} a run {row['what']} "
                f"| {_matches(row)} | {_covered(row)} | {_width(row)} | {_ratio(row)} "
                f"| {row['bias'] * 100:+.2f} % ({abs(row['bias']) / max(1e-12, row['bias_error']):.1f}) |"
            )
    notes = [
        f"- {r['population_name']}, {_engine(r['threads'], r['wide'])}: {r['reshuffles']:,} reshuffles, "
        f"{r['spilled']:.0%} of the records written to the temporary file"
        + (f"; {r['moments']} moments at which nearly every run reports, the lowest coverage of any {_share(r['lowest'])}"
           if r["moments"] else "")
        + f"; all reports of a run together {_share(r['together'])}"
        for r in results
    ]  # fmt: skip
    return "\n".join([*lines, "", *notes])


def _each(result: dict[str, Any], cell: Any) -> str:
    return " / ".join(cell(row) for row in result["rows"])


def _share(value: float) -> str:
    return "-" if math.isnan(value) else "1.00" if value >= 0.9995 else f"{value:.3f}"[1:]


def _covered(row: dict[str, Any]) -> str:
    return _share(row["coverage"])


def _matches(row: dict[str, Any]) -> str:
    return f"{row['matches']:.0f}"


def _width(row: dict[str, Any]) -> str:
    percent = row["half_width"] * 100
    return f"{percent:.0f}" if percent >= 9.5 else f"{percent:.1f}"


def _ratio(row: dict[str, Any]) -> str:
    return f"{row['variance_ratio']:.2f}"


def _bias(result: dict[str, Any]) -> str:
    worst = max(result["rows"], key=lambda row: abs(row["bias"]) / max(1e-12, row["bias_error"]))
    return f"{worst['bias'] * 100:+.2f} % ({abs(worst['bias']) / max(1e-12, worst['bias_error']):.1f} s.e.)"


def _stop(result: dict[str, Any]) -> str:
    return f"{_share(result['at_stop'])} ({result['stopped']:.0%} of runs)" if result["stopped"] >= 0.05 else "-"
