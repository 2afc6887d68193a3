"""DP-Auditorium: its tester of the hockey-stick divergence, at its defaults."""

import zoo_answers
from dp_auditorium.configs import privacy_property, property_tester_config
from dp_auditorium.testers import hockey_stick_tester
from zoo_answers import FloatArray


def judge(
    inside: FloatArray, outside: FloatArray, epsilon: float, delta: float
) -> tuple[bool, float]:
    config = property_tester_config.HockeyStickPropertyTesterConfig(
        training_config=hockey_stick_tester.make_default_hs_training_config(),
        approximate_dp=privacy_property.ApproximateDp(epsilon=epsilon, delta=delta),
    )
    tester = hockey_stick_tester.HockeyStickPropertyTester(
        config=config, base_model=hockey_stick_tester.make_default_hs_base_model()
    )
    bound = float(tester.estimate_lower_bound(inside, outside, failure_probability=0.05))
    return bool(tester.reject_property(bound)), bound


if __name__ == "__main__":
    zoo_answers.answer(judge, tool="dp-auditorium")
