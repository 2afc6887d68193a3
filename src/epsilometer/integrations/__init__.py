"""Adapt frameworks: one file or folder per framework, which nothing else imports."""
