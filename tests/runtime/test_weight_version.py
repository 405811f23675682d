import pytest

from rose.runtime.weight_version import parse_name, weights_name


@pytest.mark.parametrize("run_id", ["", "grpo", "team/grpo", "7"])
def test_a_name_is_read_back_and_is_another_ones_in_no_other_run(run_id):
    assert parse_name(weights_name(run_id, 7)) == (run_id, 7)
    assert weights_name(run_id, 7) != weights_name(f"{run_id}x", 7)


@pytest.mark.parametrize("text", ["default", "", "grpo/", "grpo/-1", "grpo/x", "²"])
def test_another_text_is_no_name(text):
    assert parse_name(text) is None
