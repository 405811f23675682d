import pytest

from rose.pricing.run.priced import LEAST_S, UNKNOWN_S, silent


@pytest.mark.parametrize(
    ("expires_s", "allowed_s"), [(None, UNKNOWN_S), (60.0, LEAST_S), (7200.0, 7200)], ids=["unknown", "short", "long"]
)
def test_a_live_run_may_be_silent_for_as_long_as_it_says(expires_s: float | None, allowed_s: int) -> None:
    for after_s, is_silent in ((allowed_s, False), (allowed_s + 1, True)):
        asked = {"heard_us": 10**6, "expires_s": expires_s, "now_us": (1 + after_s) * 10**6}
        assert silent(status="running", provenance="live", **asked) is is_silent
        assert not silent(status="ended", provenance="live", **asked)
        assert not silent(status="running", provenance="replay", **asked)
