"""Builds and boots the manager of Kueue."""
