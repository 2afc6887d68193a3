"""What planted texts prove of a model: right bounds, memorisation, and every score."""

import functools
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st

import epsilometer as em
from epsilometer._dispatch import read_call
from epsilometer.audits.text.canaries import Canary
from epsilometer.audits.text.measuring import (
    NEAR,
    SCORES,
    Measured,
    bound_similarity,
    compare_texts,
)
from epsilometer.audits.text.memorisation import compute_exposure, measure_memorisation
from epsilometer.audits.text.subject import split_scores
from epsilometer.audits.text.text_service import TextService
from epsilometer.audits.text.views import Question
from epsilometer.core.memorisation import MemorisationFinding
from epsilometer.engine.service import ServiceFailed
from epsilometer.errors import InvalidArgument
from epsilometer.stats.gaussians import gaussian_sigma
from tests.audits.text.test_planting import TEXTS, Letters

DELTA, FLAKE = 1e-5, 1e-6


def plant(count: int = 400, **more: Any) -> Any:
    how = {name: more.pop(name) for name in ("seed", "design", "out") if name in more}
    return em.plant_texts(TEXTS, canaries=em.TextCanaries(count=count, **more), **how)


def leak(planted: Any, shift: float, seed: int = 0) -> Measured:
    """What a model says that shifts the ln p of planted texts."""
    rng = np.random.default_rng(seed)
    return Measured(log_probs=tuple(rng.normal(shift * coin, 1, 1) for coin in planted.included))


@pytest.mark.parametrize(("copies", "design"), [(1, "coins"), (2, "coins"), (1, "paired")])
def test_bounds_are_wrong_no_more_often_than_they_say(copies: int, design: Any) -> None:
    """A Gaussian mechanism releases each canary: with k copies, k times as far away."""
    truth, audits, confidence = 1.5, 30, 0.8
    shift = copies / gaussian_sigma(truth, DELTA)
    wrong = 0
    for seed in range(audits):
        planted = plant(300, repetitions=copies, seed=seed, design=design)
        scores = split_scores(
            planted,
            slice(None),
            np.concatenate(leak(planted, shift, seed).log_probs),
            title="",
            adversary="",
        )
        asked = Question(
            delta=DELTA, confidence=confidence, copies=copies, paired=design == "paired"
        )
        wrong += asked.prove(scores) > truth
    assert wrong <= scipy.stats.binom.isf(FLAKE, audits, 1 - confidence)


def test_copies_that_are_not_paid_for_would_refute_a_true_claim() -> None:
    """The planted mistake: 8 copies of a record, judged as if they were one."""
    truth = 0.5
    planted = plant(1_000, repetitions=8)
    measured = leak(planted, 8 / gaussian_sigma(truth, DELTA))
    right = em.audit(em.LanguageModel(measured, planted), truth, delta=DELTA)
    assert right.verdict != "refuted"
    inside = [
        float(x[0]) for x, coin in zip(measured.log_probs, planted.included, strict=True) if coin
    ]
    outside = [
        float(x[0])
        for x, coin in zip(measured.log_probs, planted.included, strict=True)
        if not coin
    ]
    unpaid = em.audit(em.Scores(inside, outside, design="coins"), truth, delta=DELTA)
    assert unpaid.verdict == "refuted"


def test_several_scores_and_kinds_share_the_confidence() -> None:
    wanted = (em.TextCanaries(count=100), em.TextCanaries(count=100, kind="new"))
    planted = em.plant_texts(TEXTS, canaries=wanted)
    rng = np.random.default_rng(0)
    measured = Measured(
        log_probs=tuple(rng.normal(0, 1, 3) for _ in planted.canaries),
        ranks=tuple(rng.integers(0, 9, 3).astype(float) for _ in planted.canaries),
        completions=tuple("x" for _ in planted.canaries),
    )
    names = ("loss", "reference", "rank", "min-k", "completion")
    subject = em.LanguageModel(measured, planted, reference=measured, scores=names)
    audit = em.audit(subject, 1.0, delta=DELTA)
    assert len(audit.views) == 10
    assert {round(bound.confidence, 6) for bound in audit.bounds} == {0.995}
    assert {bound.design for bound in audit.bounds} == {"coins"}
    assert set(names) == set(SCORES)


def test_a_claim_for_replaced_records_is_not_judged_by_coins() -> None:
    planted = plant()
    claim = em.Claim(0.5, delta=DELTA, adjacency="replace")
    assert em.audit(em.LanguageModel(leak(planted, 9), planted), claim).verdict == "cannot judge"
    twins = plant(design="paired")
    assert em.audit(em.LanguageModel(leak(twins, 9), twins), claim).verdict == "refuted"


