"""Render the Kubernetes objects of a gang from a GangSpec."""
