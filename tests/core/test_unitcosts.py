"""Unit costs and their calibration."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.core.errors import ParameterError
from millrace.core.unitcosts import UnitCosts, calibrate_reads


def test_a_read_costs_a_seek_and_its_bytes() -> None:
    costs = UnitCosts(seek=0.01, read_byte=1e-6)
    assert costs.read(1000) == pytest.approx(0.011)
    assert costs.gap_bytes() == 10_000


def test_reading_that_is_free_makes_any_gap_worth_crossing() -> None:
    assert UnitCosts(read_byte=0.0).gap_bytes() > 1 << 60


def test_a_negative_cost_is_refused() -> None:
    with pytest.raises(ParameterError, match="probe"):
        UnitCosts(probe=-1.0)


@pytest.mark.parametrize("direct", [True, False])
def test_calibration_measures_the_device_of_a_file(tmp_path: Path, direct: bool) -> None:
    path = tmp_path / "pages"
    path.write_bytes(bytes(32 << 20))
    costs = calibrate_reads(path, 64 << 10, seconds=0.1, direct=direct)
    assert costs.seek > 0
    assert costs.read_byte > 0
    assert costs != UnitCosts()


def test_a_file_too_small_to_tell_keeps_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "pages"
    path.write_bytes(bytes(1 << 20))
    assert calibrate_reads(path, 64 << 10) == UnitCosts()
