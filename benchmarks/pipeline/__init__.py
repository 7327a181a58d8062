"""The cost and the duration of a whole pipeline of gangs in a real Airflow.

See `python -m benchmarks.pipeline --help`.
"""
