"""Canaries that were not trained on, or not as declared, never clear a claim."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import epsilometer as em
from epsilometer.audits.text.canaries import Canary
from epsilometer.audits.text.canary_counts import COUNTS, BatchWatch, CanaryCounts, load_counts
from epsilometer.audits.text.measuring import Measured
from epsilometer.errors import InvalidArgument, UnreadableFile
from tests.audits.text.test_planting import Letters
from tests.audits.text.test_subject import DELTA, leak, plant

CANARIES = [Canary("one ", "secret"), Canary("two ", "riddle"), Canary("a", "b")]


class Rows(torch.nn.Module):
    """Takes rows as models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(128, 2)

    def forward(self, input_ids: Any, labels: Any = None, **_: Any) -> Any:
        return self.table(input_ids)


def row(text: str, *, length: int = 30, left: int = 0) -> list[int]:
    return [0] * left + (Letters().encode(text) + [0] * length)[: length - left]


def watch(*texts: str, **more: Any) -> CanaryCounts:
    module = Rows()
    watched = BatchWatch(module, Letters(), CANARIES)
    module(torch.tensor([row(text) for text in texts]), **more)
    watched.close()
    module(torch.tensor([row(CANARIES[0].text)]))  # no longer watched
    return watched.collect()


@pytest.mark.parametrize(
    ("texts", "counts"),
    [
        (("one secret", "two riddle", "two riddle", "ab"), [1, 2, 1]),
        (("<s>One secret</s>",), [1, 0, 0]),  # other text before and after it
        (("one secre", "one", "two secret"), [0, 0, 0]),  # truncated, or of another prompt
        (("",), [0, 0, 0]),
    ],
)
def test_rows_that_hold_whole_canaries_are_counted(texts: Any, counts: list[int]) -> None:
    found = watch(*texts)
    assert found.counts.tolist() == counts
    assert (found.rows, found.joined) == (len(texts), 0)


def test_only_what_is_trained_on_counts() -> None:
    module = Rows()
    watched = BatchWatch(module, Letters(), CANARIES)
    text = torch.tensor([row("one secret", left=3)])
    with torch.no_grad():
        module(text)
    module.eval()(text)
    module.train()(text, labels=torch.where(text == ord("t"), -100, text))
    module(text, labels=torch.where(text == ord("s"), -100, text))  # the first of the secret
    module(input_ids=text.float().long(), labels=torch.where(text == ord("o"), -100, text))
    assert watched.collect().counts.tolist() == [1, 0, 0]


def test_the_loss_of_rows_without_labels_is_unknown_where_labels_are_expected() -> None:
    module, text = Rows(), torch.tensor([row("one secret")])
    watched = BatchWatch(module, Letters(), CANARIES, labelled=True)
    module(text, labels=text)
    assert watched.collect().trained is not None
    module(text)
    found = watched.collect()
    assert (found.unlabelled, found.trained) == (1, None)
    assert found.add(watch("one secret")).trained is None


def test_rows_that_join_records_are_told_from_rows_that_list_them() -> None:
    joined = "one secret. two riddle."
    assert watch(joined, "one secret").joined == 1
    starts = torch.tensor([[0, *range(1, 12), *range(18)]])
    apart = watch(joined, position_ids=starts)
    assert (apart.joined, apart.rows, apart.counts.tolist()) == (0, 2, [1, 1, 0])


def test_canaries_that_share_words_join_no_records() -> None:
    alike = [Canary("the cat of the house ", "sees"), Canary("cat of the house ", "sees a stone")]
    module = Rows()
    watched = BatchWatch(module, Letters(), alike)
    module(torch.tensor([row("the cat of the house sees a stone", length=40)]))
    found = watched.collect()
    assert (found.counts.tolist(), found.joined) == ([1, 1], 0)


