"""Reduce audits to lines: one per view of the adversary, or one per classifier."""

import operator
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from epsilometer.core.audit import Audit
from epsilometer.core.findings import EpsilonFinding, FormFinding, MembershipFinding
from epsilometer.core.judge import Verdict, judge
from epsilometer.core.plain import to_plain

_HEAD = re.compile(rb'\s*\{\s*"format"\s*:\s*[^,{\[]{1,20},\s*"subject"\s*:')


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Hold one view of an audit, or an audit without views.

    Attributes:
        path: The file, relative to the folder.
        part: Number of the view in the file, from 1.
        written: When the file was written, in seconds since 1970.
        kind: The subject's name in the registry, such as ``Scores`` or ``DPSGD``.
        subject: What was audited, in words.
        claim: The claimed ε.
        epsilon: The largest ε that the view proves; if none, its bound that is not valid. A
            classifier has none.
        delta: The δ at which it holds.
        confidence: Confidence with which it holds; 1 if ε was computed.
        valid: Whether ``epsilon`` is proved.
        method: How it was computed.
        adversary: Whose view it is, in words.
        observations: Total number, with the record and without it.
        auc: AUC of the attack.
        advantage: The largest TPR − FPR of the attack that was observed.
        reach: The largest claim that the view could have refuted, if known.
        verdict: Verdict of the whole audit.
        view_verdict: Verdict on this view and on findings of the whole run, without other views.
        seed: Seed of all randomness.
        failed: Units of work that failed.
        version: Version of epsilometer, if the audit states it.
    """

    path: str
    part: int
    written: float
    kind: str
    subject: str
    claim: float | None
    epsilon: float | None
    delta: float | None
    confidence: float
    valid: bool
    method: str
    adversary: str
    observations: int | None
    auc: float | None
    advantage: float | None
    reach: float | None
    verdict: Verdict
    view_verdict: Verdict
    seed: int
    failed: int
    version: str

    @property
    def label(self) -> str:
        """Name of the run: its directory, or its file without the suffix."""
        run, _, name = self.path.rpartition("/")
        return (run or ".") if name == "result.json" else self.path.removesuffix(".json")

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON; infinities as the strings ``"inf"`` and ``"-inf"``."""
        plain: dict[str, Any] = to_plain({f.name: getattr(self, f.name) for f in fields(self)})
        return plain


def looks_like_audit(head: bytes) -> bool:
    """Tell whether the first bytes of a file are those of an audit in any format."""
    return _HEAD.match(head) is not None


def list_entries(audit: Audit, *, path: str = "", written: float = 0.0) -> list[Entry]:
    """Return the views of an audit, the most severe first; the audit itself if it has none."""
    source = audit.provenance
    shared: dict[str, Any] = {
        "path": path,
        "written": written,
        "kind": _clean(source.subject),
        "claim": None if audit.claim is None else audit.claim.epsilon,
        "verdict": audit.verdict,
        "seed": source.seed,
        "failed": source.failed,
        "version": _clean(dict(source.versions).get("epsilometer", "")),
    }
    views = list(_read_views(audit)) or [_read_whole(audit)]
    return [Entry(part=part, **shared, **own) for part, own in enumerate(views, start=1)]


def _read_views(audit: Audit) -> Iterator[dict[str, Any]]:
    for finding in audit.findings:
        if isinstance(finding, EpsilonFinding):
            verdict = _judge_view(audit, finding)
            yield _read_view(finding, advantage=find_advantage(finding)) | {"view_verdict": verdict}
        elif isinstance(finding, FormFinding):  # rules decide, about all forms together
            view = _read_view(finding.view, advantage=finding.advantage)
            yield view | {"view_verdict": audit.verdict}


def _judge_view(audit: Audit, view: EpsilonFinding) -> Verdict:
    """Judge a view as if it were the only one: a violated check still counts."""
    others = [each for each in audit.findings if not isinstance(each, EpsilonFinding)]
    return judge(audit.claim, [view, *others], failed=audit.provenance.failed).verdict


def _read_view(view: EpsilonFinding, *, advantage: float | None) -> dict[str, Any]:
    bound, computed = view.bound, view.computed
    proof: dict[str, Any] = {
        "epsilon": bound.epsilon,
        "confidence": bound.confidence,
        "method": bound.method,
    }
    if computed is not None and (computed.lower > bound.epsilon or not bound.valid):
        proof = {"epsilon": computed.lower, "confidence": 1.0, "method": computed.method}
    return {
        **proof,
        "subject": _clean(view.subject),
        "delta": bound.delta,
        "valid": bool(bound.valid) or computed is not None,
        "method": _clean(proof["method"]),
        "adversary": _clean(bound.adversary),
        "observations": bound.n_in + bound.n_out,
        "auc": view.attack.auc,
        "advantage": advantage,
        "reach": view.reach,
    }


def _read_whole(audit: Audit) -> dict[str, Any]:
    """Return the entry of an audit without views, such as a classifier's."""
    gained = [attack.advantage for attack in audit.find(MembershipFinding)]
    return {
        "subject": _clean(audit.subject),
        "epsilon": None,
        "delta": None,
        "confidence": audit.confidence,
        "valid": True,
        "method": "",
        "adversary": "",
        "observations": None,
        "auc": None,
        "advantage": max(gained, default=None),
        "reach": None,
        "view_verdict": audit.verdict,
    }


def find_advantage(view: EpsilonFinding) -> float | None:
    """Return the observed gain of the attack over guessing, at its best threshold."""
    errors = min(map(operator.add, view.evidence.fpr, view.evidence.fnr), default=None)
    return None if errors is None else 1 - errors


def _clean(text: str) -> str:
    """Return text that every encoding can write: lone surrogates are replaced."""
    return text.encode("utf-8", "replace").decode("utf-8")
