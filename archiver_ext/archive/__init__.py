"""Reading, building and writing of archives."""
