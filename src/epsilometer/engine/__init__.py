"""Run units of work that survive crashes: plan, store, engines."""
