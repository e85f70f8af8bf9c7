"""Store of sessions on disk, in an SQLite database."""
