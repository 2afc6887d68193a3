"""Rules and what they say: of records, of floors, of samples, of attacks."""

from dataclasses import replace as replace_fields
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import scipy.stats
from msgspec.structs import replace

from epsilometer import Scores
from epsilometer.audits.classifier import release
from epsilometer.audits.classifier.release import RULES, Attacked, Measured, apply_rules
from epsilometer.errors import InvalidArgument
from epsilometer.rules import AdvantageAtMost, CaughtAtMost, PdtpAtMost
from epsilometer.stats.clusters import ScoresByRecord, extrapolate
from epsilometer.stats.membership import Limited

FLAKE = 1e-6
AUDITS = 100


def measured(risk: Any = (), **changed: Any) -> Measured:
    values = np.asarray(risk, np.float64)
    plain: dict[str, Any] = {
        "risk": values if values.size else None,
        "floor": None,
        "of": values.size,
        "drawn": True,
        "attacks": (),
    }
    return Measured(**{**plain, **changed})


def outcome(what: Measured, *rules: Any, confidence: float = 0.95) -> str:
    (rule,), _ = apply_rules(what, rules, confidence=confidence)
    return rule.outcome


def normal_scores(mu: float, n: int, rng: np.random.Generator) -> Scores:
    return Scores(inside=rng.normal(mu, 1, n), outside=rng.normal(0, 1, n))


@pytest.mark.parametrize(
    ("risk", "said"),
    [
        ([0.1, 1.0], "pass"),  # at most 1 is 1 too
        ([0.1, 1.0001], "fail"),
        ([0.1, np.inf], "fail"),
    ],
)
def test_one_record_above_the_limit_is_enough(risk: list[float], said: str) -> None:
    assert outcome(measured(risk), PdtpAtMost()) == said


def test_a_limit_and_a_share_of_ones_own_are_kept() -> None:
    risk = np.array([2.0] * 3 + [0.1] * 97)
    assert outcome(measured(risk), PdtpAtMost(limit=3.0)) == "pass"
    assert outcome(measured(risk), PdtpAtMost(share=0.03)) == "pass"
    assert outcome(measured(risk), PdtpAtMost(share=0.02)) == "fail"


def test_a_sample_cannot_speak_for_all_unless_a_share_is_allowed() -> None:
    sampled = measured(np.full(500, 0.1), of=100_000)
    assert outcome(sampled, PdtpAtMost()) == "unclear"
    assert outcome(sampled, PdtpAtMost(share=0.01)) == "pass"
    assert outcome(sampled, PdtpAtMost(share=0.005)) == "unclear"
    (rule,), _ = apply_rules(sampled, [PdtpAtMost()])
    assert "0.74%" in rule.finding  # what a sample of 500 leaves open
    exposed = measured(np.append(np.full(499, 0.1), 3.0), of=100_000)
    assert outcome(exposed, PdtpAtMost()) == "fail"
    assert outcome(exposed, PdtpAtMost(share=0.01)) == "unclear"


def test_records_that_somebody_chose_speak_for_themselves_alone() -> None:
    chosen = measured(np.full(500, 0.1), of=600, drawn=False)
    assert outcome(chosen, PdtpAtMost()) == "unclear"
    assert outcome(chosen, PdtpAtMost(share=0.5)) == "unclear"
    exposed = measured(np.append(np.full(499, 0.1), 3.0), of=600, drawn=False)
    assert outcome(exposed, PdtpAtMost()) == "fail"


def test_a_floor_as_large_as_the_values_tells_nothing(rng: np.random.Generator) -> None:
    noise = rng.exponential(1.0, 100)
    floor = noise[::-1]  # the same values, at other records
    assert outcome(measured(noise, floor=floor), PdtpAtMost()) == "unclear"
    assert outcome(measured(noise + 2, floor=floor), PdtpAtMost()) == "fail"
    assert outcome(measured(noise / 99, floor=floor), PdtpAtMost()) == "pass"


def test_re_initialisation_alone_seldom_convicts(rng: np.random.Generator) -> None:
    """Risk and floor of one law: whatever is above the limit is chance."""
    wrong = 0
    for _ in range(AUDITS):
        risk, floor = rng.exponential(1.0, (2, 60))
        what = measured(risk, floor=floor)
        wrong += outcome(what, PdtpAtMost(), confidence=0.9) == "fail"
    assert wrong <= scipy.stats.binom.isf(FLAKE, AUDITS, 0.1)


