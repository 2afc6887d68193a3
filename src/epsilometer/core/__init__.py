"""Claims, bounds, findings, audits: what all other packages agree on."""
