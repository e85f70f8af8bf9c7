"""An unpacked archive on its host: loading, host checks, placement, the user's own code."""
