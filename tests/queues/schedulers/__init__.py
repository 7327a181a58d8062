"""Tests of gang schedulers that run beside the default scheduler: the real programs beside a real control plane."""
