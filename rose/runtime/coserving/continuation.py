"""Continues a turn in a new request. The request's last input ids are the turn's earlier output. SGLang treats these
ids as output: stop strings, grammars, penalties and limits count them, as after a retraction by SGLang."""

from typing import Any

EARLIER = "rose_made"  #: The key in `custom_params`; in spans of weight versions, the name of earlier tokens' weights.

_MADE = "_rose_made"
_GRAMMAR_BEHIND = "_rose_grammar_behind"
_PENALTIES = ("frequency", "presence", "repetition")


def made_before(request: Any) -> int:
    return getattr(request, _MADE, 0)


def continue_turn(request: Any, *_args: Any, **_kwargs: Any) -> None:
    """Move the request's last input ids to its output ids. The custom parameter `rose_made` says how many."""
    from sglang.srt.utils.weight_versions import WeightVersionEvent

    params, ids = request.sampling_params.custom_params, request.origin_input_ids
    made = params.get(EARLIER) if isinstance(params, dict) else None
    if type(made) is not int or not 0 < made < len(ids):
        return
    setattr(request, _MADE, made)
    setattr(request, _GRAMMAR_BEHIND, True)
    request.origin_input_ids = request.origin_input_ids_unpadded = ids[:-made]
    request.output_ids = ids[-made:]
    request.weight_version_events = [WeightVersionEvent(old_version=EARLIER, num_output_tokens=made)]
    request.send_token_offset = request.send_output_token_logprobs_offset = made
    if request.return_logprob:
        for kind in ("output_token", "output_top", "output_token_ids"):
            for part in ("val", "idx"):
                getattr(request.logprob, f"{kind}_logprobs_{part}").extend([None] * made)  # Never sent.


def before_prefill(request: Any) -> None:
    """Advance the request's grammar past the earlier output. Let the prefix cache match the earlier output too."""
    if made_before(request) or request.logprob_start_len >= len(request.origin_input_ids):
        request.logprob_start_len = -1
    if not getattr(request, _GRAMMAR_BEHIND, False):
        return
    setattr(request, _GRAMMAR_BEHIND, False)
    if request.grammar is None:
        return
    try:
        for token in request.output_ids:
            request.grammar.accept_token(token)
    except ValueError as error:
        request.set_finish_with_abort(f"the grammar does not accept the turn's earlier tokens: {error}")


def count_penalties(_answer: Any, batch: Any, *_args: Any, **_kwargs: Any) -> None:
    """Count the earlier output in the penalties. With the overlap schedule, SGLang itself counts the last token."""
    import torch

    orchestrator = batch.sampling_info.penalizer_orchestrator
    if not orchestrator.is_required:
        return
    for row, request in enumerate(batch.reqs):
        if not request.output_ids:
            continue
        counted = [request.origin_input_ids[-1], *request.output_ids] if batch.enable_overlap else request.output_ids
        ids = torch.tensor(counted[: len(request.output_ids)], device=orchestrator.device)
        for penalizer in orchestrator.penalizers.values():
            if hasattr(penalizer, "len_output_tokens"):
                penalizer.len_output_tokens[row] += len(ids)
            for name in _PENALTIES:
                if (totals := getattr(penalizer, f"cumulated_{name}_penalties", None)) is not None:
                    penalty = getattr(penalizer, f"{name}_penalties")[row]
                    totals[row].index_put_((ids,), penalty, accumulate=name == "frequency")


def later_spans(spans: Any, *_args: Any, current_version: str, **_kwargs: Any) -> Any:
    """Return the weight versions' spans without the turn's earlier output. Position 0 is the first new token."""
    from sglang.srt.utils.weight_versions import WeightVersionSpan

    made, later = spans[0].end, spans[1:]
    if spans[0].version != EARLIER:
        return spans
    moved = [WeightVersionSpan(version=one.version, start=one.start - made, end=one.end - made) for one in later]
    return moved or [WeightVersionSpan(version=current_version, start=0, end=0)]
