"""Packaging time: from a user's model and YAML to a verified, measured, self-contained archive."""
