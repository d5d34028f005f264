"""The tile vocabulary and the micro-kernels written in it. Imports no other part of the project."""
