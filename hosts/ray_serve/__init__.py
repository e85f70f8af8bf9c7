"""Parts of the application on Ray Serve (`hosts/ray.py`), and its command."""
