"""What all tests need: an Airflow home that is nobody's own, and signals as on a terminal."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import tempfile

if "AIRFLOW_HOME" not in os.environ:
    # Importing airflow writes its configuration file there, and has to be told before.
    os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="airflow-home-")
    atexit.register(shutil.rmtree, os.environ["AIRFLOW_HOME"], ignore_errors=True)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what it runs in the background so, and the programs that tests interrupt would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
