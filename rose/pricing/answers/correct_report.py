"""The report on the cost of correct answers. It answers one question after the other."""

from pathlib import Path

from rose.pricing.answers import correct_answer, frontier, verifiers
from rose.pricing.answers.breakdown import By
from rose.pricing.money import PricingError
from rose.pricing.run.priced import PricedRun
from rose.pricing.table import Paragraph, Section

QUESTIONS = ("cost", "frontier", "verifiers")


def sections(
    run: PricedRun,
    only: str | None = None,
    by: By | None = None,
    probes: Path | None = None,
    threshold: float | None = None,
) -> dict[str, Section]:
    """Return the answers to all QUESTIONS, or to the question `only`. Raises PricingError for unusable probes."""
    made = {}
    if only in (None, "cost"):
        made["cost"] = correct_answer.cost(run, by)
    if only in (None, "frontier"):
        made["frontier"] = frontier.frontier(run)
    if only in (None, "verifiers"):
        try:
            made["verifiers"] = verifiers.procurement(run, probes, threshold)
        except PricingError as error:
            if only is not None or probes is not None or threshold is not None:
                raise
            made["verifiers"] = Section({"missing": Paragraph(f"Verifiers cannot be compared: {error}.")})
    return made
