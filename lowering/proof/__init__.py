"""Analyses of the graph of a padded batch: neither padding nor another row reaches an output."""
