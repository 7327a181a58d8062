"""Submission: create each gang in the cluster exactly once. The package knows gangs and clusters, and not Airflow.

This module imports nothing, so that the rules (`record`, `adopt_or_submit`, `job_state`) can be imported without an
HTTP library.
"""
