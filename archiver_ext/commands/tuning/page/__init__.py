"""Page of a proposal: one HTML file without scripts.

Drawings are inline SVG, and every number is in a table as well.
"""

from .document import html_page

__all__ = ["html_page"]
