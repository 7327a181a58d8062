"""A whole pipeline of gangs in a real Airflow: what it costs, and how long it takes.

See `python -m benchmarks.pipeline --help`.
"""
