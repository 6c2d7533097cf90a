"""What every test shares: property tests that try the same examples in every run.

HYPOTHESIS_PROFILE=explore makes them try ten times as many, new ones each time: for whoever hunts, not for CI."""

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "steady", derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("explore", settings.get_profile("steady"), derandomize=False, max_examples=1_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))
