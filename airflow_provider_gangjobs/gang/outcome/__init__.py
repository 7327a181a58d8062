"""Outcomes of a gang and its ranks, and the diagnosis of their causes."""