def test_a_model_that_diverged_proves_nothing_and_clears_nothing() -> None:
    planted = plant()
    broken = Measured(log_probs=tuple(np.array([np.nan]) for _ in planted.canaries))
    audit = em.audit(em.LanguageModel(broken, planted), 1.0, delta=DELTA)
    assert audit.epsilon == 0
    assert audit.verdict == "cannot judge"
    assert "(nan) for 400 of 400" in "".join(audit.caveats)


def test_scores_that_need_more_say_so() -> None:
    planted = plant(20)
    text = Measured(completions=("x",) * 20)
    assert em.audit(em.LanguageModel(text, planted), delta=DELTA).verdict == "no claim"
    for scores, said in ((("loss",), "log-probabilities"), (("reference",), "reference model")):
        with pytest.raises(InvalidArgument, match=said):
            em.audit(em.LanguageModel(text, planted, scores=scores), delta=DELTA)
    with pytest.raises(InvalidArgument, match="scores among"):
        em.LanguageModel(text, planted, scores=("none",))
    with pytest.raises(InvalidArgument, match="planted"):
        em.LanguageModel(text, TEXTS)
    with pytest.raises(InvalidArgument, match="model with measure"):
        em.LanguageModel(object(), planted)
    with pytest.raises(InvalidArgument, match="measurements of 20"):
        em.audit(em.LanguageModel(Measured(completions=("x",)), planted), delta=DELTA)


def test_texts_are_compared_by_their_edit_distance() -> None:
    secrets = ["kitten", "abc", "  abc", ""]
    found = compare_texts(secrets, ["sitting", "", " abc", "x"])  # of their first letters
    assert found == pytest.approx([1 - 2 / 6, 0, 1, 1])


@given(st.text("ab \ufffd", max_size=9), st.text("ab \ufffd", max_size=9), st.integers(0, 9))
def test_no_text_gets_nearer_than_its_beginning_allows(secret: str, said: str, cut: int) -> None:
    whole, most = compare_texts([secret], [said]), bound_similarity([secret], [said[:cut]])
    assert whole[0] <= most[0]
    plain = secret.strip()
    assert whole[0] == pytest.approx(_compare_slowly(plain, said.lstrip()[: len(plain)]))


def _compare_slowly(secret: str, said: str) -> float:
    """By the recursion that defines the edit distance."""

    @functools.cache
    def count(one: int, other: int) -> int:
        if not (one and other):
            return one + other
        changed = count(one - 1, other - 1) + (secret[one - 1] != said[other - 1])
        return min(changed, count(one - 1, other) + 1, count(one, other - 1) + 1)

    return 1 - min(count(len(secret), len(said)), len(secret)) / max(1, len(secret))


def test_exposure_is_that_of_the_rank() -> None:
    outside = np.arange(7.0)
    assert compute_exposure(np.array([100.0]), outside)[0] == 3
    assert compute_exposure(np.array([-1.0]), outside)[0] == 0
    assert compute_exposure(np.array([6.0]), outside)[0] == 2  # equal ones count against it


def test_memorisation_has_limits_that_hold() -> None:
    """Of a model that completes each planted text with chance 0.3, limits at 80 % confidence."""
    planted, missed, trials = plant(200), 0, 30
    rng = np.random.default_rng(0)
    for _ in range(trials):
        said = tuple(
            canary.secret if coin and rng.random() < 0.3 else "no"
            for canary, coin in zip(planted.canaries, planted.included, strict=True)
        )
        found = measure_memorisation(
            Measured(completions=said),
            planted.canaries,
            planted.included,
            scores=rng.normal(size=200),
            confidence=0.8,
            named="some",
        )
        assert found is not None
        missed += not found.exact_low <= 0.3 <= found.exact_high
        assert found.near_held_out == 0
        assert found.exposure is not None
        assert found.exposure_low <= found.exposure <= found.exposure_high <= found.most_exposure
    assert missed <= scipy.stats.binom.isf(FLAKE, trials, 0.2)


def test_a_model_of_torch_is_measured_as_by_hand() -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Embedding(128, 8), torch.nn.Linear(8, 128))
    module.train()
    state = torch.get_rng_state()
    measured = em.CausalModel(module, Letters(), batch_size=2).measure(
        [Canary("ab", "cd"), Canary("x", "yz!"), Canary("longer", "a")]
    )
    assert torch.equal(state, torch.get_rng_state())
    assert module.training
    logits = module(torch.tensor([[ord("b")]]))[0, 0].log_softmax(0)
    assert measured.log_probs[0][0] == pytest.approx(float(logits[ord("c")].detach()), rel=1e-5)
    assert measured.ranks[0][0] == float((logits > logits[ord("c")]).sum())
    assert [tokens.size for tokens in measured.log_probs] == [2, 3, 1]
    assert all(measured.completions)
    assert ord(measured.completions[0][0]) == int(logits.argmax())


