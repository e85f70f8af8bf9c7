"""What is a file format: the YAML block and the manifest inside an archive."""
