"""Define claims, bounds, findings and audits, which all other packages share."""
