"""The cost of the provider compared with its peers, on the same API server in the same run.

Each module is a program: `python -m benchmarks.<name> [--quick] [--out FILE]`. `docs/benchmarks.md` has the figures.
"""
