"""SQLite stores for storeds: ``sqlite://path``, and any table of any database with ``?table=name``."""
