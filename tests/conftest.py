"""The same examples in every run, so that a failure is one everywhere; HYPOTHESIS_PROFILE=search tries many others."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "fixed",
    derandomize=True,
    deadline=None,
    max_examples=80,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "search",
    settings.get_profile("fixed"),
    derandomize=False,
    max_examples=1_500,
    print_blob=True,
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))
