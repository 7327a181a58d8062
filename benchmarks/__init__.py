"""What the provider costs, beside what exists, on the same API server in the same run.

Each module is a program: `python -m benchmarks.<name> [--quick] [--out FILE]`. `docs/benchmarks.md` has the figures.
"""
