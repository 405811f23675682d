"""Predicts how long the next step of an engine takes on the device, without waits:

    T_prefill = a + b * tokens + c * pairs
    T_decode = a + b * batch + c * context

A pair is a new token and an earlier token that it attends to. The fits use least squares with coefficients of at least
0 (Lawson and Hanson, "Solving Least Squares Problems", chapter 23). New steps make the fit forget older steps with
similar features, but not what it learned from other steps (directional forgetting; Cao and Schwartz, "A directional
forgetting algorithm based on the decomposition of the information matrix", Automatica 36, 2000). Huber's rule limits
outliers. Several outliers in a row on one side mean that the device changed: the fit begins anew. Before a fit is
ready, the prediction is scaled up from the largest observation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from math import inf, sqrt

FORGETTING = 0.98
WARM_UP_STEPS = 1
FITTED_STEPS = 5
OUTLIER_SPREADS = 4.0  # An observation is moved to at most this many mean absolute errors from its prediction, ...
_SPREAD_WEIGHT = 0.05  # ... a mean over about 1 / weight steps, ...
_SPREAD_MIN_SHARE = 0.05  # ... and at least this share of the prediction.
_SPREAD_FIRST_SHARE = 0.5
CHANGED_STEPS = 4
_RIDGES = (0.01, 1e-6, 1e-6)  # Until the batch changes, all of a step's time seems to grow with it.
_PREFILL_RIDGES = (1e-6, 1e-6, 1.0)  # Short prompts say nothing about attention: noise hides its share.
_KNOWN_UP_TO = 1.25  # A fit counts as known up to this many times the largest features that it has learned.
# Both scales bring typical features near one, for the covariance's condition.
_PREFILL_SCALE = (1.0, 1 / 256, 1 / 65536)
_DECODE_SCALE = (1.0, 1 / 16, 1 / 4096)

_Vector = tuple[float, ...]  # Plain floats: for two or three numbers in serving's loop they are faster than arrays.
_Matrix = tuple[_Vector, ...]


@dataclass(frozen=True, slots=True)
class LinearFit:
    """A least-squares fit of durations in ns. It predicts `weights @ (features * scale)`. `error_share` is the recent
    mean of |predicted - observed| / observed."""

    gram: _Matrix  # Sum over observations, with forgetting, of x times x transposed.
    moment: _Vector  # Sum over observations, with forgetting, of x times duration.
    scale: _Vector
    ridges: _Vector
    weights: _Vector
    count: int = 0
    spread_ns: float = 0.0
    error_share: float = 0.0
    beyond: int = 0
    bound: tuple[tuple[float, ...], float] | None = field(default=None)  # It bounds all others in proportion.
    largest: _Vector = ()  # The largest value of each feature.

    @classmethod
    def prior(cls, scale: _Vector, ridges: _Vector = _RIDGES) -> LinearFit:
        zeros = (0.0,) * len(scale)
        return cls((zeros,) * len(scale), zeros, scale, ridges, zeros)

    @property
    def fitted(self) -> bool:
        return self.count >= WARM_UP_STEPS + FITTED_STEPS

    def observe(self, features: tuple[float, ...], duration_ns: float) -> LinearFit:
        if self.count < WARM_UP_STEPS:
            return replace(self, count=self.count + 1)
        bound = self.bound
        if not self.fitted and (bound is None or duration_ns > _scaled_up(bound, features)):
            bound = (features, duration_ns)
        predicted = self.predict_ns(features)
        error = duration_ns - (predicted or 0.0)
        spread, share, beyond = self.spread_ns, self.error_share, 0
        if not self.fitted:
            spread = _SPREAD_FIRST_SHARE * duration_ns
        elif predicted is not None:
            limit = OUTLIER_SPREADS * max(spread, _SPREAD_MIN_SHARE * predicted)
            taken = min(max(error, -limit), limit)
            if taken != error:
                side = 1 if error > 0 else -1
                beyond = (self.beyond if self.beyond * side > 0 else 0) + side
                if abs(beyond) == CHANGED_STEPS:
                    anew = replace(LinearFit.prior(self.scale, self.ridges), count=WARM_UP_STEPS, error_share=share)
                    return anew.observe(features, duration_ns)
            duration_ns = predicted + taken
            spread += _SPREAD_WEIGHT * (abs(taken) - spread)
            share += _SPREAD_WEIGHT * (min(1.0, abs(error) / max(1.0, duration_ns)) - share)
        x = [feature * scale for feature, scale in zip(features, self.scale, strict=True)]
        image = [_dot(row, x) for row in self.gram]
        fading = (1 - FORGETTING) / (_dot(image, x) or inf)
        moment_fading = fading * _dot(self.moment, x)
        gram = tuple(
            tuple(old - fading * image_a * image_b + a * b for old, image_b, b in zip(row, image, x, strict=True))
            for row, image_a, a in zip(self.gram, image, x, strict=True)
        )
        moment = tuple(
            old - moment_fading * image_a + a * duration_ns
            for old, image_a, a in zip(self.moment, image, x, strict=True)
        )
        weights = _non_negative(gram, moment, self.ridges)
        largest = tuple(map(max, self.largest or features, features))
        return LinearFit(
            gram, moment, self.scale, self.ridges, weights, self.count + 1, spread, share, beyond, bound, largest
        )

    def knows(self, features: tuple[float, ...]) -> bool:
        pairs = zip(features, self.largest, strict=True)
        return self.fitted and all(wanted <= _KNOWN_UP_TO * learned for wanted, learned in pairs)

    def predict_ns(self, features: tuple[float, ...]) -> float | None:
        """Return the predicted ns, or None before the first observation."""
        if not self.fitted:
            return None if self.bound is None else _scaled_up(self.bound, features)
        return sum(w * feature * s for w, feature, s in zip(self.weights, features, self.scale, strict=True))


def _dot(some: Sequence[float], others: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(some, others, strict=True))


def _non_negative(gram: _Matrix, moment: _Vector, ridges: _Vector) -> _Vector:
    """Return the w >= 0 that minimises w @ (gram + ridges) @ w - 2 * w @ moment."""
    every = range(len(moment))
    weights = _solve(gram, moment, ridges, every)
    if min(weights) >= 0:
        return weights
    best, best_cost = (0.0,) * len(moment), 0.0
    for size in range(1, len(moment)):
        for kept in combinations(every, size):
            part = _solve(gram, moment, ridges, kept)
            cost = -sum(weight * moment[index] for weight, index in zip(part, kept, strict=True))
            if min(part) >= 0 and cost < best_cost:
                by_index = dict(zip(kept, part, strict=True))
                best, best_cost = tuple(by_index.get(index, 0.0) for index in every), cost
    return best


def _solve(gram: _Matrix, moment: _Vector, ridges: _Vector, kept: Sequence[int]) -> _Vector:
    """Solve (gram + diagonal of ridges) @ w = moment for the indices `kept`. The matrix is positive definite, so no
    pivoting is needed (Golub and Van Loan, "Matrix Computations", section 4.2)."""
    rows = [[gram[i][j] + (ridges[i] if i == j else 0.0) for j in kept] + [moment[i]] for i in kept]
    size = len(rows)
    for at in range(size):
        pivot = rows[at]
        for row in rows[at + 1 :]:
            factor = row[at] / pivot[at]
            for column in range(at + 1, size + 1):
                row[column] -= factor * pivot[column]
    solution = [0.0] * size
    for at in reversed(range(size)):
        row = rows[at]
        solution[at] = (row[size] - sum(row[column] * solution[column] for column in range(at + 1, size))) / row[at]
    return tuple(solution)


def _scaled_up(bound: tuple[tuple[float, ...], float], features: tuple[float, ...]) -> float:
    """Return the longest time that a step with `features` may take. `bound` is an observed step: its features and its
    duration. Time is assumed to grow at most in proportion to each feature."""
    seen, duration_ns = bound
    return duration_ns * max(1.0, *(wanted / max(had, 1.0) for wanted, had in zip(features, seen, strict=True)))


@dataclass(frozen=True, slots=True)
class StepTimes:
    """The fits of one engine, for prefill and decode steps. A prediction is None before the first step of its kind."""

    prefill: LinearFit
    decode: LinearFit

    @classmethod
    def unknown(cls) -> StepTimes:
        return cls(LinearFit.prior(_PREFILL_SCALE, _PREFILL_RIDGES), LinearFit.prior(_DECODE_SCALE))

    def observe_prefill(self, tokens: int, pairs: float, duration_ns: int) -> StepTimes:
        return StepTimes(self.prefill.observe((1.0, tokens, pairs), duration_ns), self.decode)

    def observe_decode(self, batch: int, context_tokens: int, duration_ns: int) -> StepTimes:
        return StepTimes(self.prefill, self.decode.observe((1.0, batch, context_tokens), duration_ns))

    def prefill_ns(self, tokens: int, pairs: float | None = None) -> int | None:
        """Return T_prefill. Without `pairs`, the tokens are one prompt that has no cached prefix."""
        return _whole(self.prefill.predict_ns((1.0, tokens, attended(tokens) if pairs is None else pairs)))

    def decode_ns(self, batch: float, context_tokens: float) -> int | None:
        return _whole(self.decode.predict_ns((1.0, batch, context_tokens)))

    def prefill_tokens_within(self, limit_ns: int, prefix_tokens: int = 0) -> int | None:
        """Return how many tokens after a prefix can be prefilled within `limit_ns`, or None if that is unknown."""
        fit = self.prefill
        if not fit.fitted:
            return None
        base_ns, per_token_ns, per_pair_ns = (
            weight * scale for weight, scale in zip(fit.weights, fit.scale, strict=True)
        )
        linear = max(1.0, per_token_ns + per_pair_ns * prefix_tokens)
        left_ns = max(0.0, limit_ns - base_ns)
        # The root of per_pair / 2 * n^2 + linear * n = left, in the form that needs no per_pair above 0.
        return int(2 * left_ns / (linear + sqrt(linear * linear + 2 * per_pair_ns * left_ns)))


def attended(tokens: int, prefix_tokens: float = 0) -> float:
    """Return how many pairs `tokens` new tokens form: each with all tokens before it, also in the cached prefix."""
    return tokens * (prefix_tokens + tokens / 2)


def _whole(duration_ns: float | None) -> int | None:
    return None if duration_ns is None else int(duration_ns)
