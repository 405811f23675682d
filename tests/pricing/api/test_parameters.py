"""What a request may send: whatever it is, it is understood, or refused in words."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from rose.pricing.api import window
from rose.pricing.api.parameters import DIMENSIONS, AllocationQuery, PeriodQuery, terms
from rose.pricing.money import PricingError
from rose.pricing.spend.calendar import Calendar
from tests.pricing.api.conftest import NOW_NS

_TEXTS = st.text(max_size=30) | st.text("0123456789-,:TZ+.dhWQFY", max_size=30)
_NAMES = st.sampled_from([field.alias or name for name, field in AllocationQuery.model_fields.items()])


@given(_TEXTS)
@example("99999999999,99999999999")
@example("²d")
@example("9999-12-31T23:00:00-23:59,9999-12-31T23:00:00Z")
@example("0001-01-01T00:00:00+23:00,0001-01-02")
def test_any_window_is_a_time_or_refused(text: str) -> None:
    for calendar in (Calendar(), Calendar("Asia/Kathmandu"), Calendar("Europe/Berlin")):
        try:
            period = window.period(text, calendar, NOW_NS)
        except PricingError:
            continue
        assert 0 < period.to_ns - period.from_ns <= window.DAYS_MAX * 86_400 * 10**9


@given(
    st.lists(st.tuples(_NAMES | st.text(max_size=10), _TEXTS | st.sampled_from(["live", "1d", "team,run"])), max_size=4)
)
def test_any_query_is_understood_or_refused(given_: list[tuple[str, str]]) -> None:
    for kind in (AllocationQuery, PeriodQuery):
        with contextlib.suppress(ValidationError):
            kind.model_validate(dict(given_))


@given(st.dictionaries(st.sampled_from(sorted(DIMENSIONS)), st.text(max_size=10).filter(lambda text: '"' not in text)))
def test_a_filter_says_what_it_is_written_as(values: dict[str, str]) -> None:
    written = "+".join(f'{name}:"{value}"' for name, value in values.items())
    expected = {DIMENSIONS[name]: value for name, value in values.items()}
    assert terms(written) == expected
    # A plus that was not escaped in the URL comes as a blank.
    assert terms(written.replace('"+', '" ')) == expected or any("+" in value for value in values.values())


def test_a_label_may_have_any_name() -> None:
    assert terms('label[cost-centre/7]:"a:b"') == {"tag:cost-centre/7": "a:b"}
    query = AllocationQuery.model_validate({"aggregate": "label:a:b,label[c],team"})
    assert query.dimensions == ("tag:a:b", "tag:c", "team")


@pytest.mark.parametrize("text", ["1d", "day", "24h"])
def test_a_day_has_several_names(text: str) -> None:
    assert AllocationQuery.model_validate({"step": text}).by_step == "day"
    assert AllocationQuery.model_validate({"step": text, "accumulate": "true"}).by_step is None
