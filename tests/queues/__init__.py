"""Tests of queues that decide when a Job may run: the real Kueue manager beside real control planes."""
