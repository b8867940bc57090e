"""AQUA (ASPLOS'25): fair scheduling of prompts on a neighbour's memory; see README.md."""
