"""Drives the real programs for tests/integration and tests/crash; see tests/README.md."""
