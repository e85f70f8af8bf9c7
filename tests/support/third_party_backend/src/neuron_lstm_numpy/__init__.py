"""A backend of another distribution: a few operators, computed by numpy."""