@pytest.mark.parametrize(
    ("mu", "n", "said"),
    [(0.0, 20_000, "pass"), (2.0, 2_000, "fail"), (0.25, 2_000, "unclear")],
)
@pytest.mark.parametrize("rule", [AdvantageAtMost(), CaughtAtMost()])
def test_attacks_are_below_above_or_astride_the_limit(
    mu: float, n: int, said: str, rule: Any, rng: np.random.Generator
) -> None:
    if isinstance(rule, CaughtAtMost) and said == "unclear":
        mu = 0.7  # 5.2 % at 1 % false positives
    what = measured(attacks=[Attacked(name="mine", scores=normal_scores(mu, n, rng))])
    assert outcome(what, rule) == said


def test_each_rule_looks_at_its_own_false_positives(rng: np.random.Generator) -> None:
    what = measured(attacks=[Attacked(name="mine", scores=normal_scores(1.0, 4_000, rng))])
    found, _ = apply_rules(what, [CaughtAtMost(0.2, fpr=0.01), CaughtAtMost(0.2, fpr=0.1)])
    assert [rule.outcome for rule in found] == ["pass", "fail"]


def test_the_strongest_attack_decides(rng: np.random.Generator) -> None:
    weak, strong = normal_scores(0.0, 20_000, rng), normal_scores(2.0, 20_000, rng)
    for attacks in (
        [Attacked(name="weak", scores=weak), Attacked(name="strong", scores=strong)],
        [Attacked(name="strong", scores=strong), Attacked(name="weak", scores=weak)],
    ):
        (rule,), _ = apply_rules(measured(attacks=attacks), [AdvantageAtMost()])
        assert rule.outcome == "fail"
        assert "strong" in rule.finding


def test_a_mismatch_keeps_attacks_from_releasing_not_from_convicting(
    rng: np.random.Generator,
) -> None:
    why = "the target was trained in another way."
    weak = measured(
        attacks=[Attacked(name="weak", scores=normal_scores(0.0, 20_000, rng))], mismatch=why
    )
    (rule,), _ = apply_rules(weak, [AdvantageAtMost()])
    assert rule.outcome == "unclear"
    assert why in rule.finding
    strong = measured(
        attacks=[Attacked(name="strong", scores=normal_scores(2.0, 2_000, rng))], mismatch=why
    )
    assert outcome(strong, AdvantageAtMost()) == "fail"


def test_what_was_not_measured_cannot_be_told() -> None:
    found, attacks = apply_rules(measured(), RULES)
    assert {rule.outcome for rule in found} == {"unclear"}
    assert attacks == ()
    with pytest.raises(InvalidArgument, match="at least one rule"):
        apply_rules(measured(), [])


def nulls(rng: np.random.Generator) -> Measured:
    """Six attacks that know nothing, by chance a little right."""
    attacks = [Attacked(name=f"attack {i}", scores=normal_scores(0.0, 150, rng)) for i in range(6)]
    return measured(np.full(50, 0.1), attacks=attacks)


STRICT = (PdtpAtMost(), AdvantageAtMost(0.0), CaughtAtMost(0.01))


def false_alarms(rng: np.random.Generator) -> int:
    count = 0
    for _ in range(AUDITS):
        found, _ = apply_rules(nulls(rng), STRICT, confidence=0.9)
        count += any(rule.outcome == "fail" for rule in found)
    return count


@pytest.mark.slow
def test_attacks_that_know_nothing_seldom_convict(rng: np.random.Generator) -> None:
    """Limits at the truth itself, six attacks, two rules: together 10 % at most."""
    assert false_alarms(rng) <= scipy.stats.binom.isf(FLAKE, AUDITS, 0.1)


def test_attacks_that_know_just_too_much_seldom_release(rng: np.random.Generator) -> None:
    """Limits just below the truth: releasing is then wrong."""
    norm = scipy.stats.norm
    rules = (
        AdvantageAtMost(float(2 * norm.cdf(0.25) - 1) - 1e-9),
        CaughtAtMost(float(norm.cdf(norm.ppf(0.01) + 0.5)) - 1e-9),
    )
    for rule in rules:
        wrong = sum(
            outcome(
                measured(attacks=[Attacked(name="mine", scores=normal_scores(0.5, 1000, rng))]),
                rule,
                confidence=0.9,
            )
            == "pass"
            for _ in range(AUDITS)
        )
        assert wrong <= scipy.stats.binom.isf(FLAKE, AUDITS, 0.1)


