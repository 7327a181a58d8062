"""Submission: into the cluster exactly once. Knows what a gang is and what a cluster is, not what Airflow is.

Nothing is imported here, so that the rules (`record`, `adopt`, `jobs`) can be imported without an HTTP library.
"""
