import sys

if sys.argv[1:2] == ["scheduler"] or sys.argv[1:3] == ["celery", "worker"]:
    import airflow_provider_gangjobs.preload  # noqa: F401
