"""Apply rules about publishing to risks and attacks: each passes, fails or is unclear."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, repeat
from typing import TypeAlias

import msgspec
import numpy as np

from epsilometer import _validate
from epsilometer.audits.classifier.file_rules import (
    IN_ANSWERS,
    IN_FILE,
    limit_answers,
    limit_file,
)
from epsilometer.audits.classifier.leaks import Leak
from epsilometer.audits.classifier.threats.threat import Threat, limit_threats
from epsilometer.core.findings import MembershipFinding, Outcome, RuleFinding
from epsilometer.errors import InvalidArgument
from epsilometer.stats import clusters, membership
from epsilometer.stats.clusters import Observed
from epsilometer.stats.membership import Limited
from epsilometer.stats.tradeoff import tradeoff_curve
from epsilometer.types import BoolArray, FloatArray

_DRAWN = 60  # points per curve
_Plain: TypeAlias = Callable[[float], str]
_UNKNOWN = Limited(0.0, 0.0, 1.0)  # where nothing was measured


@dataclass(frozen=True)
class PdtpAtMost:
    """No record's PDTP is above ``limit`` (the DTP-1 hypothesis if that is 1).

    Attributes:
        limit: On a log scale: 1 allows probabilities at a record to change by a factor of e.
        share: Share of records that may nevertheless be above it.

    Example:
        >>> import epsilometer as em
        >>> em.rules.PdtpAtMost(share=0.01)
        PdtpAtMost(limit=1.0, share=0.01)
    """

    limit: float = 1.0
    share: float = 0.0

    def __post_init__(self) -> None:
        _validate.at_least(0, limit=self.limit)
        _validate.probability(share=self.share)


@dataclass(frozen=True)
class ChangeAtMost:
    """No record's removal changes the prediction at it by more than ``limit`` units.

    The unit is the noise of answers, or their rounding, or the model's typical error.

    Attributes:
        limit: Limit, in units.
        share: Share of records that may nevertheless be above it.

    Example:
        >>> import epsilometer as em
        >>> em.rules.ChangeAtMost(0.5)
        ChangeAtMost(limit=0.5, share=0.0)
    """

    limit: float = 1.0
    share: float = 0.0

    def __post_init__(self) -> None:
        _validate.at_least(0, limit=self.limit)
        _validate.probability(share=self.share)


@dataclass(frozen=True)
class AdvantageAtMost:
    """No attack has TPR − FPR above ``limit`` at any threshold.

    Attributes:
        limit: Limit in [0, 1].

    Example:
        >>> import epsilometer as em
        >>> em.rules.AdvantageAtMost(0.2)
        AdvantageAtMost(limit=0.2)
    """

    limit: float = 0.1

    def __post_init__(self) -> None:
        _validate.probability(limit=self.limit)


@dataclass(frozen=True)
class CaughtAtMost:
    """No attack's TPR is above ``limit`` at false positive rate ``fpr``.

    Attributes:
        limit: Limit on TPR: the share of members that are identified.
        fpr: FPR: the share of non-members that are classified as members.

    Example:
        >>> import epsilometer as em
        >>> em.rules.CaughtAtMost(0.1)
        CaughtAtMost(limit=0.1, fpr=0.01)
    """

    limit: float = 0.05
    fpr: float = 0.01

    def __post_init__(self) -> None:
        _validate.probability(limit=self.limit)
        _validate.open_unit(fpr=self.fpr)


@dataclass(frozen=True)
class GainAtMost:
    """No threat other than membership gains more than ``limit``.

    Attributes:
        limit: For attributes and ranges, how much more often guesses may be right about members
            than about others; for structure, the share of records that may be singled out.

    Example:
        >>> import epsilometer as em
        >>> em.rules.GainAtMost(0.05)
        GainAtMost(limit=0.05)
    """

    limit: float = 0.1

    def __post_init__(self) -> None:
        _validate.probability(limit=self.limit)


@dataclass(frozen=True)
class NoRecordInFile:
    """No record can be read from the model's file, or computed from it and all other records.

    Attributes:
        statistics: Whether means of many records count too: anyone with all but one of these can
            compute the last, but most files hold some.

    Example:
        >>> import epsilometer as em
        >>> em.rules.NoRecordInFile()
        NoRecordInFile(statistics=False)
    """

    statistics: bool = False


@dataclass(frozen=True)
class NoRecordInAnswers:
    """No record can be computed from answers (probabilities or labels) and all other records.

    Example:
        >>> import epsilometer as em
        >>> em.rules.NoRecordInAnswers()
        NoRecordInAnswers()
    """


ReleaseRule: TypeAlias = (
    GainAtMost
    | PdtpAtMost
    | ChangeAtMost
    | AdvantageAtMost
    | CaughtAtMost
    | NoRecordInFile
    | NoRecordInAnswers
)
RULES: tuple[ReleaseRule, ...] = (
    NoRecordInFile(),
    NoRecordInAnswers(),
    PdtpAtMost(),
    AdvantageAtMost(),
    CaughtAtMost(),
)


@dataclass(frozen=True, eq=False, kw_only=True)
class Attacked:
    """Scores of an attack.

    Attributes:
        name: Name of the attack.
        scores: Scores from models trained on half of the records.
        smaller: Scores from models trained on an eighth and on a quarter; empty if there are none.
    """

    name: str
    scores: Observed
    smaller: tuple[Observed, ...] = ()


@dataclass(frozen=True, eq=False, kw_only=True)
class Measured:
    """The measurements that rules use.

    Attributes:
        risk: PDTP of measured records, as shown.
        floor: PDTP of refits with nothing removed; None if training is not random.
        of: Total number of records.
        drawn: Whether those measured were drawn at random, if not all were.
        screened: Which of them a screen chose; the others were drawn from the rest. None: none.
        attacks: Scores of each attack.
        mismatch: Why attacks may be weaker than they could be; empty if no reason is known.
        leaks: What the model's file reveals about single records; None if it was not searched.
        threats: Threats other than membership that were measured.
        answers: What an API's answers reveal about single records; None if that was not tried.
        doubt: Why measurements of rows may say little about people; empty if no reason is known.
    """

    risk: FloatArray | None
    floor: FloatArray | None
    of: int
    drawn: bool
    attacks: Sequence[Attacked]
    mismatch: str = ""
    leaks: Sequence[Leak] | None = None
    screened: BoolArray | None = None
    threats: Sequence[Threat] = ()
    answers: Sequence[Leak] | None = None
    doubt: str = ""


def share_exposed(
    above: BoolArray, screened: BoolArray | None, of: int, *, confidence: float
) -> Limited:
    """Estimate the share of all records above a limit, given which of those measured are.

    Args:
        above: Whether each measured record is above the limit.
        screened: Which of them a screen chose; None: none.
        of: Total number of records.
        confidence: Confidence of both limits together.
    """
    chosen = np.zeros_like(above) if screened is None else screened
    return membership.share_above(
        int(above.sum()),
        above.size,
        of,
        screened=(int(np.sum(above & chosen)), int(chosen.sum())),
        confidence=confidence,
    )


def apply_rules(
    measured: Measured, rules: Sequence[ReleaseRule], *, confidence: float = 0.95
) -> tuple[tuple[RuleFinding, ...], tuple[MembershipFinding, ...]]:
    """Return the outcome of each rule and the results of each attack.

    Guarantee: *fail* is wrong with probability at most 1 − ``confidence``, for any number of rules
        and attacks; so is *pass*, for each rule's quantity as measured by these attacks. Neither
        covers attacks that were not run.
    Assumption: records, with all their scores, are independent and drawn from one population; those
        measured were chosen at random.
    """
    if not rules:
        raise InvalidArgument("Expected at least one rule in rules, got none.")
    each = share_confidence(measured, rules, confidence)
    fpr = next((rule.fpr for rule in rules if isinstance(rule, CaughtAtMost)), 0.01)
    findings = tuple(
        measure_attack(attack, fpr=fpr, confidence=each) for attack in measured.attacks
    )
    found = tuple(_apply_rule(rule, measured, findings, each) for rule in rules)
    return _add_doubt(found, measured.doubt) if measured.doubt else found, findings


def _add_doubt(rules: Sequence[RuleFinding], doubt: str) -> tuple[RuleFinding, ...]:
    """Return rules with every pass but that on the file made unclear, for the given reason."""
    changed, reasons = [], chain([doubt], repeat("In doubt for the same reason."))
    for rule in rules:
        passes = rule.outcome == "pass" and rule.rule != IN_FILE
        finding = f"{next(reasons)} {rule.finding}" if passes else rule.finding
        outcome: Outcome = "unclear" if passes else rule.outcome
        changed.append(msgspec.structs.replace(rule, outcome=outcome, finding=finding))
    return tuple(changed)


def share_confidence(measured: Measured, rules: Sequence[ReleaseRule], confidence: float) -> float:
    """Return the confidence of each statement, so that all of them hold together."""
    return 1 - (1 - confidence) / max(_count_statements(measured, rules), 1)


def measure_width(
    attacks: Sequence[Attacked], rules: Sequence[ReleaseRule], *, confidence: float = 0.95
) -> float:
    """Return the width of the widest limits that a rule on attacks uses; 0 without any."""
    alone = [replace(attack, smaller=()) for attack in attacks]
    measured = Measured(risk=None, floor=None, of=0, drawn=False, attacks=alone)
    found, _ = apply_rules(measured, rules, confidence=confidence)
    widths = [
        finding.high - finding.low
        for rule, finding in zip(rules, found, strict=True)
        if isinstance(rule, AdvantageAtMost | CaughtAtMost)
    ]
    return max(widths, default=0.0)


def measure_attack(
    attack: Attacked, *, fpr: float = 0.01, confidence: float = 0.95
) -> MembershipFinding:
    """Measure how well an attack does, with limits that hold at ``confidence`` each."""
    scores = attack.scores
    advantage = clusters.advantage(scores, confidence=confidence)
    caught = clusters.tpr_at(scores, fpr, confidence=confidence)
    curve = tradeoff_curve(clusters.pool(scores))
    thin = curve.thin(_DRAWN)
    full = _extrapolate(attack, confidence)
    return MembershipFinding(
        attack=attack.name,
        auc=curve.auc,
        advantage=advantage.value,
        advantage_low=advantage.low,
        advantage_high=advantage.high,
        tpr=caught.value,
        tpr_low=caught.low,
        tpr_high=caught.high,
        fpr=fpr,
        confidence=confidence,
        n_in=curve.n_in,
        n_out=curve.n_out,
        roc_fpr=_round_digits(thin.fpr),
        roc_tpr=_round_digits(1 - thin.fnr),
        full_advantage=full and full.value,
        full_low=full and full.low,
        full_high=full and full.high,
    )


def _extrapolate(attack: Attacked, confidence: float) -> Limited | None:
    """Extrapolate the advantage for a model of all records from the trend over three sizes."""
    if not attack.smaller:
        return None
    each = 1 - (1 - confidence) / 3
    sizes = [clusters.advantage(scores, confidence=each) for scores in attack.smaller]
    sizes.append(clusters.advantage(attack.scores, confidence=each))
    return clusters.extrapolate(sizes)


def _count_statements(measured: Measured, rules: Sequence[ReleaseRule]) -> int:
    """Count the statements that rest on samples, and so share the confidence."""
    risk = measured.risk
    sampled = risk is not None and (risk.size < measured.of or measured.floor is not None)
    sizes: dict[type, int] = {
        PdtpAtMost: int(sampled),
        ChangeAtMost: int(sampled),
        NoRecordInFile: 0,
        NoRecordInAnswers: 0,
    }
    sizes[GainAtMost] = sum(threat.is_sampled and threat.decides for threat in measured.threats)
    return sum(sizes.get(type(rule), len(measured.attacks)) for rule in rules)


def _apply_rule(
    rule: ReleaseRule, measured: Measured, findings: Sequence[MembershipFinding], confidence: float
) -> RuleFinding:
    match rule:
        case NoRecordInFile():
            return limit_file(measured.leaks, measured.of, statistics=rule.statistics)
        case NoRecordInAnswers():
            return limit_answers(measured.answers, measured.of)
        case GainAtMost():
            return limit_threats(measured.threats, rule.limit, confidence=confidence)
        case PdtpAtMost() | ChangeAtMost():
            return _limit_risk(rule, measured, confidence)
        case AdvantageAtMost(limit):
            name = f"no attack's TPR − FPR above {limit:g}"
            limits = [
                (f, Limited(f.advantage, f.advantage_low, f.advantage_high)) for f in findings
            ]
            said = measured.mismatch, confidence
            found = _limit_attacks(name, limit, limits, "TPR − FPR", _word_advantage, *said)
            return _follow_trend(found, findings)
        case CaughtAtMost(limit, fpr):
            name = f"no attack's TPR above {limit:.3g} at FPR {fpr:.3g}"
            limits = [
                (f, clusters.tpr_at(attack.scores, fpr, confidence=confidence))
                for f, attack in zip(findings, measured.attacks, strict=True)
            ]
            what = f"TPR at FPR {fpr:.3g}"
            said = measured.mismatch, confidence
            return _limit_attacks(name, limit, limits, what, partial(_word_caught, fpr), *said)


def _word_advantage(value: float) -> str:
    return (
        f"An attacker correctly decides for {100 * (1 + value) / 2:.0f} of 100 people whether they "
        "are in the data; guessing is right for 50."
    )


def _word_caught(fpr: float, value: float) -> str:
    return (
        f"Of 100 people in the data, an attacker identifies {100 * value:.0f}, and wrongly "
        f"{100 * fpr:g} of 100 others."
    )


def _limit_attacks(
    rule: str,
    limit: float,
    limits: Sequence[tuple[MembershipFinding, Limited]],
    what: str,
    plain: _Plain,
    mismatch: str,
    confidence: float,
) -> RuleFinding:
    outcome: Outcome = "unclear"
    interval, why = _UNKNOWN, "No attack was run."
    if limits:
        convicting = max(limits, key=lambda each: each[1].low)
        strongest = max(limits, key=lambda each: each[1].high)
        attack, interval = convicting if convicting[1].low > limit else strongest
        value, low, high = interval
        why = f"{what} of {attack.attack} is {value:.3f} ({low:.3f} to {high:.3f})"
        if low > limit:
            outcome, why = "fail", f"{plain(value)} {why}, above {limit:g}."
        elif high > limit:
            why += (
                f": it may be on either side of {limit:g}. More records would narrow the "
                "interval; so may more models (precision)."
            )
        elif mismatch:
            why += f", at most {limit:g}; but {mismatch[:1].lower()}{mismatch[1:]}"
        else:
            outcome, why = "pass", f"{why}, the largest; at most {limit:g} is allowed."
    return RuleFinding(
        rule=rule,
        outcome=outcome,
        finding=why,
        **interval._asdict(),
        limit=limit,
        confidence=confidence,
    )


def _follow_trend(found: RuleFinding, attacks: Sequence[MembershipFinding]) -> RuleFinding:
    """Add the extrapolation to a model of all records; an outcome it contradicts is unclear."""
    known = [attack for attack in attacks if attack.full_high is not None]
    if not known:
        return found
    top = max(known, key=lambda attack: attack.full_high or 0.0)
    why = (
        f"{found.finding} The attacked models were trained on half of the records. Extrapolated "
        f"from three sizes, a model of all would have {top.full_advantage:.3f} "
        f"({top.full_low:.3f} to {top.full_high:.3f})"
    )
    below = max(attack.full_high or 0.0 for attack in known) <= found.limit
    if found.outcome == "fail" and below:
        why += f", at most the limit of {found.limit:g}: this is neither a pass nor a failure"
        return msgspec.structs.replace(found, outcome="unclear", finding=f"{why}.")
    return msgspec.structs.replace(found, finding=f"{why}.")


def _limit_risk(
    rule: PdtpAtMost | ChangeAtMost, measured: Measured, confidence: float
) -> RuleFinding:
    what = "PDTP" if isinstance(rule, PdtpAtMost) else "change of prediction"
    name = f"{what} at most {rule.limit:g}"
    if rule.share:
        name += f" for all but {rule.share:.3g} of records"
    risk, whole = measured.risk, False
    outcome: Outcome = "unclear"
    share, why = _UNKNOWN, "Leave-one-out risk was not measured."
    if risk is not None:
        outcome, why, share = _compare_share(rule, measured, risk, confidence)
        whole = risk.size == measured.of and measured.floor is None
    return RuleFinding(
        rule=name,
        outcome=outcome,
        finding=why,
        **share._asdict(),
        limit=rule.share,
        confidence=1.0 if whole else confidence,
    )


def _compare_share(
    rule: PdtpAtMost | ChangeAtMost, measured: Measured, risk: FloatArray, confidence: float
) -> tuple[Outcome, str, Limited]:
    """Decide by the share of records above the limit, beyond the effect of refits alone."""
    above = int(np.sum(risk > rule.limit))
    counted = f"{above:,} of {risk.size:,} measured records are above {rule.limit:g}"
    largest = float(risk.max())
    found = f"{counted}; the largest has {'∞' if np.isinf(largest) else f'{largest:.3g}'}."
    plain = f"For {above:,} of {risk.size:,} people, "
    plain += "leaving out their record changes the model's answer: "
    if isinstance(rule, PdtpAtMost):
        plain += f"a probability changes more than {math.exp(rule.limit):.3g}-fold."
    else:
        plain += f"its number changes by more than {rule.limit:g} units."
    share = share_exposed(risk > rule.limit, measured.screened, measured.of, confidence=confidence)
    known = risk.size == measured.of or measured.drawn
    if not known:  # nothing is known about the other records
        most = 1 - (risk.size - above) / measured.of
        share = Limited(share.value, above / measured.of, most)
    if share.low > rule.share:
        beyond, why = _test_floor(rule, risk, measured.floor, confidence)
        if beyond:
            return "fail", f"{plain} {found} {why}".strip(), share
        return "unclear", f"Training is too random to tell: {counted}, {why}", share
    if not known:
        why = f"{counted}, but they were chosen by the caller: others may be above it."
        return "unclear", why, share
    if share.high <= rule.share:
        return "pass", found, share
    why = (
        f"At most {share.high:.2%} of all {measured.of:,} records are above {rule.limit:g}, where "
        f"{rule.share:.2%} are allowed: {counted}. Measure all, or allow a larger share."
    )
    return "unclear", why, share


def _test_floor(
    rule: PdtpAtMost | ChangeAtMost,
    risk: FloatArray,
    floor: FloatArray | None,
    confidence: float,
) -> tuple[bool, str]:
    """Test whether records are above the limit for another reason than random training.

    If leaving a record out had no more effect than another seed, risk and floor would be above the
    limit equally often. This is a sign test over the records at which only one of them is.
    """
    if floor is None:
        return True, ""
    above, by_chance = risk > rule.limit, floor > rule.limit
    only_risk, only_floor = int(np.sum(above & ~by_chance)), int(np.sum(by_chance & ~above))
    pvalue = membership.sign_test_pvalue(only_risk, only_floor)
    why = f"{int(by_chance.sum()):,} with another seed and nothing removed (sign test: p = "
    return only_risk > 0 and pvalue <= 1 - confidence, f"{why}{pvalue:.2g})."


def weigh_rule(rule: RuleFinding, of: int, kinds: Sequence[str]) -> float:
    """Return the severity of a rule's failure, as a share of the people that it concerns.

    Rows have weight 1. Parts of the model that belong to one person, records that can be computed
    only with all others, and advantages have weight ½.

    Args:
        rule: Outcome of the rule.
        of: Total number of records.
        kinds: Kinds of leaks in the model's file, the most severe first.
    """
    if rule.rule == IN_FILE:
        return rule.value / of * (1.0 if kinds and kinds[0] == "rows" else 0.5)
    if rule.rule == IN_ANSWERS:
        return rule.value / of / 2
    return float(rule.value) / (2 if "TPR − FPR" in rule.rule else 1)


def _round_digits(values: FloatArray) -> tuple[float, ...]:
    """Round values to six significant digits, which is enough for plots."""
    return tuple(float(f"{value:.6g}") for value in values)
