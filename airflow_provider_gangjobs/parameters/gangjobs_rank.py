"""Placeholder of the helper of ranks."""
