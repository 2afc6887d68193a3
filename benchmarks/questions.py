"""What is asked of whom in ``comparison.py``, and what counts as an alarm."""

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Row:
    """One number that a tool answers with.

    Attributes:
        call: How it is called, in the page.
        what: What the number is.
        alarm: A number above it says that something leaks; None: as of the question.
        refuted: A number above it refutes the false claim; None: as of the question.
    """

    call: str
    what: str = "ε ≥"
    alarm: float | None = None
    refuted: float | None = None


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One call of a tool.

    Attributes:
        tool: ``peers/ask_<tool>.py``.
        name: The call's name there.
        audits: How many in either situation; fewer where one takes long.
        rows: The numbers that it answers with.
    """

    tool: str
    name: str
    audits: int
    rows: dict[str, Row] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Question:
    """The same asked of several tools, ours first.

    Attributes:
        name: Short.
        title: In words.
        setting: What is given, what is true of it, and what is claimed.
        refuted: A number above it refutes the false claim, where the truth is known.
        asked: Of whom.
        alarm: A number above it says that something leaks.
        truth: Where the claim is false: a lower bound above it is wrong. None: not known.
    """

    name: str
    title: str
    setting: str
    refuted: float
    asked: tuple[Ask, ...]
    alarm: float = 0.0
    truth: float | None = None


TOOLS = {
    "epsilometer": "**epsilometer**",
    "jax_privacy": "jax-privacy",
    "privacy_estimates": "privacy-estimates",
    "privacyguard": "PrivacyGuard",
    "opake": "opake-auditing",
    "adversarial_robustness_toolbox": "ART",
    "sacroml": "SACRO-ML",
    "opacus": "Opacus, loop by hand",
    "flower": "Flower on Ray",
}
_GAUSSIAN = "; assumes Gaussian scores"
_FIXED = "; threshold 1.5, fixed beforehand"
_GUESSED = "balanced accuracy"

QUESTIONS = (
    Question(
        name="scores",
        title="Which ε do these scores prove?",
        setting=(
            "1,000 canaries, each in or out by its own fair coin; scores N(0, 1) for all (ε = 0), "
            "or N(1, 1) for those inside (true ε = 4.38). Claim: ε ≤ 1. δ = 10⁻⁵, 95 %"
        ),
        refuted=1.0,
        truth=4.38,
        asked=(
            Ask(
                tool="epsilometer",
                name="scores_default",
                audits=1000,
                rows={"default": Row(call="`epsilon_lower_bound(scores, delta=1e-5)`")},
            ),
            Ask(
                tool="epsilometer",
                name="scores_one_run",
                audits=1000,
                rows={"one_run": Row(call='`…, method="one_run")`')},
            ),
            Ask(
                tool="epsilometer",
                name="scores_gdp",
                audits=1000,
                rows={"gdp": Row(call=f'`…, method="gdp")`{_GAUSSIAN}')},
            ),
            Ask(
                tool="jax_privacy",
                name="scores_default",
                audits=1000,
                rows={
                    "default": Row(
                        call="`CanaryScoreAuditor(…).epsilon_clopper_pearson(0.05, 1e-5)`"
                    )
                },
            ),
            Ask(
                tool="jax_privacy",
                name="scores_multi_split",
                audits=500,
                rows={"multi_split": Row(call="`…, threshold_strategy=MultiSplit(seed=0))`")},
            ),
            Ask(
                tool="jax_privacy",
                name="scores_one_run",
                audits=1000,
                rows={"one_run": Row(call="`.epsilon_one_run(0.05, 1e-5)`")},
            ),
            Ask(
                tool="jax_privacy",
                name="scores_gdp",
                audits=1000,
                rows={"gdp": Row(call=f"`.epsilon_from_gdp(0.05, 1e-5)`{_GAUSSIAN}")},
            ),
            Ask(
                tool="opake",
                name="scores_default",
                audits=1000,
                rows={"default": Row(call="`one_run(…).eps_delta().epsilon_at(delta=1e-5)`")},
            ),
            Ask(
                tool="opake",
                name="scores_fixed",
                audits=1000,
                rows={
                    "fixed": Row(call="`….epsilon_at(delta=1e-5, threshold=0.5)`, fixed beforehand")
                },
            ),
            Ask(
                tool="opake",
                name="scores_gdp",
                audits=40,
                rows={"gdp": Row(call=f"`one_run(…).epsilon_at(delta=1e-5)`{_GAUSSIAN}")},
            ),
            Ask(
                tool="privacy_estimates",
                name="scores_joint_beta",
                audits=20,
                rows={
                    "joint_beta": Row(
                        call=f'`compute_eps_lo(…, 1e-5, 0.05, "joint-beta")`{_FIXED}',
                        what="95 % credible ε ≥",
                    )
                },
            ),
            Ask(
                tool="privacy_estimates",
                name="scores_intervals",
                audits=1000,
                rows={
                    "beta": Row(call=f'`…, "beta")`{_FIXED}'),
                    "jeffreys": Row(call=f'`…, "jeffreys")`{_FIXED}'),
                },
            ),
            Ask(
                tool="privacyguard",
                name="scores_default",
                audits=100,
                rows={
                    "eps": Row(
                        call="`AnalysisNode(…, 1e-5, 1000).run_analysis().eps`",
                        what="ε, upper end of a bootstrap",
                    ),
                    "eps_lb": Row(call="`.eps_lb` of it", what="ε, lower end of a bootstrap"),
                    "eps_cp": Row(call="`.eps_cp` of it"),
                },
            ),
        ),
    ),
    Question(
        name="membership",
        title="Does this classifier show who was in?",
        setting=(
            "a forest of ten trees (`min_samples_leaf=3`), 300 digits, each a member by a fair "
            "coin; trained on the members, or on other digits (ε = 0). Claim: nothing is shown"
        ),
        refuted=0.0,
        asked=(
            Ask(
                tool="epsilometer",
                name="membership",
                audits=100,
                rows={
                    "bound": Row(
                        call="`evaluate(rmia(shadow_pool(…, models=16), target), …).bound`"
                    )
                },
            ),
            Ask(
                tool="adversarial_robustness_toolbox",
                name="membership_nn",
                audits=100,
                rows={
                    "nn": Row(
                        call="`MembershipInferenceBlackBox(…)`: guesses right more often than ½",
                        what=_GUESSED,
                        alarm=0.5,
                        refuted=0.5,
                    )
                },
            ),
            Ask(
                tool="adversarial_robustness_toolbox",
                name="membership_rf",
                audits=100,
                rows={
                    "rf": Row(
                        call='`…, attack_model_type="rf")`: the same',
                        what=_GUESSED,
                        alarm=0.5,
                        refuted=0.5,
                    )
                },
            ),
            Ask(
                tool="sacroml",
                name="membership_worst_case",
                audits=60,
                rows={
                    "worst_case": Row(
                        call="`WorstCaseAttack()`: its report counts more than 10 % of AUCs "
                        "significant",
                        what="share of them",
                        alarm=0.1,
                        refuted=0.1,
                    )
                },
            ),
            Ask(
                tool="sacroml",
                name="membership_lira",
                audits=60,
                rows={
                    "lira": Row(
                        call="`LIRAAttack()`: its AUC is significant",
                        what="share of it",
                        alarm=0.1,
                        refuted=0.1,
                    )
                },
            ),
        ),
    ),
    Question(
        name="training",
        title="Is the claim about this DP-SGD true?",
        setting=(
            "an MLP 64–32–10 on 100 digits, 20 Poisson steps, 100 times with a mislabelled record "
            "and 100 times without it, told apart by its loss; σ = 1 (accounted ε = 15.1), or "
            "σ = 100 (ε = 0). Claim: ε ≤ ½. Scores of both go into our bound"
        ),
        refuted=0.5,
        asked=(
            Ask(
                tool="epsilometer",
                name="training",
                audits=20,
                rows={"bound": Row(call="`RecordGame(EnsembleDPSGD(…), …).play(100)`")},
            ),
            Ask(
                tool="opacus",
                name="training",
                audits=8,
                rows={"bound": Row(call="`PrivacyEngine().make_private(…)`, 200 times")},
            ),
        ),
    ),
    Question(
        name="federated",
        title="What does this federated training leak of a client?",
        setting=(
            "30 clients and 100 canaries, an MLP of 4,960 parameters, two rounds of DP-FedAvg; "
            "σ = ½ (true ε = 15.5), or σ = 100 (ε = 0). Claim: ε ≤ 1. Cosines of both go into our "
            "bound"
        ),
        refuted=1.0,
        asked=(
            Ask(
                tool="epsilometer",
                name="federated",
                audits=20,
                rows={"bound": Row(call="`FederatedTraining(…).train(canaries=…)`")},
            ),
            Ask(
                tool="flower",
                name="federated",
                audits=6,
                rows={"bound": Row(call="`run_simulation(…)`, canary clients by hand")},
            ),
        ),
    ),
)
