"""Attacks: from what an adversary sees to scores; higher means the record was in."""
