"""File formats: the YAML block, and the manifest inside an archive."""
