from __future__ import annotations

import struct
from pathlib import Path

import pytest

from allocator.report.figures import plan_picture
from tests.report.plans import broken_plan, good_plan, infeasible_plan, two_pool_plan


@pytest.mark.parametrize("build", [good_plan, broken_plan, two_pool_plan])
def test_the_picture_is_1600_by_900(build: object, tmp_path: Path) -> None:
    assert callable(build)
    path = tmp_path / "plan.png"
    plan_picture(build(), path)
    header = path.read_bytes()[:24]
    assert header[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", header[16:24]) == (1600, 900)


def test_nothing_to_draw(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be drawn"):
        plan_picture(infeasible_plan(), tmp_path / "plan.png")
    assert list(tmp_path.iterdir()) == []
