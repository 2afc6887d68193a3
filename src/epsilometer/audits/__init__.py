"""Audits: one file a question. They wire the other rooms together and hold no mathematics."""
