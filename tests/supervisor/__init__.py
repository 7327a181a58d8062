"""Tests of the supervisor of ranks, which starts programs again in place."""
