"""Adapters: one file a framework, and nothing else imports that framework."""
