"""How a gang and each of its ranks ended, and why."""