def test_random_numbers_of_training_stay_as_they_are() -> None:
    torch.manual_seed(0)
    module = Rows()
    state = torch.get_rng_state()
    BatchWatch(module, Letters(), CANARIES)
    module(torch.tensor([row("one secret")]))
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.slow  # torch.compile imports much
@pytest.mark.parametrize("compiled", [True, False])
def test_batches_of_a_compiled_module_are_counted_or_unknown(compiled: bool) -> None:
    module = Rows()
    watched = BatchWatch(module, Letters(), CANARIES, compiled=compiled)
    torch.compile(module, backend="eager")(torch.tensor([row("one secret")]))
    found = watched.collect()
    assert found.counts.tolist() == [int(compiled), 0, 0]
    assert (found.trained is None) == (not compiled)


def test_canaries_seen_more_often_than_records_are_several_records() -> None:
    rng = np.random.default_rng(0)
    for copies in (1, 2, 3):  # sampled by Poisson, 5 times each
        counts = CanaryCounts(counts=rng.poisson(5 * copies, 500), rows=50_000, records=10_000)
        assert counts.count_copies(1) == copies
        assert counts.count_copies(3) == 3
    unknown = CanaryCounts(counts=np.full(500, 99), rows=50_000)
    assert unknown.count_copies(1) == 1
    assert CanaryCounts(counts=np.full(500, 2), rows=50_000, records=10_000).is_short(1)


def test_counts_are_kept_and_read(tmp_path: Path) -> None:
    assert load_counts(tmp_path) is None
    more = {"joined": 1, "unlabelled": 2, "tokens": 7, "whole": False, "steps": 2}
    first = CanaryCounts(counts=np.array([1, 0]), rows=3, records=9, **more)
    first.save(tmp_path)
    again = load_counts(tmp_path)
    assert again is not None
    assert again.counts.tolist() == [1, 0]
    assert vars(again) | {"counts": 0} == vars(first) | {"counts": 0}
    assert again.trained is None
    (tmp_path / COUNTS).write_bytes((tmp_path / COUNTS).read_bytes()[:100])
    with pytest.raises(UnreadableFile, match="canaries"):
        load_counts(tmp_path)


def count(trained: Any, **more: Any) -> CanaryCounts:
    return CanaryCounts(**{"counts": np.asarray(trained, np.int64), "rows": 900, **more})


def ask(planted: Any, measured: Any, claim: float, **more: Any) -> Any:
    return em.audit(em.LanguageModel(measured, planted, **more), claim, delta=DELTA)


@pytest.mark.parametrize("design", ["coins", "paired"])
def test_what_was_not_trained_on_cannot_clear_a_claim(design: Any) -> None:
    planted = plant(design=design)
    quiet = leak(planted, 0.0)
    as_declared = ask(planted, quiet, 1.0, counts=count(planted.included))
    assert as_declared.verdict == "not refuted"
    assert len(as_declared.caveats) == 1
    none = ask(planted, quiet, 1.0, counts=count(0 * planted.included))
    others = ask(planted, quiet, 1.0, counts=count(~planted.included))
    every = ask(planted, quiet, 1.0, counts=count(1 + 0 * planted.included))
    for audit in (none, others, every):
        assert audit.verdict == "cannot judge"
        assert audit.reach < 1
        assert len(audit.caveats) == 2 + (audit is others)


def test_reach_and_power_count_what_was_trained_on_alone() -> None:
    planted = plant()
    some = planted.included & (np.arange(400) % 4 == 0)
    perfect = Measured(log_probs=tuple(np.array([9.0 * coin]) for coin in some))
    found = ask(planted, perfect, 1.0, counts=count(some)).views[0]
    whole = ask(planted, perfect, 1.0, trained=True).views[0]
    assert found.reach == pytest.approx(found.bound.epsilon, rel=0.05)
    assert found.reach < whole.reach
    assert found.power > whole.power


def test_joined_records_neither_clear_nor_refute_a_claim() -> None:
    planted = plant()
    packed = count(planted.included, joined=7)
    for shift in (0.0, 9.0):
        audit = ask(planted, leak(planted, shift), 1.0, counts=packed)
        assert audit.verdict == "cannot judge"
        assert "7 rows contained several canaries" in "".join(audit.caveats)


