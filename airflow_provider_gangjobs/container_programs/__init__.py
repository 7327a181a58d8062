"""Programs and modules of the provider that run in the containers of a gang, as files of its ConfigMap.

| file | what it does |
|---|---|
| `gangjobs_supervisor.py` | starts the program of a rank, and restarts the programs of all ranks in place |
| `gangjobs_rank.py` | checkpoints and progress, which the program of a rank imports |
| `gangjobs_result.py` | stores a large result, which the program of a rank imports or pipes |
| `gangjobs_mpi.sh` | starts the ranks of an MPI program over ssh |
| `python_runner.py` | calls the function of `@task.gang_job` |

They need Python 3.8 at least, and nothing of the provider. An image need not have Airflow. A gang has only the files
that it needs. `gangjobs_rank.py` opens object stores with `gangjobs_result.py`, so whoever has the first has both.
"""

from pathlib import Path
from typing import Final

PROGRAMS: Final = Path(__file__).parent
"""The folder of these files."""
