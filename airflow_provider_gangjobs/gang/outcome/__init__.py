"""Outcomes of a gang and its ranks, and why a gang has ended."""
