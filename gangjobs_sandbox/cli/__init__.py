"""The `sandbox` command of `gangjobs`."""
