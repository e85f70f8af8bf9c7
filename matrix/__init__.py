"""Other releases of torch and Python than the ones that the project is built with; run on demand."""
