"""Validation of a spec, with one module per subject. Each check takes a `ParsedSpec` and yields problems."""
