"""The archive's folder, private until it is whole."""
