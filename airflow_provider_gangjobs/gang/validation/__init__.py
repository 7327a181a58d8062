"""Checks of a request, one file per subject, each a function from a parsed to problems."""