def test_duplicated_canaries_are_bounded_as_several_records() -> None:
    planted = plant(100)
    twice = count(2 * planted.included, records=900)
    once, found = (
        ask(planted, leak(planted, 9), 1.0, counts=counts).epsilon for counts in (None, twice)
    )
    assert found == pytest.approx(once / 2, rel=0.05)


def test_what_nobody_watched_clears_no_claim() -> None:
    planted = plant()
    partly = count(planted.included, whole=False)
    blind = count(planted.included, unlabelled=9)
    for counts, said in ((None, "not watched"), (partly, "not watched"), (blind, "without labels")):
        audit = ask(planted, leak(planted, 0.0), 1.0, counts=counts)
        assert audit.verdict == "cannot judge"
        assert said in "".join(audit.caveats)
        assert ask(planted, leak(planted, 9.0), 1.0, counts=counts).verdict == "refuted"
        vouched = ask(planted, leak(planted, 0.0), 1.0, counts=counts, trained=True)
        assert vouched.verdict == "not refuted"
        assert "asserts" in "".join(vouched.caveats)
    none = ask(planted, leak(planted, 0.0), 1.0, counts=count(0 * planted.included), trained=True)
    assert none.verdict == "cannot judge"  # what was counted is better known
    with pytest.raises(InvalidArgument, match="CanaryCounts of 400"):
        ask(planted, leak(planted, 0.0), 1.0, counts=CanaryCounts(counts=np.zeros(3), rows=1))


def test_a_reference_that_was_trained_on_canaries_cannot_clear_a_claim() -> None:
    planted = plant()
    trained = leak(planted, 3.0)
    audit = ask(planted, trained, 1.0, reference=trained)
    assert audit.verdict == "cannot judge"
    assert "reference model was trained on" in "".join(audit.caveats)
    assert ask(planted, trained, 1.0, reference=trained, scores=("loss",)).verdict == "refuted"
    assert ask(planted, trained, 1.0, reference=leak(planted, 0.0, 1)).verdict == "refuted"


def test_a_model_that_is_its_reference_cannot_clear_a_claim() -> None:
    """As where an adapter is not loaded, or all weights are frozen."""
    planted = plant()
    before, counts = leak(planted, 0.0), count(planted.included)
    for scores in (None, ("loss",)):
        more = {"reference": before, "counts": counts, "scores": scores}
        audit = ask(planted, before, 1.0, **more)
        assert audit.verdict == "cannot judge"
        assert "adapter" in "".join(audit.caveats)
        assert ask(planted, leak(planted, 0.0, 1), 1.0, **more).verdict == "not refuted"


def test_an_address_that_refuses_cannot_clear_a_claim() -> None:
    planted = plant()
    counts = count(planted.included)
    refusing = Measured(completions=("I cannot help with that.",) * 400)
    audit = ask(planted, refusing, 1.0, counts=counts)
    assert audit.verdict == "cannot judge"
    assert "the same answer" in "".join(audit.caveats)
    various = Measured(completions=tuple(f"{at} is what I say" for at in range(400)))
    assert ask(planted, various, 1.0, counts=counts).verdict == "not refuted"


def test_canaries_are_not_measured_as_other_tokens_than_those_of_training() -> None:
    planted = plant(40)
    module = torch.nn.Sequential(torch.nn.Embedding(200, 4), torch.nn.Linear(4, 200))
    watched = BatchWatch(module, Letters(), planted.canaries)
    module(torch.tensor([row(each.text, length=80) for each in planted.canaries]))

    class Shifted(Letters):
        def encode(self, text: str) -> list[int]:
            return [each + 1 for each in super().encode(text)]

    counts = watched.collect()
    ask(planted, em.CausalModel(module, Letters()), 1.0, counts=counts)
    with pytest.raises(InvalidArgument, match="tokenizer of training"):
        ask(planted, em.CausalModel(module, Shifted()), 1.0, counts=counts)