@pytest.mark.slow
def test_judging_by_what_was_measured_alone_would_be_seen(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mistake of most scripts: the value is taken for the truth."""

    def careless(attack: Attacked, **how: Any) -> Any:
        found = plain(attack, **how)
        return replace(found, advantage_low=found.advantage, tpr_low=found.tpr)

    plain = release.measure_attack
    monkeypatch.setattr(release, "measure_attack", careless)
    assert false_alarms(rng) > scipy.stats.binom.isf(FLAKE, AUDITS, 0.1)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: PdtpAtMost(limit=-1.0),
        lambda: PdtpAtMost(share=2.0),
        lambda: AdvantageAtMost(1.5),
        lambda: CaughtAtMost(fpr=0.0),
    ],
)
def test_rules_that_cannot_be_are_refused(wrong: Any) -> None:
    with pytest.raises(InvalidArgument):
        wrong()


def attacked(advantages: tuple[float, ...], n: int, rng: np.random.Generator) -> Attacked:
    """An attack whose TPR − FPR is each of these, of an eighth, a quarter and half the records."""
    sizes = [
        ScoresByRecord(rng.random((n, 8)) + (rng.random((n, 8)) < each), rng.random((n, 8)))
        for each in advantages
    ]
    return Attacked(name="mine", scores=sizes[-1], smaller=tuple(sizes[:-1]))


@pytest.mark.parametrize(
    ("advantages", "said"),
    [
        ((0.45, 0.25, 0.14), "unclear"),  # half the records exceed 0.1, all of them would not
        ((0.14, 0.14, 0.14), "fail"),  # more records change nothing
        ((0.04, 0.03, 0.02), "pass"),
    ],
)
def test_a_trend_that_ends_below_the_limit_is_no_failure(
    advantages: tuple[float, ...], said: str, rng: np.random.Generator
) -> None:
    attack = attacked(advantages, 4000, rng)
    (rule,), (found,) = apply_rules(measured(attacks=[attack]), [AdvantageAtMost(0.1)])
    assert rule.outcome == said
    assert "Extrapolated from" in rule.finding
    expected = advantages[-1] * np.prod([b / a for a, b in pairwise(advantages)]) ** (1 / 2)
    assert found.full_advantage == pytest.approx(expected, rel=0.35)
    assert found.full_low <= found.full_advantage <= found.full_high
    alone = replace_fields(attack, smaller=())
    (rule,), (found,) = apply_rules(measured(attacks=[alone]), [AdvantageAtMost(0.1)])
    assert rule.outcome == ("fail" if said == "unclear" else said)
    assert found.full_high is None


def test_a_power_of_the_size_is_followed() -> None:
    exact = [Limited(value, value, value) for value in (0.4, 0.2, 0.1)]
    assert extrapolate(exact) == pytest.approx((0.05, 0.05, 0.05))
    rising = [Limited(value, value, value) for value in (0.1, 0.2, 0.4)]
    assert extrapolate(rising) == pytest.approx((0.4, 0.4, 0.4))  # it is not taken to grow
    nothing = [Limited(0.01, 0.0, 0.05)] * 3
    assert extrapolate(nothing) == pytest.approx((0.01, 0.0, 0.05))


@pytest.mark.slow
def test_limits_at_full_size_hold_as_often_as_they_say(rng: np.random.Generator) -> None:
    """The true advantages are a power of the size: 0.4, 0.28, 0.2, and so 0.14."""
    truths = tuple(0.4 * 2 ** (-step / 2) for step in range(3))
    audits, wrong = 40, 0
    for _ in range(audits):
        (_,), (found,) = apply_rules(
            measured(attacks=[attacked(truths, 400, rng)]), [AdvantageAtMost(0.1)]
        )
        wrong += not found.full_low <= truths[-1] * 2**-0.5 <= found.full_high
    assert wrong <= scipy.stats.binom.isf(FLAKE, audits, 0.05)