class Completing(torch.nn.Sequential):
    """Completes as models of transformers do: a text never ends before it is as long as asked."""

    generation_config = SimpleNamespace(eos_token_id=[101, 50_256])  # one is in no vocabulary

    def generate(self, *, input_ids: Any, max_new_tokens: int, **_: Any) -> Any:
        for _step in range(max_new_tokens):
            logits = self(input_ids[:, -1])
            logits[:, 101] = -torch.inf
            input_ids = torch.cat([input_ids, logits.argmax(1, keepdim=True)], 1)
        return input_ids


@pytest.mark.parametrize("batch_size", [1, 4, 100])
@pytest.mark.parametrize("kind", [torch.nn.Sequential, Completing])
def test_completions_are_the_likeliest_tokens_one_by_one(kind: Any, batch_size: int) -> None:
    torch.manual_seed(0)
    module = kind(torch.nn.Embedding(128, 8), torch.nn.Linear(8, 128))
    with torch.no_grad():
        module[1].bias[101] = 3.0  # the likeliest after many letters
        logits = module(torch.arange(128))
    assert (logits.argmax(1) == 101).sum() > 20
    if kind is Completing:
        logits[:, 101] = -torch.inf
    best = logits.argmax(1)

    def follow(letter: str, count: int) -> str:
        said = letter
        for _ in range(count):
            said += chr(int(best[ord(said[-1])]))
        return said[1:]

    def change(text: str, place: int) -> str:
        return text[:place] + chr(ord(text[place]) ^ 1) + text[place + 1 :]

    whole = [follow(letter, 12) for letter in "abcdef"]
    secrets = [*whole, *(change(text, 2 * place) for place, text in enumerate(whole)), "x"]
    canaries = [
        Canary("abcdef"[: 1 + place % 6], secret[: 12 - place % 3])
        for place, secret in enumerate(secrets)
    ]
    canaries.append(Canary("a", follow("a", 80)))  # longer than what is completed
    model = em.CausalModel(module, Letters(), batch_size=batch_size)
    said = model.measure(canaries).completions
    wanted = [follow(each.prompt[-1], min(64, len(each.secret))) for each in canaries]
    secrets = [each.secret for each in canaries]
    near = compare_texts(secrets, wanted) >= NEAR
    for one, other, whole_one in zip(said, wanted, near, strict=True):  # the others may be cut off
        assert one == other if whole_one else other.startswith(one)
    assert ((compare_texts(secrets, said) >= NEAR) == near).all()
    assert 6 <= near.sum() < near.size
    assert sum(one == each.secret for one, each in zip(said, canaries, strict=True)) >= 6


def test_little_is_computed_beyond_the_tokens_of_canaries() -> None:
    module = torch.nn.Sequential(torch.nn.Embedding(128, 8), torch.nn.Linear(8, 128))
    places: list[int] = []
    module.register_forward_hook(lambda _module, inputs, _said: places.append(inputs[0].numel()))
    rng = np.random.default_rng(0)
    canaries = [Canary("p" * int(length), "s") for length in rng.integers(1, 60, 400)]
    em.CausalModel(module, Letters(), batch_size=32).measure(canaries)
    assert sum(places) < 1.1 * sum(len(each.text) for each in canaries)


def test_fewer_canaries_are_measured_at_once_where_memory_does_not_suffice() -> None:
    module = torch.nn.Sequential(torch.nn.Embedding(128, 8), torch.nn.Linear(8, 128))
    canaries = [Canary("p" * (1 + at % 5), "secret") for at in range(40)]
    whole = em.CausalModel(module, Letters()).measure(canaries)

    def run_out(_: Any, inputs: Any) -> None:
        if len(inputs[0]) > 7:
            raise torch.cuda.OutOfMemoryError

    module.register_forward_pre_hook(run_out)
    found = em.CausalModel(module, Letters()).measure(canaries)
    np.testing.assert_allclose(found.log_probs, whole.log_probs, rtol=1e-5)
    assert found.completions == whole.completions


def test_new_tokens_that_are_split_are_remarked_on() -> None:
    planted = plant(kind="new")
    pieces = Measured(log_probs=tuple(np.zeros(14) for _ in planted.canaries))
    (said,) = [
        each
        for each in em.audit(em.LanguageModel(pieces, planted), delta=DELTA).caveats
        if "splits new tokens" in each
    ]
    assert "14 tokens, where 1 were planted" in said
    whole = em.audit(em.LanguageModel(leak(planted, 0.0), planted), delta=DELTA)
    assert not any("splits new tokens" in each for each in whole.caveats)


