"""Archives in the user's own process, without a server: `open_archive`."""
