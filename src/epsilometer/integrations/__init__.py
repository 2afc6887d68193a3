"""Adapters: one file or folder a framework, and nothing else imports that framework."""
