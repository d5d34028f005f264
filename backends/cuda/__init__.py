"""CUDA: tile words as PTX, machine data, loading and launching. Importing it imports no CUDA package."""
