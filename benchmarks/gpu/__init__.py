"""The engine `cuda` on a GPU, compared with other implementations. It needs torch only."""