def test_a_trained_model_of_torch_is_refuted() -> None:
    """A table of next letters that saw planted texts alone."""
    planted = plant(300, kind="new", prompt=1)

    class Whole(Letters):
        def encode(self, text: str) -> list[int]:
            head, found, name = text.partition("<canary-")
            return super().encode(head) + ([200 + int(name[:-1])] if found else [])

        def decode(self, ids: list[int]) -> str:
            return "".join(f"<canary-{at - 200:06d}>" if at >= 200 else chr(at) for at in ids)

    module = torch.nn.Sequential(torch.nn.Embedding(600, 1), torch.nn.Linear(1, 600))
    with torch.no_grad():
        module[1].weight.zero_()
        module[1].bias.zero_()
        for place, coin in enumerate(planted.included):
            module[1].bias[200 + place] = 5.0 * coin
    audit = em.audit(em.LanguageModel(em.CausalModel(module, Whole()), planted), 2.0, delta=DELTA)
    assert audit.verdict == "refuted"
    found = audit.one(MemorisationFinding)
    assert found is not None
    assert found.held_out == (~planted.included).sum()


def test_a_private_folder_is_audited_again_from_a_file(tmp_path: Path) -> None:
    planted = plant(out=tmp_path / "private")
    first = em.audit(em.LanguageModel(leak(planted, 9), planted), 1.0, delta=DELTA)
    settings = tmp_path / "audit.toml"
    settings.write_text(
        f"[claim]\nepsilon = 1.0\ndelta = {DELTA}\n[language_model]\n"
        f'source = {{type = "text-run", folder = "{tmp_path / "private"}"}}\n',
        "utf-8",
    )
    again = read_call(settings).run()
    assert again.epsilon == first.epsilon
    assert again.verdict == first.verdict == "refuted"
    plant(out=tmp_path / "private")  # the same: nothing changes
    assert read_call(settings).run().verdict == "refuted"
    plant(out=tmp_path / "private", seed=1)  # others, which nobody measured
    with pytest.raises(InvalidArgument, match="Expected measurements of canaries"):
        read_call(settings).run()


class Server:
    """Completion server of a model that knows planted texts."""

    def __init__(self, planted: Any, *, log_probs: bool) -> None:
        known = {c.text: coin for c, coin in zip(planted.canaries, planted.included, strict=True)}
        secrets = {
            c.prompt: c.secret
            for c, coin in zip(planted.canaries, planted.included, strict=True)
            if coin
        }
        self.asked = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.asked += 1
                text = body["prompt"]
                if "logprobs" in body:
                    value = -0.1 if known[text] else -5.0
                    tokens = [text[:4], text[4:]]
                    found: Any = {"logprobs": {"tokens": tokens, "token_logprobs": [None, value]}}
                else:
                    found = {"text": secrets.get(text, "what?")}
                said = json.dumps({"choices": [found if log_probs or "text" in found else {}]})
                self.send_response(200)
                self.end_headers()
                self.wfile.write(said.encode())

            def log_message(self, *_: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1/completions"

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()


@pytest.mark.parametrize("log_probs", [True, False], ids=["log-probabilities", "text alone"])
def test_a_model_behind_an_address_is_refuted(tmp_path: Path, log_probs: bool) -> None:
    planted = plant(30)
    server = Server(planted, log_probs=log_probs)

    def ask() -> TextService:
        more = {"journal": tmp_path / "journal", "per_second": 1e6, "log_probs": log_probs}
        return TextService(server.url, **more)

    audit = em.audit(em.LanguageModel(ask(), planted), 0.5, delta=DELTA)
    assert audit.verdict == "refuted"
    asked = server.asked
    again = em.audit(em.LanguageModel(ask(), planted), 0.5, delta=DELTA)
    assert server.asked == asked == 30 * (1 + log_probs)
    assert again.epsilon == audit.epsilon
    journal = (tmp_path / "journal").read_text("utf-8")
    assert not any(canary.prompt in journal for canary in planted.canaries)
    server.close()


def test_an_answer_of_another_form_is_explained(tmp_path: Path) -> None:
    planted = plant(4)
    server = Server(planted, log_probs=False)
    service = TextService(server.url, journal=tmp_path / "journal", per_second=1e6)
    with pytest.raises(ServiceFailed, match="log_probs=False"):
        service.measure(planted.canaries)
    server.close()
