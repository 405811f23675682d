"""How long an engine's next step will take, fitted online from the steps it has run.

T_prefill(tokens) = a + b * tokens and T_decode(batch, context) = a + b * batch + c * context, each by recursive
least squares with exponential forgetting (Ljung, "System Identification", 2nd ed., section 11.2), so that a model
follows a change of clocks or of neighbours within a few tens of steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

FORGETTING = 0.98
WARM_UP_STEPS = 2
#: Features are scaled so that a typical step has entries near one, which keeps the covariance well conditioned.
_PREFILL_SCALE = np.array([1.0, 1 / 256])
_DECODE_SCALE = np.array([1.0, 1 / 16, 1 / 4096])


@dataclass(frozen=True, slots=True)
class LinearFit:
    """A least-squares fit of `weights @ (features * scale)`, in nanoseconds, after `count` observations."""

    weights: NDArray[np.float64]
    covariance: NDArray[np.float64]
    scale: NDArray[np.float64]
    count: int = 0

    @classmethod
    def prior(cls, scale: NDArray[np.float64]) -> LinearFit:
        return cls(np.zeros(len(scale)), np.eye(len(scale)) * 1e6, scale)

    def observe(self, features: tuple[float, ...], duration_ns: float) -> LinearFit:
        """The fit after one more step of `duration_ns`. The first steps are skipped: they pay for lazy set-up."""
        if self.count < WARM_UP_STEPS:
            return replace(self, count=self.count + 1)
        x = np.asarray(features) * self.scale
        px = self.covariance @ x
        gain = px / (FORGETTING + x @ px)
        weights = self.weights + gain * (duration_ns - self.weights @ x)
        covariance = (self.covariance - np.outer(gain, px)) / FORGETTING
        # Forgetting without new directions inflates the covariance without bound; the cap keeps it finite.
        trace = float(np.trace(covariance))
        if trace > 1e7:
            covariance *= 1e7 / trace
        return LinearFit(weights, covariance, self.scale, self.count + 1)

    def predict_ns(self, features: tuple[float, ...]) -> float:
        """Predicted nanoseconds, never negative: a negative coefficient is noise and would invent slack."""
        return float(np.maximum(self.weights, 0.0) @ (np.asarray(features) * self.scale))


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Both fits of one engine. Predictions are 0 ns until a step of that sort was seen."""

    prefill: LinearFit
    decode: LinearFit

    @classmethod
    def unknown(cls) -> StepTimes:
        return cls(LinearFit.prior(_PREFILL_SCALE), LinearFit.prior(_DECODE_SCALE))

    def observe_prefill(self, tokens: int, duration_ns: int) -> StepTimes:
        return StepTimes(self.prefill.observe((1.0, tokens), duration_ns), self.decode)

    def observe_decode(self, batch: int, context_tokens: int, duration_ns: int) -> StepTimes:
        return StepTimes(self.prefill, self.decode.observe((1.0, batch, context_tokens), duration_ns))

    def prefill_ns(self, tokens: int) -> int:
        """T_prefill: predicted nanoseconds of a prefill of `tokens` new tokens."""
        return int(self.prefill.predict_ns((1.0, tokens)))

    def decode_ns(self, batch: int, context_tokens: int) -> int:
        """T_decode: predicted nanoseconds of a decode step of `batch` requests with `context_tokens` in all."""
        return int(self.decode.predict_ns((1.0, batch, context_tokens)))
