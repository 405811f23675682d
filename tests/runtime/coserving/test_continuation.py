from types import SimpleNamespace

import pytest
import torch

from rose.runtime.coserving.continuation import count_penalties


@pytest.mark.parametrize(("ahead", "counted"), [(False, {1: 2, 3: 1}), (True, {5: 1, 1: 2})])
def test_where_sglang_schedules_ahead_it_counts_output_a_step_late(ahead, counted):
    requests = [
        SimpleNamespace(origin_input_ids=[4, 5], output_ids=[]),
        SimpleNamespace(origin_input_ids=[4, 5], output_ids=[1, 1, 3]),
    ]
    frequency = SimpleNamespace(
        cumulated_frequency_penalties=torch.zeros(2, 8), frequency_penalties=torch.tensor([[0.25], [0.5]])
    )
    minimum = SimpleNamespace(len_output_tokens=torch.zeros(2, 1, dtype=torch.int32))
    orchestrator = SimpleNamespace(is_required=True, device="cpu", penalizers={"f": frequency, "m": minimum})
    count_penalties(
        None,
        SimpleNamespace(
            reqs=requests, enable_overlap=ahead, sampling_info=SimpleNamespace(penalizer_orchestrator=orchestrator)
        ),
    )
    assert frequency.cumulated_frequency_penalties[0].sum() == 0
    assert frequency.cumulated_frequency_penalties[1].tolist() == [0.5 * counted.get(token, 0) for token in range(8)]
    assert minimum.len_output_tokens.tolist() == [[0], [3]]
