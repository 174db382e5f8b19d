"""`millrace doctor`: will millrace work on this machine, and if not, what to do.

Every check is a function that returns one or more findings and never raises.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from millrace.cli.findings import Finding
from millrace.cli.machine import check_disk, check_limits, check_memory
from millrace.cli.software import check_java, check_kernels, check_packages, check_python, check_spark_job, check_workers

_COLOURS = {"ok": "green", "note": "cyan", "warn": "yellow", "fail": "red"}

Show = Callable[[Finding], None]


def run_doctor(folder: Path, *, as_json: bool, console: Console) -> bool:
    """Run all checks and print them; returns False if one failed."""
    findings: list[Finding] = []

    def show(finding: Finding) -> None:
        findings.append(finding)
        if not as_json:
            _print(finding, console)

    _checks(folder, show)
    if as_json:
        print(json.dumps({"ok": _works(findings), "findings": [asdict(finding) for finding in findings]}, indent=2))
    else:
        console.print(_verdict(findings), highlight=False)
    return _works(findings)


def _checks(folder: Path, show: Show) -> None:
    groups: Sequence[Callable[[], list[Finding]]] = (
        check_python,
        check_java,
        check_packages,
        check_kernels,
        check_workers,
        check_memory,
        check_limits,
        lambda: check_disk(folder),
    )
    findings = [finding for group in groups for finding in _shown(group(), show)]
    needed = {"java", "pyspark", "pyarrow"}
    if any(finding.status == "fail" and finding.name in needed for finding in findings):
        show(Finding("spark job", "fail", "not tried", "first do what is said above"))
        return
    with tempfile.TemporaryDirectory(prefix="millrace-spark-", ignore_cleanup_errors=True) as scratch:
        _shown(check_spark_job(Path(scratch)), show)


def _shown(findings: list[Finding], show: Show) -> list[Finding]:
    for finding in findings:
        show(finding)
    return findings


def _works(findings: Sequence[Finding]) -> bool:
    return all(finding.status != "fail" for finding in findings)


def _print(finding: Finding, console: Console) -> None:
    colour = _COLOURS[finding.status]
    console.print(f"[{colour}]{finding.status:<4}[/{colour}]", end="  ")
    console.print(f"{finding.name:<15} {finding.found}", markup=False, highlight=False, soft_wrap=True)
    if finding.advice:
        console.print(f"      {'':<15} -> {finding.advice}", markup=False, highlight=False, soft_wrap=True)


def _verdict(findings: Sequence[Finding]) -> str:
    failed = sum(finding.status == "fail" for finding in findings)
    warned = sum(finding.status == "warn" for finding in findings)
    if failed:
        return f"[red]{failed} of {len(findings)} checks failed[/red]: do what stands behind the arrows, then run this again"
    remarks = f", {warned} with a remark" if warned else ""
    return f"[green]millrace works here[/green] ({len(findings)} checks{remarks}); try: millrace demo"
