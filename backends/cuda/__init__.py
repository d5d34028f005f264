"""CUDA: tile words as PTX, machine data, loading, launching. Imports no CUDA package."""
