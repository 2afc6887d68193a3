"""An audit of predictions with uncertainty as one HTML file."""

from epsilometer.errors import InvalidArgument
from epsilometer.core.audit import PosteriorAudit
from epsilometer.report import posterior_words, words
from epsilometer.report.explaining import explained
from epsilometer.report.fitting import cut
from epsilometer.report.frame import LARGEST, framed
from epsilometer.report.posterior_figures import posterior_figures


def posterior_page(result: PosteriorAudit) -> str:
    """The audit as one HTML page of at most 1.5 MB; the same audit gives the same bytes."""
    for drawn in (True, False):
        text = _page(result, drawn=drawn)
        if len(text.encode()) <= LARGEST:
            return text
    raise InvalidArgument(f"Expected a result whose page fits into {LARGEST:,} bytes.")


def _page(result: PosteriorAudit, *, drawn: bool) -> str:
    kept = cut(result)
    figures = posterior_figures(kept) if drawn else ()
    bounds = [bound for form in kept.forms for bound in (form.audit.bound, *form.audit.also)]
    tested = kept.tested > 0
    return framed(
        "posterior.html",
        title=kept.subject,
        plain=kept.to_dict(),
        figures=figures,
        cites=(*kept.cites, *(key for bound in bounds for key in bound.cites)),
        is_cut=kept != result,
        drawn=drawn,
        verdict=kept.verdict,
        finding=posterior_words.finding(kept),
        meaning=posterior_words.meaning(kept),
        notes=words.run_notes(kept.provenance),
        chosen=kept.plan.chosen,
        advice=kept.plan.advice,
        facts=posterior_words.facts(kept),
        forms=[posterior_words.form_row(form) for form in kept.forms],
        form_head=posterior_words.FORM_HEAD,
        bounds=[posterior_words.bound_row(form) for form in kept.forms],
        bound_head=posterior_words.BOUND_HEAD,
        utility=[posterior_words.utility_row(form) for form in kept.forms] if tested else [],
        utility_head=posterior_words.UTILITY_HEAD,
        differences=[posterior_words.difference_row(gap) for gap in kept.differences],
        difference_head=posterior_words.DIFFERENCE_HEAD,
        difference_confidence=f"{kept.confidence:g}",
        explanation=explained(kept),
        seed=kept.seed,
        provenance=kept.provenance,
    )
