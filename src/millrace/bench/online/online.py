"""`millrace bench online`: the experiments of the PR-Join paper on virtual devices, every join, from one run.

    disk      10 GB x 10 GB, 500 MB, input and temporary data on two disks: time from start to end, transfers
    gammas    the same for several gamma: how often temporary data are read
    rates     results per second while the input is read, window by window, beside the analytical model and beside Ripple
    models    times and transfers without overlap, beside what the equations say
    streams   finite streams, slow, fast and unreliable: PR-Join beside RPJ, XJoin and HMJ

Times are those of a virtual clock: formulas, the same on every machine. Every claim becomes a row of `checks`: the figure, the
bound, and whether it holds.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from typing import Any

from millrace.bench.data import Say
from millrace.bench.online.streams import run_stream
from millrace.bench.options import OnlineOptions
from millrace.bench.versions import versions_of
from millrace.core.arrays import Int64Array
from millrace.core.devices import MEGABYTE, Device, device
from millrace.online.joins.dbo import DBO
from millrace.online.joins.grace import Grace
from millrace.online.joins.hash_ripple import HashRipple
from millrace.online.joins.hmj import HMJ
from millrace.online.joins.prjoin import PRJoin
from millrace.online.joins.ripple import Ripple
from millrace.online.joins.rpj import RPJ
from millrace.online.joins.sms import SMS
from millrace.online.joins.xjoin import XJoin
from millrace.online.protocol import OnlineJoin
from millrace.online.storage.memory_plan import Layout
from millrace.online.virtual import models
from millrace.online.virtual.experiment import Setting, Simulated, one_to_one, simulate

OK = "ok"
JOINS: dict[str, Callable[..., OnlineJoin]] = {
    "grace": Grace, "prjoin": PRJoin, "ripple": Ripple, "hash_ripple": HashRipple, "sms": SMS, "dbo": DBO, "rpj": RPJ,
    "xjoin": XJoin, "hmj": HMJ,
}  # fmt: skip
NO_STOP = "prjoin, no stop"
IN_A_ROW = ("ripple", "sms", "dbo")  # they write extents in a row, and have no partitions to lay out
FOR_STREAMS = ("rpj", "xjoin", "hmj")
EQUAL = Device("equal", seek=0.0, read_rate=100 * MEGABYTE, write_rate=100 * MEGABYTE)
DISK_EXTENT, SSD_EXTENT = MEGABYTE, 64_000
_PACKAGES = ("numpy", "numba")


class Experiments:
    """Runs, each made once."""

    def __init__(self, options: OnlineOptions, say: Say) -> None:
        self._options, self._say = options, say
        self._tables: tuple[Int64Array, Int64Array] | None = None
        self._runs: dict[tuple[Any, ...], Simulated] = {}

    def of(
        self,
        name: str,
        temporary: str | Device = "prjoin-disk",
        *,
        overlapped: bool = True,
        gamma: float = 1.0,
        stop: bool = True,
    ) -> Simulated:
        key = (name, temporary, overlapped, gamma, stop)
        if key not in self._runs:
            self._say(f"{name} on {_named(temporary)}{'' if overlapped else ', no overlap'}")
            setting = self.setting(temporary, overlapped=overlapped)
            self._tables = self._tables or one_to_one(setting, self._options.seed)
            more: dict[str, Any] = {"gamma": gamma, "stop": stop} if name == "prjoin" else {}
            self._runs[key] = simulate(JOINS[name], setting, self._tables, **more, **_layout(name, setting))
        return self._runs[key]

    def setting(self, temporary: str | Device, *, overlapped: bool = True) -> Setting:
        extent = SSD_EXTENT if temporary == "prjoin-ssd" else DISK_EXTENT
        source = "prjoin-disk" if isinstance(temporary, str) else temporary
        return Setting(
            rows=self._options.rows, input_device=source, temporary_device=temporary, extent_bytes=extent, overlapped=overlapped
        )

    def all(self) -> list[Simulated]:
        return list(self._runs.values())


def _layout(name: str, setting: Setting) -> dict[str, Any]:
    if name in IN_A_ROW:
        return {"extent_bytes": setting.of(DISK_EXTENT)}  # they lose nothing by long transfers
    extent = max(8 * setting.row_words, setting.of(setting.extent_bytes))
    return {"layout": Layout(extent_bytes=extent, page_bytes=max(8 * setting.row_words, extent // 16))}


def _named(given: str | Device) -> str:
    return given if isinstance(given, str) else given.name


def run_online(options: OnlineOptions, say: Say) -> dict[str, Any]:
    """Run all of it; the returned values are plain, ready for JSON."""
    runs = Experiments(options, say)
    disk = _ends(runs, "prjoin-disk", options.joins)
    ssd = _ends(runs, "prjoin-ssd", tuple(name for name in options.joins if name not in FOR_STREAMS))
    gammas = [_gamma(runs, gamma) for gamma in options.gammas]
    rates = [
        _equal_rates(runs),
        *(_rates(runs, name, stop) for name in ("prjoin-disk", "prjoin-ssd") for stop in (True, False)),
    ]
    compared = [_model(runs, name, temporary) for temporary in ("prjoin-disk", "prjoin-ssd") for name in models.MODELS]
    streams = []
    for name in options.streams:
        say(f"{name} streams")
        streams.append(run_stream(name, options.stream_rows, options.seed))
    checks = [*_disk_checks(disk), *_gamma_checks(gammas), *_rate_checks(rates), *_model_checks(compared)]
    checks += [check for stream in streams for check in stream["checks"]]
    right = all(run.answer.tolist() == [[options.rows] * 2] for run in runs.all()) and all(s["answers_agree"] for s in streams)
    return {
        "benchmark": "online",
        "options": options.to_json(),
        "seed": options.seed,
        "versions": versions_of(*_PACKAGES),
        "machine": {"cores": os.cpu_count(), "system": platform.system()},
        "clock": "virtual",
        "setting": {"bytes": [10_000 * MEGABYTE] * 2, "memory_bytes": 500 * MEGABYTE, "row_bytes": 100},
        "disk": disk,
        "ssd": ssd,
        "gammas": gammas,
        "rates": rates,
        "models": compared,
        "streams": streams,
        "checks": checks,
        "results": [{"contender": name, "status": OK} for name in options.joins],
        "rows_agree": right,
        "checksums_agree": right,
    }


def _ends(runs: Experiments, temporary: str, joins: tuple[str, ...]) -> list[dict[str, Any]]:
    """From start to end."""
    found = {name: runs.of(name, temporary) for name in joins}
    found[NO_STOP] = runs.of("prjoin", temporary, stop=False)
    whole = runs.setting(temporary).input_bytes
    grace, prjoin = found["grace"].seconds, found["prjoin"].seconds
    return [
        {
            "join": name,
            "seconds": run.seconds,
            "x_grace": run.seconds / grace,
            "x_prjoin": run.seconds / prjoin,
            "temporary_written_share": run.temporary_written_bytes / whole,
            "temporary_read_share": run.temporary_read_bytes / whole,
            "first_report_seconds": run.points[0].seconds,
            "reports": len(run.points),
            "budget_peak_share": run.budget_peak_share,
        }
        for name, run in found.items()
    ]


def _gamma(runs: Experiments, gamma: float) -> dict[str, Any]:
    run = runs.of("prjoin", gamma=gamma)
    return {
        "gamma": gamma,
        "seconds": run.seconds,
        "x_grace": run.seconds / runs.of("grace").seconds,
        "temporary_read_share": run.temporary_read_bytes / runs.setting("prjoin-disk").input_bytes,
        "bound": 1 + 1 / gamma,
    }


def windows(run: Simulated, gamma: float = 1.0) -> list[dict[str, float]]:
    """What came while the input read grew from (a+b)(1+gamma)^j to (a+b)(1+gamma)^(j+1), j = 1, 2, ...: every partition is
    joined once in each. The last one may be cut short by the end of the input, or by the last early join; if less than half of
    it is left it is left out, as its first joins are those that find least."""
    assert run.memory_share is not None
    early = [point for point in run.points if point.share_read < 1]
    found, j = [], 1
    while early and run.memory_share * (1 + gamma) ** j < early[-1].share_read:
        low, high = (run.memory_share * (1 + gamma) ** power for power in (j, j + 1))
        first = next(point for point in early if point.share_read >= low)
        last = [point for point in early if point.share_read <= high][-1]
        if last.share_read >= low * (1 + gamma) ** 0.5:
            rate = (last.results - first.results) / (last.seconds - first.seconds)
            found.append({"j": j, "from": first.seconds, "to": last.seconds, "rate": rate, "share_read": last.share_read})
        j += 1
    return found


def _equal_rates(runs: Experiments) -> dict[str, Any]:
    """On a device where all transfers take the same, the rates of the paper's second table: in multiples of c."""
    run, ripple = runs.of("prjoin", EQUAL, overlapped=False, stop=False), runs.of("ripple", EQUAL, overlapped=False)
    assert run.memory_share is not None
    results = run.points[-1].results
    # c = S/T times matches per page pair = (a+b)/(A+B) x matches / (time to read all input)
    c = run.memory_share * results / run.input_seconds
    rows = []
    for window in windows(run):
        j = int(window["j"])
        bound = 2 ** (j - 1) * 3 / (4 - 2 ** (1 - j))
        rows.append({**window, "x_c": window["rate"] / c, "bound": bound, "x_ripple": _over(window, ripple)})
    return {"device": "equal", "stop": False, "windows": rows, **_totals(run, ripple)}


