"""The claims of a paper, each beside what our runs give: `python -m harness.claims`."""
