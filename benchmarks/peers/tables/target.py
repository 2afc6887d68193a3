"""The classifier whose members are asked for; runs in every environment with scikit-learn.

A question is an ``.npz``: records with labels, who was in, others for a target that leaks nothing.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score, roc_curve
from sklearn.tree import DecisionTreeClassifier

MODELS = 32  # shadows of tools that train some


class Question:
    """Records, who was in, and the target: trained on the members, or on none of the records."""

    def __init__(self, path: Path) -> None:
        with np.load(path) as held:
            self.x, self.y, self.member = held["x"], held["y"], held["member"]
            self.others = held["x_other"], held["y_other"]
            self.model, self.seed = str(held["model"]), int(held["seed"])
            self.leaks = bool(held["leaks"])
        self.kept: Any = None

    def make(self, seed: int) -> Any:
        """As models are trained."""
        if self.model == "forest":
            return RandomForestClassifier(30, random_state=seed)
        if self.model == "tree":
            return DecisionTreeClassifier(random_state=seed)
        return LogisticRegression(max_iter=1000, random_state=seed)

    def target(self) -> Any:
        """The model that is attacked."""
        inside = (self.x[self.member], self.y[self.member])
        return self.make(self.seed).fit(*(inside if self.leaks else self.others))

    def own(self, model: Any) -> Any:
        """Probability of each record's own label."""
        found = model.predict_proba(self.x)
        place = {label: i for i, label in enumerate(model.classes_)}
        columns = np.array([place.get(label, -1) for label in self.y])
        return np.where(columns >= 0, found[np.arange(len(found)), columns], 0.0)

    def shadows(self) -> tuple[Any, Any]:
        """Own-label probabilities of pairs of models, ``(records, models)``, and who was in."""
        rng = np.random.default_rng(1000 + self.seed)
        signals, members = [], []
        for pair in range(MODELS // 2):
            coins = rng.random(len(self.y)) < 0.5
            for inside in (coins, ~coins):
                model = self.make(2 * pair + int(inside is coins))
                signals.append(self.own(model.fit(self.x[inside], self.y[inside])))
                members.append(inside)
        return np.stack(signals, axis=1), np.stack(members, axis=1)


def score(scores: Any, member: Any) -> dict[str, float]:
    """AUC, and the share caught at 1 % false positives."""
    fpr, tpr, _ = roc_curve(member, scores)
    return {"auc": float(roc_auc_score(member, scores)), "tpr": float(tpr[fpr <= 0.01].max())}


def answer(attacks: dict[str, Callable[[Question], dict[str, Any]]]) -> None:
    """Run each attack on the questions of the command line, and print what it says as JSON.

    What a question remembers (shadows) is paid for by each attack that uses it.
    """
    told = []
    for path in sys.argv[1:]:
        question = Question(Path(path))
        said = {}
        for name, attack in attacks.items():
            start = time.process_time()
            said[name] = attack(question)
            said[name]["cpu_seconds"] = time.process_time() - start + said[name].pop("paid", 0.0)
        told.append(said)
    sys.stdout.write(json.dumps(told) + "\n")
