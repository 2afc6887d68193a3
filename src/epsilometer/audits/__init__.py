"""Audits: one package per question. They connect the other packages and hold no mathematics."""
