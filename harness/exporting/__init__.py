"""Finished runs in other tools' formats: `python -m harness export`."""