def _rates(runs: Experiments, temporary: str, stop: bool) -> dict[str, Any]:
    """As a multiple of Ripple's, and of the model for such times."""
    run, ripple = runs.of("prjoin", temporary, stop=stop), runs.of("ripple", temporary)
    rows = [{**window, "x_ripple": _over(window, ripple)} for window in windows(run)]
    return {"device": temporary, "stop": stop, "windows": rows, **_totals(run, ripple)}


def _over(window: dict[str, float], ripple: Simulated) -> float:
    """A window's rate over Ripple's in the same seconds."""
    found = ripple.results_at(window["to"]) - ripple.results_at(window["from"])
    return window["rate"] * (window["to"] - window["from"]) / found


def _totals(run: Simulated, ripple: Simulated) -> dict[str, Any]:
    """All results by then, over Ripple's at the same time: the most, and when the last early report came."""
    early = [point for point in run.points if point.share_read < 1]
    ratios = [point.results / found for point in early if (found := ripple.results_at(point.seconds)) > 0]
    late = ratios[len(ratios) // 10 :]  # the first reports have few results on either side
    return {"results_x_ripple_most": max(late), "results_x_ripple_last": ratios[-1], "last_early_seconds": early[-1].seconds}


def _model(runs: Experiments, name: str, temporary: str) -> dict[str, Any]:
    """Without overlap, as the equations have it; the join's own fudge factor, as the paper took that of its own code."""
    run = runs.of(name, temporary, overlapped=False)
    setting = runs.setting(temporary, overlapped=False)
    assert run.memory_share is not None
    source, store = device("prjoin-disk"), device(temporary)
    pages = setting.bytes_a / MEGABYTE
    again = store.seconds("read", setting.extent_bytes, sequential=name == "ripple") * MEGABYTE / setting.extent_bytes
    if name in IN_A_ROW:
        again = store.seconds("read", MEGABYTE, sequential=name == "ripple")
    memory, held = setting.memory_bytes / MEGABYTE, run.memory_share * 2 * pages
    fudge = memory / held
    if name in ("sms", "dbo"):
        memory, fudge = held, 1.0  # runs of what a block holds
    given = models.Setting(
        pages, pages, memory, source.seconds("read", MEGABYTE, sequential=True),
        store.seconds("write", MEGABYTE, sequential=True), again, fudge,
    )  # fmt: skip
    model = models.MODELS[name](given)
    row: dict[str, Any] = {"join": name, "device": temporary, "fudge_factor": fudge}
    for what, measured, computed in (
        ("seconds", run.seconds, model.total_seconds),
        ("read_pages", run.temporary_read_bytes / MEGABYTE, model.temporary_read_pages),
        ("written_pages", run.temporary_written_bytes / MEGABYTE, model.temporary_written_pages),
    ):
        row[what], row[f"model_{what}"], row[f"{what}_error"] = measured, computed, computed / measured - 1
    return row


# --- what is claimed


def check(claim: str, figure: float, bound: float, *, most: bool = False) -> dict[str, Any]:
    """A figure that must be at least its bound, or at most."""
    return {"claim": claim, "figure": figure, "bound": bound, "at": "most" if most else "least",
            "holds": bool(figure <= bound if most else figure >= bound)}  # fmt: skip


def _disk_checks(disk: list[dict[str, Any]]) -> list[dict[str, Any]]:
    row = {found["join"]: found for found in disk}
    return [
        check("Ripple's time over PR-Join's, disk", row["ripple"]["seconds"] / row["prjoin"]["seconds"], 5.0),
        check("PR-Join's time over GRACE's, disk", row["prjoin"]["x_grace"], 1.5, most=True),
    ]


def _gamma_checks(gammas: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        check(f"temporary reads over the input, gamma {row['gamma']:g}", row["temporary_read_share"], row["bound"], most=True)
        for row in gammas
    ]


def _rate_checks(rates: list[dict[str, Any]]) -> list[dict[str, Any]]:
    equal = rates[0]
    checks = [check(f"early rate in c, equal times, j = {row['j']}", row["x_c"], row["bound"]) for row in equal["windows"]]
    for found in rates[1:]:
        name = f"{found['device']}, stop {'on' if found['stop'] else 'off'}"
        checks.append(check(f"highest early rate over Ripple's, {name}", max(w["x_ripple"] for w in found["windows"]), 1.0))
    return checks


def _model_checks(compared: list[dict[str, Any]]) -> list[dict[str, Any]]:
    checks = []
    for row in compared:
        worst = max(abs(row[f"{what}_error"]) for what in ("seconds", "read_pages", "written_pages"))
        checks.append(check(f"model of {row['join']} off by, {row['device']}", worst, 0.10, most=True))
    return checks
